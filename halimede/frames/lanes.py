"""Those who take batches off one queue, side by side: each is one model call at a time.

One of them looks at the queue at a time, and rouses the next one if it leaves anything. So a sample that arrives wakes
one lane, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Lanes:
    """Who has nothing to do, and who is about to look. A lane is known by its event, set when something arrives."""

    def __init__(self) -> None:
        self._idle: deque[asyncio.Event] = deque()
        self._looking: asyncio.Event | None = None

    def rouse(self) -> None:
        """Something has arrived: let one lane look, if none is about to."""
        if self._looking is None and self._idle:
            self._looking = self._idle.popleft()
        if self._looking:
            self._looking.set()

    async def wait(self, lane: asyncio.Event) -> None:
        """Wait to be roused."""
        lane.clear()
        self._idle.append(lane)
        await lane.wait()

    def look(self, lane: asyncio.Event) -> None:
        """A lane is about to look, roused or not: what arrives meanwhile is its own, unless another one is about to."""
        self._looking = self._looking or lane

    def looked(self, lane: asyncio.Event, *, left: bool) -> None:
        """A lane has taken its batch. ``left``: not everything."""
        if self._looking is lane:
            self._looking = None
            if left:
                self.rouse()
