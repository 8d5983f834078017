"""A server on loopback, which a test makes answer as it likes."""

from __future__ import annotations

import asyncio
from typing import Any, Self


class Listener:
    """Accepts connections on ``port`` between ``async with`` and its end."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.port = 0
        self._host = host
        self._options: dict[str, Any] = {"host": host, "port": 0}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, **self._options)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    def cut(self) -> None:
        """End all connections."""
        raise NotImplementedError
