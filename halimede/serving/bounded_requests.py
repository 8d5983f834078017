"""Bounds requests over REST: the size of each body, the time of its arrival, and the requests at the server's end.

A ``RequestBudget`` bounds all bodies together. A compressed body counts with its decompressed bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from halimede.errors import shorten_middle
from halimede.serving import rest_codec
from halimede.serving.errors import OverloadedError, ServeError, SlowRequestError, TooMuchError, UnreadableBodyError
from halimede.serving.request_budget import ARRIVAL_S, SMALL, Charge, RequestBudget

#: characters of a client's ``Content-Encoding`` that an error shows
MAX_ENCODING = 32
#: seconds after which a client that was refused because of load may retry
RETRY_S = 1

_encoder = msgspec.json.Encoder()


def json_response(value: object) -> web.Response:
    """Return a response with a value as JSON."""
    return web.Response(body=_encoder.encode(value), content_type=rest_codec.JSON)


def refuse(status: int, text: str) -> web.Response:
    """Return a response that refuses a request, in the protocol's form: ``{"error": text}``."""
    return web.Response(status=status, body=rest_codec.error(text), content_type=rest_codec.JSON)


def tensor_response(body: bytes, head: int, status: int = 200) -> web.Response:
    """Return a response whose first ``head`` bytes are JSON, and the others tensors; 0: it is only JSON."""
    if not head:
        return web.Response(status=status, body=body, content_type=rest_codec.JSON)
    headers = {rest_codec.HEADER_LENGTH: str(head), "Content-Type": rest_codec.BINARY}
    return web.Response(status=status, body=body, headers=headers)


async def answer_live(_: web.Request) -> web.Response:
    """Answer that the server runs."""
    return json_response({"live": True})


class BoundedRequests:
    """Answers requests with bodies of up to ``most`` bytes, and counts open ones. Base of a server's REST handlers.

    ``budget``: bounds all requests together; None: a new one.
    """

    def __init__(self, most: int, budget: RequestBudget | None = None) -> None:
        self.budget = budget or RequestBudget(most)
        self._most = most
        self._count = 0
        self._leaving = False
        self._idle = asyncio.Event()

    async def answer(
        self, request: web.Request, infer: Callable[[web.Request, bytes, Charge], Awaitable[web.Response]]
    ) -> web.StreamResponse:
        """Read a request's body and return the response of ``infer``; a ServeError becomes a refusal.

        ``infer`` takes the request, its body, and its charge, to which it adds the memory that it needs.
        """
        answer: web.StreamResponse
        self._count += 1
        try:
            with Charge(self.budget) as charge:
                answer = response = await infer(request, await self._read(request, charge), charge)
                if isinstance(response.body, bytes) and len(response.body) > SMALL:
                    return await self._send_large(request, response, response.body)
        except ServeError as error:
            answer = refuse(error.status, str(error))
            if isinstance(error, OverloadedError):
                answer.headers["Retry-After"] = str(RETRY_S)
            if isinstance(error, UnreadableBodyError):
                answer.force_close()
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()
        if self._leaving:
            answer.force_close()
        return answer

    async def drain(self, timeout_s: float) -> bool:
        """Wait until open requests are answered; return whether that took at most ``timeout_s`` seconds.

        From now on each answer closes its connection. Call it before the server closes its connections: after that
        aiohttp reads no more of their requests.
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

    async def _send_large(self, request: web.Request, answer: web.Response, body: bytes) -> web.StreamResponse:
        """Send a large answer; return it without its body, because an idle connection keeps its last answer.

        A client that does not read it within ARRIVAL_S is disconnected.
        """
        sent = web.StreamResponse(status=answer.status, headers=answer.headers)
        sent.content_length = len(body)
        if self._leaving:
            sent.force_close()
        try:
            async with asyncio.timeout(ARRIVAL_S):
                await sent.prepare(request)
                await sent.write(body)
                await sent.write_eof()
        except TimeoutError:
            if request.transport:
                request.transport.abort()  # the client did not read it
        return sent

    async def _read(self, request: web.Request, charge: Charge) -> bytes:
        """Return a request's body, decompressed. Raises ServeError if it is too large, too slow or unreadable."""
        size = request.content_length
        if size is not None and size > self._most:
            raise TooMuchError(f"a body of {size} bytes is more than {self._most}")
        has_unknown_size = size is None or "Content-Encoding" in request.headers
        if not has_unknown_size and request.content.is_eof():  # it has arrived completely, as most do
            charge.take(size or 0)
            return request.content.read_nowait()
        try:
            async with asyncio.timeout(ARRIVAL_S):
                if has_unknown_size:
                    return await self._read_unknown_size(request, charge)
                charge.take(size or 0)
                return await request.content.read()  # a request's own read would keep it while the connection idles
        except TimeoutError:
            raise SlowRequestError(f"the body has not arrived within {ARRIVAL_S:g} s") from None
        except web.RequestPayloadError:
            encoding = shorten_middle(request.headers.get("Content-Encoding") or "HTTP", MAX_ENCODING)
            request.content.feed_eof()  # aiohttp would read on, and log the same error with its traceback
            fix = f"it is not valid {encoding}: correct it, or the header Content-Encoding"
            raise UnreadableBodyError(f"the body cannot be read: {fix}") from None

    async def _read_unknown_size(self, request: web.Request, charge: Charge) -> bytes:
        """Return a body whose size is not known before it has arrived."""
        parts, size = [], 0
        while part := await request.content.readany():
            size += len(part)
            if size > self._most:
                raise TooMuchError(f"a body of more than {self._most} bytes comes out of it")
            charge.take(len(part))
            parts.append(part)
        return b"".join(parts)
