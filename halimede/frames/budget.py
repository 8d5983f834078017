"""Memory that many may take from, in bytes: whoever finds too little left waits, in the order of coming."""

from __future__ import annotations

import asyncio


class Budget:
    """At most ``limit`` bytes are out at a time; something larger than that is let in when it is alone."""

    def __init__(self, limit: int) -> None:
        self.taken = 0
        self._limit = limit
        self._turn = asyncio.Lock()
        self._given = asyncio.Event()

    def take_now(self, size: int) -> bool:
        """Take ``size`` bytes if there is room and nobody waits for some; return whether there was."""
        if self._turn.locked() or (self.taken and self.taken + size > self._limit):
            return False
        self.taken += size
        return True

    async def take(self, size: int) -> None:
        """Take ``size`` bytes, once there is room for them."""
        async with self._turn:
            while self.taken and self.taken + size > self._limit:
                self._given.clear()
                await self._given.wait()
            self.taken += size

    def give(self, size: int) -> None:
        """Give bytes back; a negative ``size`` takes more without waiting."""
        self.taken -= size
        self._given.set()
