"""One file on its way, without a clock or a bus: what to ask for now, what has come, what is to be asked for again.

Pieces come in any order and any number of times; they are given on in order, once. What is asked for or waits to be
given on is bounded, so a slow reader holds the source back and not the memory.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from halimede.blobs.flow_control import MOST, FlowControl

#: pieces that may wait to be given on, beside those in flight
AHEAD = 4


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
