"""The small server beside a service, on a real socket."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from halimede.errors import InvalidFieldError
from halimede.observe import Health, HttpServer, http
from halimede.observe.metrics import counter, registry
from tests.waiting import patience


def server(bind: str = "127.0.0.1:0", **options: object) -> HttpServer:
    health = Health()
    health.ready("broker", lambda: "not connected")
    return HttpServer(bind, health=health, registry=registry("test", lambda: [counter("x", "X.", 1)]), **options)  # type: ignore[arg-type]


async def test_it_says_whether_it_lives_whether_it_is_ready_and_what_it_counts() -> None:
    async with server() as shown, aiohttp.ClientSession() as session:
        async with session.get(f"{shown.url}/healthz") as answer:
            assert (answer.status, (await answer.json())["status"]) == (200, "ok")
        async with session.get(f"{shown.url}/readyz") as answer:
            assert (answer.status, (await answer.json())["checks"]) == (503, {"broker": "not connected"})
        async with session.get(f"{shown.url}/metrics") as answer:
            assert "halimede_x_total 1.0" in await answer.text()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_it_answers_nothing_but_questions() -> None:
    async with server() as shown, aiohttp.ClientSession() as session:
        async with session.post(f"{shown.url}/metrics", data=b"x" * 100) as answer:
            assert answer.status == 405
        async with session.get(f"{shown.url}/../../etc/passwd") as answer:
            assert answer.status == 404
        async with session.get(f"{shown.url}/healthz", headers={"X-Long": "x" * 20_000}) as answer:
            assert answer.status == 400


async def test_a_foreign_name_that_leads_to_loopback_gets_no_answer() -> None:
    async with server() as shown, aiohttp.ClientSession() as session:
        async with session.get(f"{shown.url}/metrics", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
        async with session.get(f"{shown.url}/metrics", headers={"Host": "localhost:1"}) as answer:
            assert answer.status == 200


async def test_what_breaks_in_it_stays_in_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def broken(_: web.Request) -> web.StreamResponse:
        raise RuntimeError("secret words")

    def routes(application: web.Application) -> None:
        application.router.add_get("/broken", broken)

    async with server(routes=routes) as shown, aiohttp.ClientSession() as session:
        async with session.get(f"{shown.url}/broken") as answer:
            assert answer.status == 500
            assert "secret" not in await answer.text()
        async with session.get(f"{shown.url}/healthz") as answer:
            assert answer.status == 200


async def test_a_port_that_is_taken_is_a_clear_error_and_off_is_off() -> None:
    async with server() as shown:
        taken = shown.url.removeprefix("http://")
        with pytest.raises(InvalidFieldError, match="it cannot be used"):
            await server(taken).__aenter__()
    async with server("off") as silent:
        assert silent.url == ""


async def connect(shown: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = shown.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ends(reader: asyncio.StreamReader, within_s: float = patience(30)) -> bool:
    async with asyncio.timeout(within_s):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_who_connects_and_asks_nothing_is_let_go(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_REQUEST_S", 0.3)
    async with server() as shown:
        reader, writer = await connect(shown)
        writer.write(begun)
        assert await ends(reader)
        writer.close()


async def test_who_has_asked_may_stay_and_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_REQUEST_S", 0.2)
    async with server() as shown:
        reader, writer = await connect(shown)
        for _ in range(2):
            assert await requests(reader, writer)
            await asyncio.sleep(0.5)
        writer.close()


async def requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether an open connection still answers."""
    writer.write(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        return (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def test_for_one_connection_too_many_the_longest_idle_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    async with server() as shown:
        held = [await connect(shown) for _ in range(3)]
        for reader, writer in held:
            assert await requests(reader, writer)
        assert await requests(*held[0])  # now the second one has been idle for longest
        newcomer = await connect(shown)
        assert await requests(*newcomer)
        assert await ends(held[1][0], http.FIRST_REQUEST_S / 2)
        for each in (held[0], held[2], newcomer):
            assert await requests(*each)
        for _, writer in (*held, newcomer):
            writer.close()


async def test_where_every_connection_waits_for_its_answer_the_new_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    answer, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(_: web.Request) -> web.StreamResponse:
        arrived.release()
        await answer.wait()
        return web.Response()

    async with server(routes=lambda application: application.router.add_get("/slow", slow)) as shown:
        held = [await connect(shown) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await arrived.acquire()
        reader, writer = await connect(shown)
        assert await ends(reader, http.FIRST_REQUEST_S / 2)  # at once, not because it asks nothing
        writer.close()
        answer.set()
        for reader, writer in held:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await requests(reader, writer)
            writer.close()
