"""Sedna's way: HTTP with the pixels as JSON lists, which the server makes an array of again; the answer is the mean.

Its client calls ``tolist()`` and sends JSON, its server reads it and hands the lists to the estimator, which needs an
array. That is all that happens here, over connections that stay open; nothing validates the lists.
"""

from __future__ import annotations

import asyncio

import numpy as np
from aiohttp import ClientSession, TCPConnector, web

from bench.peers import aiohttp, peer


def server() -> None:
    """Be the big model's service."""

    async def infer(request: web.Request) -> web.Response:
        pixels = np.array((await request.json())["data"])
        return web.json_response({"result": float(pixels.mean() / 255)})

    asyncio.run(aiohttp.serve(infer))


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(_client(port))


async def _client(port: str) -> None:
    url = f"http://127.0.0.1:{port}/"
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def ask(size: int, number: int) -> None:
            async with session.post(url, json={"data": peer.sample(size, number).tolist()}) as response:
                peer.check_mean(size, number, (await response.json())["result"])

        await peer.rounds(ask)
