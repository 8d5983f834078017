"""HTTP with the same model behind it: aiohttp on both sides, a binary body, the model run in the handler."""

from __future__ import annotations

import asyncio

from aiohttp import web

from bench.peers import aiohttp, plain_model


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
    asyncio.run(aiohttp.send(port, plain_model.request, plain_model.check))
