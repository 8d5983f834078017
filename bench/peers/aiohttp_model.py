"""HTTP with the same model behind it: aiohttp on both sides, a binary body, the model run in the handler."""

from __future__ import annotations

import asyncio

from aiohttp import ClientSession, TCPConnector, web

from bench.peers import aiohttp, peer, plain_model


def server() -> None:
    """Answer with the model."""
    model = plain_model.open_model()

    async def infer(request: web.Request) -> web.Response:
        try:
            return web.Response(body=model.answer(await request.read()))
        except plain_model.WrongRequestError as error:
            raise web.HTTPBadRequest(text=str(error)) from error

    asyncio.run(aiohttp.serve(infer))


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(_client(port))


async def _client(port: str) -> None:
    url = f"http://127.0.0.1:{port}/"
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def ask(size: int, number: int) -> None:
            async with session.post(url, data=plain_model.request(size, number)) as response:
                plain_model.check(size, number, await response.read())

        await peer.rounds(ask)
