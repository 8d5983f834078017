"""The rollout of a model: the current version, the canary on a part of the requests, and the model that was refused.

The canary is a new version on trial. A worker or a server has one ``Rollout`` for each of its models. The rollout
decides and records; its owner opens and closes versions, and chooses the version that answers a request.
"""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeVar

from halimede.errors import shorten_middle
from halimede.messages import ModelInUse
from halimede.models.desired_state import DesiredModel

#: number of strikes (requests at which only the canary failed) after which the canary is withdrawn
MAX_STRIKES = 3
#: the reason with which a canary is refused after that
CANARY_FAILED = "CanaryFailed"
#: the percentage that makes a version the current one
ALL_PERCENT = 100
#: most characters of a reported reason and message
MAX_REASON, MAX_MESSAGE = 256, 4096

#: the step to a desired model. keep: do nothing, because the model was refused. load: open it. promote: give the canary
#: all requests. share: give the canary another percentage. withdraw: end the canary, if there is one, because the
#: current version is the desired one
Step = Literal["keep", "load", "promote", "share", "withdraw"]


class OpenedVersion(Protocol):
    """An opened version of a model, as far as a rollout uses it.

    Attributes:
        desired: the desired model that it was opened for; None: another origin, such as a setting.
        version: as reported; may be empty.
        digest: SHA-256 of the content, as reported; may be empty.

    """

    desired: DesiredModel | None
    version: str
    digest: str


V = TypeVar("V", bound=OpenedVersion)


class Rollout(Generic[V]):
    """Moves a model from one opened version to the next. Pure: no clock, no input or output.

    Its owner calls ``step`` with the desired model, opens a version if that says so, calls ``use``, ``replace``,
    ``withdraw`` or ``refuse``, closes the versions that they return, and then calls ``settle``.

    Attributes:
        current: the version that answers requests; None: no version is open.
        canary: the version on trial; None: there is none.
        percent: of the requests that go to the canary; 0 without one.
        strikes: requests at which the canary failed and the current version did not.
        refused: the desired model that was refused; None: none, its spec could not be read, or ``retry`` was called.
        refused_digest: of the refused model's content; empty: not known.
        reason: why a model was refused, in one word; empty: none was.
        message: why a model was refused, in a sentence; empty: none was.
        fingerprint: of the desired model whose rollout has ended last; empty: of none.

    """

    def __init__(self, current: V | None = None) -> None:
        self.current = current
        self.canary: V | None = None
        self.percent = 0
        self.strikes = 0
        self.refused: DesiredModel | None = None
        self.refused_digest = ""
        self.reason = ""
        self.message = ""
        self.fingerprint = ""

    def step(self, desired: DesiredModel) -> Step:
        """Return the step from the present versions to the desired one."""
        if _has_opened(self.current, desired):
            return "withdraw"
        if _has_opened(self.canary, desired):
            return "promote" if desired.canary_percent >= ALL_PERCENT else "share"
        if self.refused and desired.matches(self.refused):
            return "keep"
        return "load"

    def replace(self, new: V) -> list[V]:
        """Make a version (a new one or the canary) the only one; return the versions to close."""
        to_close = [version for version in (self.current, self.canary) if version and version is not new]
        self.current, self.canary, self.percent, self.strikes = new, None, 0, 0
        return to_close

    def try_out(self, new: V, percent: int) -> list[V]:
        """Make a version the canary for ``percent`` of the requests, or change ``percent``; return those to close."""
        if new is self.canary:
            self.percent = percent
            return []
        to_close = self.withdraw()
        self.canary, self.percent = new, percent
        return to_close

    def use(self, new: V, percent: int) -> list[V]:
        """Make a version the canary, or the only one for 100 percent or if none is open; return the versions to close.

        An earlier refusal is dropped, because its model is no longer desired.
        """
        self.forgive()
        if self.current and percent < ALL_PERCENT:
            return self.try_out(new, percent)
        return self.replace(new)

    def withdraw(self) -> list[V]:
        """End the canary, if there is one; return the versions to close."""
        to_close = [self.canary] if self.canary else []
        self.canary, self.percent, self.strikes = None, 0, 0
        return to_close

    def strike(self, canary: V, message: str) -> bool:
        """Count a request at which only ``canary`` failed; return whether the canary was withdrawn for it.

        After MAX_STRIKES of these requests it is withdrawn and refused with ``message``; the caller closes it then. A
        strike against a version that is no longer the canary does not count.
        """
        if canary is not self.canary:
            return False
        self.strikes += 1
        if self.strikes < MAX_STRIKES:
            return False
        self.withdraw()
        self.refuse(CANARY_FAILED, message, canary.desired, canary.digest)
        return True

    def refuse(self, reason: str, message: str, desired: DesiredModel | None = None, digest: str = "") -> None:
        """Record why a desired model is not used. ``desired``: the model; None: its spec could not be read.

        ``digest``: of its content, for reports. Long texts are shortened.
        """
        self.refused, self.refused_digest = desired, digest
        self.reason, self.message = reason[:MAX_REASON], shorten_middle(message, MAX_MESSAGE)

    def retry(self) -> None:
        """Let ``step`` load the refused model again. Its reason is reported until then."""
        self.refused = None

    def forgive(self) -> None:
        """Drop the refusal and its reason."""
        self.refuse("", "")

    def settle(self, desired: DesiredModel) -> None:
        """Record that the rollout of ``desired`` has ended: the model is in use, or refused.

        An open version of the same content takes over the version and, if it has none, the digest of ``desired``.
        """
        for version in (self.current, self.canary):
            if version and _has_opened(version, desired):
                version.desired, version.version = desired, desired.version
                version.digest = version.digest or desired.digest
        self.fingerprint = desired.fingerprint

    def in_use(self) -> ModelInUse:
        """Return the message with the present versions, the refusal and the fingerprint."""
        return ModelInUse(
            digest=self.current.digest if self.current else "",
            version=self.current.version if self.current else "",
            canary_version=self.canary.version if self.canary else "",
            refused=self.refused_digest,
            reason=self.reason,
            message=self.message,
            mark=self.fingerprint,
        )


def _has_opened(version: OpenedVersion | None, desired: DesiredModel) -> bool:
    """Whether a version was opened for a model that matches the desired one."""
    return version is not None and version.desired is not None and desired.matches(version.desired)
