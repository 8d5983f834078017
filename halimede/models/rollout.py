"""The rollout of a model: which version answers, which one is tried on a share of the requests, what was refused.

A worker and a server hold one for each of their models. It decides and records. Opening versions, closing those that
leave, and choosing the version of a single request is its owner's work.
"""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeVar

from halimede.messages import ModelInUse
from halimede.models.desired_state import DesiredModel

#: requests that a canary may fail at where the current version does not, until it is withdrawn
STRIKES = 3
#: the reason for which such a canary is refused
CANARY_FAILED = "CanaryFailed"
#: the percentage that makes a version the current one
ALL_PERCENT = 100
#: characters of what is reported
MAX_REASON, MAX_MESSAGE = 256, 4096

#: what leads to a desired model: nothing (it was refused), opening it, giving the canary all requests or another share
#: of them, or ending the canary because the current version is the desired one
Step = Literal["keep", "load", "promote", "share", "withdraw"]


class OpenedVersion(Protocol):
    """What a rollout has to know about an opened version.

    ``desired``: what it was opened for; None: nobody named it. ``version`` and ``digest``: what it is reported as.
    """

    desired: DesiredModel | None
    version: str
    digest: str


V = TypeVar("V", bound=OpenedVersion)


class Rollout(Generic[V]):
    """Moves a model from one opened version to the next. Pure: no clock, no input or output.

    ``percent`` of the requests go to ``canary``, 0 where there is none; all others go to ``current``. ``mark`` names
    the desired state that all this is the result of.
    """

    def __init__(self, current: V | None = None) -> None:
        self.current = current
        self.canary: V | None = None
        self.percent = 0
        #: requests that the canary failed at and the current version did not
        self.strikes = 0
        #: what was refused, and why
        self.refused: DesiredModel | None = None
        self.refused_digest = ""
        self.reason = ""
        self.message = ""
        self.mark = ""

    def step(self, desired: DesiredModel) -> Step:
        """Return what leads from the versions here to the desired one."""
        if _serves(self.current, desired):
            return "withdraw"
        if _serves(self.canary, desired):
            return "promote" if desired.canary_percent >= ALL_PERCENT else "share"
        if self.refused and desired.same(self.refused):
            return "keep"
        return "load"

    def replace(self, new: V) -> list[V]:
        """Make a version, opened just now or the canary, the only one; return those that leave."""
        leaving = [each for each in (self.current, self.canary) if each and each is not new]
        self.current, self.canary, self.percent, self.strikes = new, None, 0, 0
        return leaving

    def try_out(self, new: V, percent: int) -> list[V]:
        """Make a version the canary with a share of the requests, or change that share; return those that leave."""
        if new is self.canary:
            self.percent = percent
            return []
        leaving = self.withdraw()
        self.canary, self.percent = new, percent
        return leaving

    def use(self, new: V, percent: int) -> list[V]:
        """Try a version out, or make it the only one for all requests or where there is none; return those that leave.

        What was refused before is forgotten: it is no longer desired.
        """
        self.forgive()
        if self.current and percent < ALL_PERCENT:
            return self.try_out(new, percent)
        return self.replace(new)

    def withdraw(self) -> list[V]:
        """End the canary, if there is one; return those that leave."""
        leaving = [self.canary] if self.canary else []
        self.canary, self.percent, self.strikes = None, 0, 0
        return leaving

    def strike(self, canary: V, message: str) -> bool:
        """Count a request that only the canary failed at; return whether that ended it.

        After STRIKES of them it is withdrawn and refused with ``message``. A version that is not the canary any more
        is not counted.
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
        """Record why a desired model is not used; ``desired`` None: it could not even be read."""
        self.refused, self.refused_digest = desired, digest
        self.reason, self.message = reason[:MAX_REASON], message[:MAX_MESSAGE]

    def retry(self) -> None:
        """Let ``step`` load again what was refused. Its reason is reported until then."""
        self.refused = None

    def forgive(self) -> None:
        """Forget what was refused, and why."""
        self.refuse("", "")

    def settle(self, desired: DesiredModel) -> None:
        """Record that the versions here are the result of ``desired``: used, or refused.

        It may give a version that is open already another name.
        """
        for each in (self.current, self.canary):
            if each and _serves(each, desired):
                each.desired, each.version = desired, desired.version
                each.digest = each.digest or desired.digest
        self.mark = desired.mark

    def in_use(self) -> ModelInUse:
        """Return what is reported about it."""
        return ModelInUse(
            digest=self.current.digest if self.current else "",
            version=self.current.version if self.current else "",
            canary_version=self.canary.version if self.canary else "",
            refused=self.refused_digest,
            reason=self.reason,
            message=self.message,
            mark=self.mark,
        )


def _serves(version: OpenedVersion | None, desired: DesiredModel) -> bool:
    """Whether a version is the desired one, by its content and by how it is used."""
    return version is not None and version.desired is not None and desired.same(version.desired)
