"""Reasons why the next tier did not answer, as results contain them, and ``OffloadError``, which has a reason."""

from __future__ import annotations

from enum import StrEnum

from halimede.errors import HalimedeError


class OffloadReason(StrEnum):
    """Why the next tier did not answer. Results contain these values."""

    #: no worker is online, or the connection to the broker is lost
    NO_CLOUD = "no-cloud"
    #: no reply came in time
    DEADLINE = "deadline"
    #: not sent: the next tier did not answer the requests before
    CIRCUIT_OPEN = "circuit-open"
    #: not sent: as many requests are in flight as the worker may have
    WINDOW_FULL = "window-full"
    #: not sent, or refused as busy: no worker of the next tier has a free slot in time
    SHED = "shed"
    #: the request failed: here, at the broker, or at the next tier
    ERROR = "error"
    #: not sent: over the upload budget
    BUDGET = "budget"
    #: not sent: the answer would arrive too late, or the connection to the broker is full
    TOO_SLOW = "too-slow"
    #: not sent: it cannot be encoded small enough
    TOO_LARGE = "too-large"
    #: not sent: it is no picture, so it cannot be encoded as the service specifies
    NO_PICTURE = "no-picture"


#: reasons of a next tier that is up, and takes fewer samples than are hard
OVERLOAD = frozenset({OffloadReason.WINDOW_FULL, OffloadReason.SHED, OffloadReason.TOO_SLOW})
#: reasons of a next tier that is too slow (``OffloadError.is_up`` is true) or down
UNANSWERED = frozenset({OffloadReason.DEADLINE, OffloadReason.CIRCUIT_OPEN})
#: reasons why the next tier did not take a sample that it could answer at another time
UNTAKEN = OVERLOAD | UNANSWERED | {OffloadReason.NO_CLOUD}


class OffloadError(HalimedeError):
    """The next tier did not answer a sample, so the edge's prediction counts.

    Attributes:
        reason: as results contain it.
        detail: more about it, for people; may be empty.
        sent: the sample was uploaded.
        fatal: so many workers ended while they had the sample that no further worker should receive it.
        is_up: a worker of the next tier advertised its load at that time.

    """

    def __init__(self, reason: OffloadReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.sent = self.fatal = self.is_up = False
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
