"""HTTP with a binary body: aiohttp on both sides, connections kept open, no access log, an echo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import ClientSession, TCPConnector, web

from bench.peers import peer

LARGEST = 1 << 25


async def serve(handler: web.RequestHandler | object) -> None:
    """Serve one handler of POST until standard input ends."""
    app = web.Application(client_max_size=LARGEST)
    app.router.add_post("/", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await peer.serving(runner.addresses[0][1])
    await runner.cleanup()


async def send(port: str, request: Callable[[int, int], bytes], check: Callable[[int, int, bytes], None]) -> None:
    """Send requests of the size and number asked for, and check their replies, until standard input ends."""
    url = f"http://127.0.0.1:{port}/"
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def ask(size: int, number: int) -> None:
            async with session.post(url, data=request(size, number)) as response:
                check(size, number, await response.read())

        await peer.rounds(ask)


def server() -> None:
    """Echo."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=peer.answer(await request.read()))

    asyncio.run(serve(echo))


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(send(port, peer.packed, peer.check_echo))
