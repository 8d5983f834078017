"""Reasons why the next tier did not answer, as results contain them, and the error with a reason."""

from __future__ import annotations

from enum import StrEnum

from halimede.errors import HalimedeError


class OffloadReason(StrEnum):
    """Why the next tier did not answer. Results contain these values."""

    NO_CLOUD = "no-cloud"
    DEADLINE = "deadline"
    CIRCUIT_OPEN = "circuit-open"
    WINDOW_FULL = "window-full"
    SHED = "shed"
    ERROR = "error"
    #: not sent: over the upload budget, or the answer would arrive too late
    BUDGET = "budget"
    TOO_SLOW = "too-slow"
    #: not sent: it cannot be encoded as the service specifies
    TOO_LARGE = "too-large"
    NO_PICTURE = "no-picture"


#: reasons why the next tier does not take a sample that it could answer otherwise
UNTAKEN = frozenset(
    {
        OffloadReason.NO_CLOUD,
        OffloadReason.DEADLINE,
        OffloadReason.CIRCUIT_OPEN,
        OffloadReason.WINDOW_FULL,
        OffloadReason.SHED,
        OffloadReason.TOO_SLOW,
    }
)
#: those of a next tier that is up, and takes fewer samples than are hard
OVERLOAD = frozenset({OffloadReason.WINDOW_FULL, OffloadReason.SHED, OffloadReason.TOO_SLOW})
#: those of a next tier that is too slow or down: only whether it is up decides
UNANSWERED = frozenset({OffloadReason.DEADLINE, OffloadReason.CIRCUIT_OPEN})


class OffloadError(HalimedeError):
    """The next tier did not answer: the edge's prediction counts. ``detail``: for people; ``sent``: uploaded.

    ``is_up``: a worker of the next tier advertised its load at that time. ``fatal``: so many workers ended while they
    had the sample that no further worker should receive it.
    """

    def __init__(self, reason: OffloadReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.sent = self.fatal = self.is_up = False
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
