"""A TCP proxy that breaks connections on demand: between a client and a real broker, on loopback alone."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

CHUNK = 64 * 1024


class Proxy:
    """Forwards ``port`` to ``target``. After ``cut`` nothing goes through, not even a new connection, until ``heal``.

    ``freeze`` swallows bytes in both directions without closing anything: a half-open connection.
    """

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.port = 0
        self._target = target
        self._host = host
        self._open = True
        self._flowing = True
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Let nothing through, and let nobody notice."""
        self._flowing = False

    def heal(self) -> None:
        """Work again."""
        self._open = self._flowing = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self._open:
                return
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target)
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        except OSError:
            pass  # the broker is away: the client sees its connection close
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._flowing:
                writer.write(data)
                await writer.drain()
        # what was said last, such as why the broker disconnects, still has to arrive
        writer.write_eof()
