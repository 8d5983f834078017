"""Schedules the requests for the pieces of one file: new ones, received ones, lost ones. No clock, no bus.

Pieces may arrive in any order and repeatedly; each is passed on once, in order. Requested and waiting pieces are
bounded, so a slow reader slows the source down and does not fill the memory.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

#: pieces that may wait to be passed on, in addition to those in flight
AHEAD = 4
#: bytes of one piece
SMALLEST, FIRST, LARGEST = 16 * 1024, 64 * 1024, 1024 * 1024
#: pieces in flight
MOST = 16
#: seconds from request to reply: below the first, request more; above the second, less
FAST, SLOW = 0.1, 0.75
#: seconds until a piece counts as lost: least, initial, and most
SOONEST, FIRST_WAIT, LATEST = 1.0, 4.0, 20.0


class FlowControl:
    """Adapts to replies and losses: the pieces in flight, the bytes of each, and the timeout of one.

    Many small pieces in flight fill a fast link as well as few large ones, but a slow link must not be filled for
    seconds, because the node's own messages wait behind them.
    """

    def __init__(self) -> None:
        self.window = 2
        self.length = FIRST
        self.wait_s = FIRST_WAIT
        self._mean: float | None = None
        self._deviation = 0.0

    def record_arrival(self, seconds: float) -> None:
        """Record that a piece arrived so many seconds after its request."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
            self._mean += (seconds - self._mean) / 8
        self.wait_s = min(LATEST, max(SOONEST, self._mean + 8 * self._deviation))
        if seconds <= FAST:
            self._more()
        elif seconds >= SLOW:
            self._less()

    def record_loss(self) -> None:
        """Record that a piece was lost."""
        self.wait_s = min(LATEST, self.wait_s * 2)
        self._less()

    def _more(self) -> None:
        if self.window < MOST:
            self.window += 1
        else:
            self.length = min(LARGEST, self.length * 2)

    def _less(self) -> None:
        if self.length > FIRST:
            self.length //= 2
        elif self.window > 1:
            self.window -= 1
        else:
            self.length = max(SMALLEST, self.length // 2)


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A piece to request. ``again``: it was lost once."""

    offset: int
    length: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Out:
    ask: ChunkRequest
    sent: float
    deadline: float


class ChunkScheduler:
    """The pieces of a file from ``offset`` on. Times are seconds of one monotonic clock."""

    def __init__(self, offset: int, size: int, pace: FlowControl | None = None) -> None:
        self.size = size
        #: bytes that have been passed on
        self.passed_on = offset
        #: consecutive timeouts without any piece
        self.misses = 0
        self._pace = pace or FlowControl()
        self._next = offset
        self._lost: list[tuple[int, int]] = []
        self._out: dict[int, _Out] = {}
        self._here: dict[int, memoryview] = {}

    @property
    def done(self) -> bool:
        """Whether the whole file has been passed on."""
        return self.passed_on >= self.size

    def ask(self, now: float) -> list[ChunkRequest]:
        """Return the pieces to request now; they count as requested."""
        requests = []
        while len(self._out) < self._pace.window:
            if self._lost:
                request = ChunkRequest(*heapq.heappop(self._lost), again=True)
            elif self._next < self.size and len(self._out) + len(self._here) < MOST + AHEAD:
                request = ChunkRequest(self._next, min(self._pace.length, self.size - self._next))
                self._next += request.length
            else:
                break
            self._out[request.offset] = _Out(request, now, now + self._pace.wait_s)
            requests.append(request)
        return requests

    def add(self, offset: int, data: memoryview, now: float) -> bool:
        """Add a piece; return whether it was requested and is new. The rest of a shorter one is requested again."""
        out = self._out.get(offset)
        length = out.ask.length if out else dict(self._lost).get(offset, 0)
        if not 0 < len(data) <= length:
            return False
        if out:
            del self._out[offset]
            if not out.ask.again:  # otherwise it may be the reply to either request
                self._pace.record_arrival(now - out.sent)
        else:  # its timeout was too short
            self._lost.remove((offset, length))
            heapq.heapify(self._lost)
        self._here[offset] = data
        self.misses = 0
        if len(data) < length:
            heapq.heappush(self._lost, (offset + len(data), length - len(data)))
        return True

    def give(self) -> list[memoryview]:
        """Return the next pieces in order; they count as passed on."""
        pieces = []
        while (data := self._here.pop(self.passed_on, None)) is not None:
            pieces.append(data)
            self.passed_on += len(data)
        return pieces

    def expire(self, now: float) -> int:
        """Count pieces that did not arrive in time as lost; return their number."""
        late = [out.ask for out in self._out.values() if out.deadline <= now]
        for request in late:
            del self._out[request.offset]
            heapq.heappush(self._lost, (request.offset, request.length))
        if late:
            self.misses += 1
            self._pace.record_loss()
        return len(late)

    def switch_source(self) -> None:
        """Continue with another source: request the pieces in flight again, and adapt from the start."""
        for out in self._out.values():
            heapq.heappush(self._lost, (out.ask.offset, out.ask.length))
        self._out.clear()
        self._pace = FlowControl()
        self.misses = 0

    def wake(self, now: float) -> float:
        """Return the seconds until a request must be repeated."""
        return max(0.0, min((out.deadline for out in self._out.values()), default=now) - now)
