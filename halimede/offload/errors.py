"""Reasons why the next tier did not answer, as results contain them, and the error with a reason."""

from __future__ import annotations

from enum import StrEnum

from halimede.errors import HalimedeError


class OffloadReason(StrEnum):
    """Why the next tier did not answer. Results contain these words."""

    NO_CLOUD = "no-cloud"
    DEADLINE = "deadline"
    CIRCUIT_OPEN = "circuit-open"
    WINDOW_FULL = "window-full"
    SHED = "shed"
    ERROR = "error"
    #: not sent at all: over the upload budget, or an answer would not be back in time
    BUDGET = "budget"
    TOO_SLOW = "too-slow"
    #: not sent at all: it cannot be written as the service wants what goes up
    TOO_LARGE = "too-large"
    NO_PICTURE = "no-picture"


class OffloadError(HalimedeError):
    """The next tier did not answer, so the edge's prediction stands. ``detail``: for people; ``sent``: it was uploaded.

    ``fatal``: so many workers ended while they had it that it should get to no other one.
    """

    def __init__(self, reason: OffloadReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.sent = self.fatal = False
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
