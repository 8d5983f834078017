"""Who is served next: each asker in turn, however much one of them asks for. Bounded on every side."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

#: questions of one asker, and askers, that may wait
EACH, ASKERS = 32, 512


class FairQueue(Generic[T]):
    """Questions that wait. The same one (asker, key) waits once: asked again, it keeps its place.

    Attributes:
        dropped: questions that found no place. Whoever asked hears nothing, and asks again more slowly.

    """

    def __init__(self, *, each: int = EACH, askers: int = ASKERS) -> None:
        self.dropped = 0
        self._each = each
        self._askers = askers
        self._waiting: dict[str, OrderedDict[Hashable, T]] = {}
        self._order: deque[str] = deque()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, asker: str, key: Hashable, question: T) -> bool:
        """Queue a question; return whether it has a place."""
        own = self._waiting.get(asker)
        if own is None:
            if len(self._waiting) >= self._askers:
                self.dropped += 1
                return False
            own = self._waiting[asker] = OrderedDict()
            self._order.append(asker)
        if key not in own and len(own) >= self._each:
            self.dropped += 1
            return False
        own[key] = question
        self._some.set()
        return True

    async def take(self) -> T:
        """Return the next question, of the asker whose turn it is."""
        while not self._order:
            self._some.clear()
            await self._some.wait()
        asker = self._order.popleft()
        own = self._waiting[asker]
        _, question = own.popitem(last=False)
        if own:
            self._order.append(asker)
        else:
            del self._waiting[asker]
        return question
