"""What a server counts so that it can leave: the requests that it has not answered yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class InflightRequests:
    """Requests under way, and whether the server is leaving.

    Attributes:
        leaving: whether each connection is to end with its next answer.

    """

    def __init__(self) -> None:
        self.leaving = False
        self._count = 0
        self._idle = asyncio.Event()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count one request while it is answered."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    async def drain(self, timeout_s: float) -> bool:
        """Let what is under way be answered, and say whether all was in time.

        Call it while connections still stand: aiohttp reads nothing more of a request once it begins to end them.
        """
        self.leaving = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._count:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True
