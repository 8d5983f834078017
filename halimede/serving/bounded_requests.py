"""Bounds requests: the body of each, all bodies at a time, and what is under way when the server leaves.

What is compressed counts as it unfolds: a few bytes may become as many as one request may have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from halimede.serving import rest_codec
from halimede.serving.errors import ModelUnavailableError, ServeError, TooMuchError

#: bytes of all that are being read, or wait for their answers
MAX_READING = 512 * 1024 * 1024

_encoder = msgspec.json.Encoder()


def json_response(value: object) -> web.Response:
    """Return a value as JSON."""
    return web.Response(body=_encoder.encode(value), content_type=rest_codec.JSON)


def refuse(status: int, text: str) -> web.Response:
    """Return a refusal as the protocol has it."""
    return web.Response(status=status, body=rest_codec.error(text), content_type=rest_codec.JSON)


def tensor_response(body: bytes, head: int, status: int = 200) -> web.Response:
    """Return an answer whose first ``head`` bytes are JSON; 0: all of it."""
    if not head:
        return web.Response(status=status, body=body, content_type=rest_codec.JSON)
    headers = {rest_codec.HEADER_LENGTH: str(head), "Content-Type": rest_codec.BINARY}
    return web.Response(status=status, body=body, headers=headers)


async def live(_: web.Request) -> web.Response:
    """Answer that the server runs."""
    return json_response({"live": True})


class BoundedRequests:
    """Answers requests with bodies of up to ``most`` bytes, and knows which are not answered yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._count = 0
        self._leaving = False
        self._idle = asyncio.Event()

    async def answer(
        self, request: web.Request, infer: Callable[[web.Request, bytes], Awaitable[web.Response]]
    ) -> web.Response:
        """Read a request's body and return what ``infer`` makes of both; a ServeError becomes a refusal."""
        taken = 0
        self._count += 1
        try:
            body, taken = await self._read(request)
            answer = await infer(request, body)
        except ServeError as error:
            answer = refuse(error.status, str(error))
        finally:
            self._held -= taken
            self._count -= 1
            if not self._count:
                self._idle.set()
        if self._leaving:
            answer.force_close()
        return answer

    async def drain(self, timeout_s: float) -> bool:
        """Answer what is under way, and let each connection end with it; return whether all was answered in time.

        Call it while connections still stand: aiohttp reads nothing more of a request once it begins to end them.
        """
        self._leaving = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._count:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _read(self, request: web.Request) -> tuple[bytes, int]:
        """Return a body, and the bytes to give back once it is answered. Raises ServeError."""
        size = request.content_length
        if size is not None and size > self._most:
            raise TooMuchError(f"a body of {size} bytes is more than {self._most}")
        if "Content-Encoding" in request.headers:
            return await self._unfolded(request)
        taken = self._take(self._most if size is None else size)
        try:
            return await request.read(), taken
        except BaseException:
            self._held -= taken
            raise

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
            self._held -= taken
            raise
