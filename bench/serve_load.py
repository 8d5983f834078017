"""Clients of a server of the inference protocol that cost next to nothing: the same bytes again and again, and a clock.

REST over plain sockets, one request at a time on each connection, the answer's end known by its Content-Length; gRPC
by grpc.aio with messages that are packed beforehand and never unpacked.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc

#: one request; returns whether it was answered
Ask = Callable[[], Awaitable[bool]]


@dataclass(slots=True)
class Taken:
    """What one round found: seconds of each answer, and how many requests failed."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    wall_s: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.wall_s if self.wall_s else 0.0

    def quantile_ms(self, share: float) -> float:
        """Milliseconds within which a share of the answers came."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0

    @property
    def p50_ms(self) -> float:
        """Milliseconds of the median answer."""
        return statistics.median(self.seconds) * 1000 if self.seconds else 0.0


class Connection(asyncio.Protocol):
    """One connection on which one request at a time is asked."""

    def __init__(self) -> None:
        self._buffer = b""
        self._wanted = 0
        self._answer: asyncio.Future[bool] | None = None
        self._good = False

    @classmethod
    async def to(cls, host: str, port: int) -> Connection:
        """Connect."""
        _, made = await asyncio.get_running_loop().create_connection(cls, host, port)
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[bool]:
        """Send a request."""
        self._answer = asyncio.get_running_loop().create_future()
        self._buffer, self._wanted = b"", 0
        self._transport.write(request)  # type: ignore[attr-defined]
        return self._answer

    def data_received(self, data: bytes) -> None:
        """Look whether the answer is whole."""
        self._buffer += data
        if not self._wanted:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            self._good = head.startswith(b"http/1.1 200")
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0
            self._wanted = end + 4 + length
        if len(self._buffer) >= self._wanted and self._answer and not self._answer.done():
            self._answer.set_result(self._good)

    def connection_lost(self, _: Exception | None) -> None:
        """A request under way has failed."""
        if self._answer and not self._answer.done():
            self._answer.set_result(False)

    def close(self) -> None:
        """Let go."""
        self._transport.close()


def post(path: str, body: bytes, **headers: str) -> bytes:
    """Write an HTTP request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def rest(port: int, request: bytes, clients: int, seconds: float) -> Taken:
    """Ask over REST, as many clients at a time."""
    connections = [await Connection.to("127.0.0.1", port) for _ in range(clients)]
    try:
        return await _load([lambda c=c: c.ask(request) for c in connections], seconds)  # type: ignore[misc]
    finally:
        for connection in connections:
            connection.close()


async def rpc(port: int, request: bytes, clients: int, seconds: float) -> Taken:
    """Ask over gRPC; all clients share a channel, as the threads of one program do."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        async def ask() -> bool:
            try:
                await call(request)
            except grpc.aio.AioRpcError:
                return False
            return True

        return await _load([ask] * clients, seconds)


async def _load(asks: list[Ask], seconds: float) -> Taken:
    taken = Taken()
    began = time.perf_counter()
    until = began + seconds

    async def client(ask: Ask) -> None:
        while (sent := time.perf_counter()) < until:
            if await ask():
                taken.seconds.append(time.perf_counter() - sent)
            else:
                taken.failed += 1
                await asyncio.sleep(0.01)

    await asyncio.gather(*(client(ask) for ask in asks))
    taken.wall_s = time.perf_counter() - began
    return taken
