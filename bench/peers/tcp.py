"""Raw TCP without a broker, on an event loop as all that follows: four bytes of length, the sample; a short answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from bench.peers import peer

HEAD = 4
BUFFER = 1 << 21
FIRST = 4096


class Whole(asyncio.BufferedProtocol):
    """Gives whole messages to ``heard``, as views of the buffer that the socket was read into."""

    transport: asyncio.Transport

    def __init__(self, heard: Callable[[memoryview], None]) -> None:
        self._heard = heard
        self._buffer = memoryview(bytearray(BUFFER))
        self._have = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; asyncio has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)  # for the type checker
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 26)

    def get_buffer(self, _hint: int) -> memoryview:
        """Return where there is room."""
        return self._buffer[self._have :]

    def buffer_updated(self, count: int) -> None:
        """Hand on what is whole, and move the rest to the front."""
        self._have += count
        at = 0
        while self._have - at >= HEAD:
            end = at + HEAD + int.from_bytes(self._buffer[at : at + HEAD], "big")
            if end > self._have:
                break
            self._heard(self._buffer[at + HEAD : end])
            at = end
        if at:
            self._buffer[: self._have - at] = self._buffer[at : self._have]
            self._have -= at

    def send(self, data: bytes) -> None:
        """Send a message: the length with its first bytes, then the others, uncopied if the socket takes them."""
        self.transport.write(len(data).to_bytes(HEAD, "big") + data[:FIRST])
        if len(data) > FIRST:
            self.transport.write(memoryview(data)[FIRST:])


def server() -> None:
    """Echo."""
    asyncio.run(_server())


async def _server() -> None:
    def connected() -> Whole:
        made = Whole(lambda data: made.send(peer.answer(data)))
        return made

    listening = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    await peer.serving(listening.sockets[0].getsockname()[1])


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(_client(port))


async def _client(port: str) -> None:
    waiting: deque[asyncio.Future[bytes]] = deque()
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Whole(lambda data: waiting.popleft().set_result(bytes(data))), "127.0.0.1", int(port)
    )

    async def ask(size: int, number: int) -> None:
        answered = loop.create_future()
        waiting.append(answered)
        connection.send(peer.packed(size, number))
        peer.check_echo(size, number, await answered)

    await peer.rounds(ask)
    connection.transport.close()
