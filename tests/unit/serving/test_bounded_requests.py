"""Requests that take much memory: together no more than there is room for."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from halimede.serving import request_budget
from halimede.serving.bounded_requests import BoundedRequests
from halimede.serving.request_budget import Charge
from tests.waiting import patience

MOST = 1_000_000


class Reader:
    """A server that holds every body until it is told to answer."""

    def __init__(self) -> None:
        self.requests = BoundedRequests(MOST)
        self.held = 0
        self.go = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        return await self.requests.answer(request, self.length)

    async def length(self, _: web.Request, body: bytes, __: Charge) -> web.Response:
        self.held += 1
        await self.go.wait()
        return web.Response(text=str(len(body)))


@pytest.fixture
async def reader(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Reader, str, aiohttp.ClientSession]]:
    monkeypatch.setattr(request_budget, "MEMORY", 2 * MOST)
    made = Reader()
    application = web.Application(client_max_size=MOST)
    application.router.add_post("/", made.answer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        yield made, str(server.make_url("/")), session


async def post(session: aiohttp.ClientSession, url: str, size: int, *, packed: bool) -> tuple[int, str]:
    data = gzip.compress(bytes(size)) if packed else bytes(size)
    headers = {"Content-Encoding": "gzip"} if packed else {}
    async with session.post(url, data=data, headers=headers) as reply:
        return reply.status, await reply.text()


@pytest.mark.parametrize("packed", [False, True])
async def test_what_is_held_at_a_time_is_bounded_and_given_back(reader, packed: bool) -> None:
    made, url, session = reader
    for _ in range(2):
        made.go.clear()
        before = made.held
        first = [asyncio.ensure_future(post(session, url, MOST - 1000, packed=packed)) for _ in range(2)]
        async with asyncio.timeout(patience(30)):
            while made.held < before + 2:
                await asyncio.sleep(0.01)
        assert (await post(session, url, MOST - 1000, packed=packed))[0] == 503
        made.go.set()
        assert await asyncio.gather(*first) == [(200, str(MOST - 1000))] * 2


@pytest.mark.parametrize("packed", [False, True])
async def test_one_that_is_too_large_is_refused(reader, packed: bool) -> None:
    made, url, session = reader
    made.go.set()
    assert (await post(session, url, MOST + 1, packed=packed))[0] == 413
    assert (await post(session, url, MOST, packed=packed))[0] == 200


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"{}"),  # of aio-libs/aiohttp issue 1710 and dropwizard/dropwizard issue 4176
        ("gzip", b"x" * 300_000),
        ("gzip", gzip.compress(bytes(1000), mtime=0) + b"more"),
        ("gzip", gzip.compress(bytes(1000), mtime=0)[:-8] + bytes(8)),
    ],
    ids=["plain", "large", "more", "checksum"],
)
async def test_a_body_in_another_encoding_than_its_header_names_is_a_clients_error(
    reader, encoding: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made, url, session = reader
    made.go.set()
    async with session.post(url, data=body, headers={"Content-Encoding": encoding}) as reply:
        text = await reply.text()
    assert reply.status == 400
    assert f"it is not valid {encoding}: correct it, or the header Content-Encoding" in text
    assert await post(session, url, 10, packed=True) == (200, "10")
    assert "Traceback" not in caplog.text
    assert not made.requests.budget.used
