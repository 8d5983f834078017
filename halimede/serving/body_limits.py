"""Bodies of requests, bounded: each by itself, and all that a server has at a time.

What is compressed counts as it unfolds: a few bytes may become as many as one request may have.
"""

from __future__ import annotations

from aiohttp import web

from halimede.serving.errors import ModelUnavailableError, TooMuchError

#: bytes of all that are being read, or wait for their answers
MAX_READING = 512 * 1024 * 1024


class BodyLimits:
    """Reads bodies of up to ``most`` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0

    async def read(self, request: web.Request) -> tuple[bytes, int]:
        """Return a body, and what to ``give`` back once it is answered. Raises ServeError."""
        size = request.content_length
        if size is not None and size > self._most:
            raise TooMuchError(f"a body of {size} bytes is more than {self._most}")
        if "Content-Encoding" in request.headers:
            return await self._unfolded(request)
        taken = self._take(self._most if size is None else size)
        try:
            return await request.read(), taken
        except BaseException:
            self.give(taken)
            raise

    def give(self, taken: int) -> None:
        """Somebody else may have the room."""
        self._held -= taken

    def _take(self, size: int) -> int:
        if self._held + size > MAX_READING:
            raise ModelUnavailableError("too many large requests at a time: try again later")
        self._held += size
        return size

    async def _unfolded(self, request: web.Request) -> tuple[bytes, int]:
        parts, taken = [], 0
        try:
            while part := await request.content.readany():
                taken += self._take(len(part))
                if taken > self._most:
                    raise TooMuchError(f"a body of more than {self._most} bytes comes out of it")
                parts.append(part)
            return b"".join(parts), taken
        except BaseException:
            self.give(taken)
            raise
