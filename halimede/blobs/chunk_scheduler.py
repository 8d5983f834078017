"""Schedules the requests for the pieces of one file: new ones, received ones, lost ones. No clock, no bus.

``BlobDownload`` asks it what to request, and tells it what has arrived. Pieces may arrive in any order and repeatedly;
each is passed on once, in order. Requested and waiting pieces are bounded, so a slow reader slows the source down and
does not fill the memory.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

#: most received pieces that wait for an earlier piece, in addition to those in flight
MAX_WAITING = 4
#: bytes of one piece: least, initial, and most
MIN_BYTES, FIRST_BYTES, MAX_BYTES = 16 * 1024, 64 * 1024, 1024 * 1024
#: most pieces in flight, and most of them together with the waiting ones
MAX_IN_FLIGHT = 16
MAX_PIECES = MAX_IN_FLIGHT + MAX_WAITING
#: seconds from request to reply: below the first, request more; above the second, less
FAST_S, SLOW_S = 0.1, 0.75
#: seconds until a piece counts as lost: least, initial, and most
MIN_TIMEOUT_S, FIRST_TIMEOUT_S, MAX_TIMEOUT_S = 1.0, 4.0, 20.0


class FlowControl:
    """Adapts to replies and losses: most pieces in flight (``window``), bytes of a piece (``length``), its timeout.

    Many small pieces in flight fill a fast link as well as few large ones. But a slow link must not be filled for
    seconds, because the node's own messages wait behind the pieces.
    """

    def __init__(self) -> None:
        self.window = 2
        self.length = FIRST_BYTES
        #: seconds after which a piece counts as lost
        self.timeout_s = FIRST_TIMEOUT_S
        self._mean: float | None = None
        self._deviation = 0.0

    def record_arrival(self, reply_s: float) -> None:
        """Record that a piece arrived ``reply_s`` seconds after its request."""
        if self._mean is None:
            self._mean, self._deviation = reply_s, reply_s / 2
        else:
            self._deviation += (abs(reply_s - self._mean) - self._deviation) / 4
            self._mean += (reply_s - self._mean) / 8
        # as TCP does (RFC 6298), with twice its margin
        self.timeout_s = min(MAX_TIMEOUT_S, max(MIN_TIMEOUT_S, self._mean + 8 * self._deviation))
        if reply_s <= FAST_S:
            self._increase()
        elif reply_s >= SLOW_S:
            self._decrease()

    def record_loss(self) -> None:
        """Record that a piece was lost: wait longer, and request less."""
        self.timeout_s = min(MAX_TIMEOUT_S, self.timeout_s * 2)
        self._decrease()

    def _increase(self) -> None:
        """Request more: more pieces, then larger ones."""
        if self.window < MAX_IN_FLIGHT:
            self.window += 1
        else:
            self.length = min(MAX_BYTES, self.length * 2)

    def _decrease(self) -> None:
        """Request less: smaller pieces down to the initial size, then fewer, then smaller ones still."""
        if self.length > FIRST_BYTES:
            self.length //= 2
        elif self.window > 1:
            self.window -= 1
        else:
            self.length = max(MIN_BYTES, self.length // 2)


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A piece to request: ``length`` bytes from the position ``offset`` on. ``again``: it was lost before."""

    offset: int
    length: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class _PieceInFlight:
    """A requested piece. ``sent``, ``deadline``: the times of its request, and from when on it counts as lost."""

    request: ChunkRequest
    sent: float
    deadline: float


class ChunkScheduler:
    """The pieces of a file of ``size`` bytes from ``offset`` on. Times are seconds of one monotonic clock."""

    def __init__(self, offset: int, size: int) -> None:
        self.size = size
        #: bytes that have been passed on
        self.passed_on = offset
        #: consecutive timeouts without any piece
        self.misses = 0
        self._flow_control = FlowControl()
        self._next_offset = offset
        #: lost pieces: position and bytes, a heap
        self._lost: list[tuple[int, int]] = []
        self._in_flight: dict[int, _PieceInFlight] = {}
        self._received: dict[int, memoryview] = {}

    @property
    def done(self) -> bool:
        """Whether the whole file has been received and passed on."""
        return self.passed_on >= self.size

    def next_requests(self, now: float) -> list[ChunkRequest]:
        """Return the pieces to request now; they count as requested."""
        pieces = []
        while len(self._in_flight) < self._flow_control.window:
            if self._lost:
                piece = ChunkRequest(*heapq.heappop(self._lost), again=True)
            elif self._next_offset < self.size and len(self._in_flight) + len(self._received) < MAX_PIECES:
                piece = ChunkRequest(self._next_offset, min(self._flow_control.length, self.size - self._next_offset))
                self._next_offset += piece.length
            else:
                break
            self._in_flight[piece.offset] = _PieceInFlight(piece, now, now + self._flow_control.timeout_s)
            pieces.append(piece)
        return pieces

    def add(self, offset: int, data: memoryview, now: float) -> bool:
        """Add a piece at ``offset``; return whether it was requested and is new.

        What lacks at its end is requested again.
        """
        in_flight = self._in_flight.get(offset)
        length = in_flight.request.length if in_flight else dict(self._lost).get(offset, 0)
        if not 0 < len(data) <= length:
            return False
        if in_flight:
            del self._in_flight[offset]
            if not in_flight.request.again:  # otherwise it may be the reply to either request
                self._flow_control.record_arrival(now - in_flight.sent)
        else:  # its timeout was too short
            self._lost.remove((offset, length))
            heapq.heapify(self._lost)
        self._received[offset] = data
        self.misses = 0
        if len(data) < length:
            heapq.heappush(self._lost, (offset + len(data), length - len(data)))
        return True

    def take_ready(self) -> list[memoryview]:
        """Return the next pieces in their order, as far as they have arrived; they count as passed on."""
        pieces = []
        while (data := self._received.pop(self.passed_on, None)) is not None:
            pieces.append(data)
            self.passed_on += len(data)
        return pieces

    def expire(self, now: float) -> int:
        """Count the pieces that did not arrive in time as lost; return their number."""
        lost = [piece.request for piece in self._in_flight.values() if piece.deadline <= now]
        for request in lost:
            del self._in_flight[request.offset]
            heapq.heappush(self._lost, (request.offset, request.length))
        if lost:
            self.misses += 1
            self._flow_control.record_loss()
        return len(lost)

    def switch_source(self) -> None:
        """Continue with another source: request the pieces in flight again, and adapt from the start."""
        for piece in self._in_flight.values():
            heapq.heappush(self._lost, (piece.request.offset, piece.request.length))
        self._in_flight.clear()
        self._flow_control = FlowControl()
        self.misses = 0

    def seconds_to_timeout(self, now: float) -> float:
        """Return the seconds until the next piece in flight times out; 0 without one."""
        return max(0.0, min((piece.deadline for piece in self._in_flight.values()), default=now) - now)
