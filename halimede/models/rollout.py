"""The rollout of a model: the current version, the canary on a share of the requests, and what was refused.

A worker or a server has one for each of its models. It decides and records. Its owner opens and closes versions, and
chooses the version of a single request.
"""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeVar

from halimede.errors import shorten_middle
from halimede.messages import ModelInUse
from halimede.models.desired_state import DesiredModel

#: requests that only the canary fails at, until it is withdrawn
STRIKES = 3
#: the reason for which such a canary is refused
CANARY_FAILED = "CanaryFailed"
#: the percentage that makes a version the current one
ALL_PERCENT = 100
#: characters of a reported reason and message
MAX_REASON, MAX_MESSAGE = 256, 4096

#: the step to a desired model: none (it was refused), open it, give the canary all requests or another share of them,
#: or end the canary because the current version is the desired one
Step = Literal["keep", "load", "promote", "share", "withdraw"]


class OpenedVersion(Protocol):
    """The properties of an opened version that a rollout uses.

    ``desired``: what it was opened for; None: it was not opened for a desired model. ``version`` and ``digest``: as
    reported.
    """

    desired: DesiredModel | None
    version: str
    digest: str


V = TypeVar("V", bound=OpenedVersion)


class Rollout(Generic[V]):
    """Moves a model from one opened version to the next. Pure: no clock, no input or output.

    ``percent`` of the requests go to ``canary``, 0 if there is none; all others go to ``current``. ``fingerprint``: of
    the desired state that this is the result of.
    """

    def __init__(self, current: V | None = None) -> None:
        self.current = current
        self.canary: V | None = None
        self.percent = 0
        #: requests that the canary failed at and the current version did not
        self.strikes = 0
        #: the desired model that was refused, and why
        self.refused: DesiredModel | None = None
        self.refused_digest = ""
        self.reason = ""
        self.message = ""
        self.fingerprint = ""

    def step(self, desired: DesiredModel) -> Step:
        """Return the step from the present versions to the desired one."""
        if _serves(self.current, desired):
            return "withdraw"
        if _serves(self.canary, desired):
            return "promote" if desired.canary_percent >= ALL_PERCENT else "share"
        if self.refused and desired.same(self.refused):
            return "keep"
        return "load"

    def replace(self, new: V) -> list[V]:
        """Make a version, newly opened or the canary, the only one; return the versions to close."""
        leaving = [version for version in (self.current, self.canary) if version and version is not new]
        self.current, self.canary, self.percent, self.strikes = new, None, 0, 0
        return leaving

    def try_out(self, new: V, percent: int) -> list[V]:
        """Make a version the canary with a share of the requests, or change that share; return versions to close."""
        if new is self.canary:
            self.percent = percent
            return []
        leaving = self.withdraw()
        self.canary, self.percent = new, percent
        return leaving

    def use(self, new: V, percent: int) -> list[V]:
        """Make a version the canary, or the only one (for all requests, or without another); return those to close.

        A refusal before is dropped: that model is no longer desired.
        """
        self.forgive()
        if self.current and percent < ALL_PERCENT:
            return self.try_out(new, percent)
        return self.replace(new)

    def withdraw(self) -> list[V]:
        """End the canary, if there is one; return the versions to close."""
        leaving = [self.canary] if self.canary else []
        self.canary, self.percent, self.strikes = None, 0, 0
        return leaving

    def strike(self, canary: V, message: str) -> bool:
        """Count a request that only the canary failed at; return whether that ended it.

        After STRIKES of them it is withdrawn and refused with ``message``. A version that is no longer the canary is
        not counted.
        """
        if canary is not self.canary:
            return False
        self.strikes += 1
        if self.strikes < STRIKES:
            return False
        self.withdraw()
        self.refuse(CANARY_FAILED, message, canary.desired, canary.digest)
        return True

    def refuse(self, reason: str, message: str, desired: DesiredModel | None = None, digest: str = "") -> None:
        """Record why a desired model is not used; ``desired`` None: it could not be read."""
        self.refused, self.refused_digest = desired, digest
        self.reason, self.message = reason[:MAX_REASON], shorten_middle(message, MAX_MESSAGE)

    def retry(self) -> None:
        """Let ``step`` load the refused model again. Its reason is reported until then."""
        self.refused = None

    def forgive(self) -> None:
        """Drop the refusal and its reason."""
        self.refuse("", "")

    def settle(self, desired: DesiredModel) -> None:
        """Record that the present versions are the result of ``desired``: used, or refused.

        It may rename a version that is open already.
        """
        for opened in (self.current, self.canary):
            if opened and _serves(opened, desired):
                opened.desired, opened.version = desired, desired.version
                opened.digest = opened.digest or desired.digest
        self.fingerprint = desired.mark

    def in_use(self) -> ModelInUse:
        """Return the report of the model in use."""
        return ModelInUse(
            digest=self.current.digest if self.current else "",
            version=self.current.version if self.current else "",
            canary_version=self.canary.version if self.canary else "",
            refused=self.refused_digest,
            reason=self.reason,
            message=self.message,
            mark=self.fingerprint,
        )


def _serves(version: OpenedVersion | None, desired: DesiredModel) -> bool:
    """Whether a version is the desired one, by its content and its spec."""
    return version is not None and version.desired is not None and desired.same(version.desired)
