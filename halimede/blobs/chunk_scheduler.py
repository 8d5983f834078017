"""One file on its way, without a clock or a bus: what to ask for now, what has come, what is to be asked for again.

Pieces come in any order and any number of times; they are given on in order, once. What is asked for or waits to be
given on is bounded, so a slow reader holds the source back and not the memory.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

#: pieces that may wait to be given on, beside those in flight
AHEAD = 4
#: bytes of one piece
SMALLEST, FIRST, LARGEST = 16 * 1024, 64 * 1024, 1024 * 1024
#: pieces in flight
MOST = 16
#: seconds from question to answer: below, more is asked for; above, less
FAST, SLOW = 0.1, 0.75
#: seconds until a piece counts as lost
SOONEST, FIRST_WAIT, LATEST = 1.0, 4.0, 20.0


class FlowControl:
    """Decides from replies and silence: pieces in flight, bytes of each, and how long to wait for one.

    Many small pieces in flight fill a fast line as well as few large ones, but a slow line must not be filled for
    seconds: what a node has to say itself waits behind it.
    """

    def __init__(self) -> None:
        self.window = 2
        self.length = FIRST
        self.wait_s = FIRST_WAIT
        self._mean: float | None = None
        self._deviation = 0.0

    def came(self, seconds: float) -> None:
        """Take note of a piece that came so long after it was asked for."""
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

    def lost(self) -> None:
        """Take note of a piece that did not come."""
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
    """A piece to ask for. ``again``: it was lost once."""

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
        #: what has been given on
        self.given = offset
        #: how often in a row pieces were late, and nothing came
        self.misses = 0
        self._pace = pace or FlowControl()
        self._next = offset
        self._lost: list[tuple[int, int]] = []
        self._out: dict[int, _Out] = {}
        self._here: dict[int, memoryview] = {}

    @property
    def done(self) -> bool:
        """Whether all has been given on."""
        return self.given >= self.size

    def ask(self, now: float) -> list[ChunkRequest]:
        """Return what is to be asked for now; it counts as asked for."""
        found = []
        while len(self._out) < self._pace.window:
            if self._lost:
                asked = ChunkRequest(*heapq.heappop(self._lost), again=True)
            elif self._next < self.size and len(self._out) + len(self._here) < MOST + AHEAD:
                asked = ChunkRequest(self._next, min(self._pace.length, self.size - self._next))
                self._next += asked.length
            else:
                break
            self._out[asked.offset] = _Out(asked, now, now + self._pace.wait_s)
            found.append(asked)
        return found

    def came(self, offset: int, data: memoryview, now: float) -> bool:
        """Take a piece; return whether it was asked for and is not here yet. A shorter one is asked for in part."""
        out = self._out.get(offset)
        asked = out.ask.length if out else dict(self._lost).get(offset, 0)
        if not 0 < len(data) <= asked:
            return False
        if out:
            del self._out[offset]
            if not out.ask.again:  # else it may answer either question
                self._pace.came(now - out.sent)
        else:  # it was given up too soon
            self._lost.remove((offset, asked))
            heapq.heapify(self._lost)
        self._here[offset] = data
        self.misses = 0
        if len(data) < asked:
            heapq.heappush(self._lost, (offset + len(data), asked - len(data)))
        return True

    def give(self) -> list[memoryview]:
        """Return the pieces that are next, in order; they count as given on."""
        found = []
        while (data := self._here.pop(self.given, None)) is not None:
            found.append(data)
            self.given += len(data)
        return found

    def expire(self, now: float) -> int:
        """Count as lost what did not come in time; return how much."""
        late = [out.ask for out in self._out.values() if out.deadline <= now]
        for asked in late:
            del self._out[asked.offset]
            heapq.heappush(self._lost, (asked.offset, asked.length))
        if late:
            self.misses += 1
            self._pace.lost()
        return len(late)

    def another(self) -> None:
        """Go on with another source: what was asked for is asked for again, at a pace that has to be found anew."""
        for out in self._out.values():
            heapq.heappush(self._lost, (out.ask.offset, out.ask.length))
        self._out.clear()
        self._pace = FlowControl()
        self.misses = 0

    def wake(self, now: float) -> float:
        """Return how many seconds there are until something has to be asked for again."""
        return max(0.0, min((out.deadline for out in self._out.values()), default=now) - now)
