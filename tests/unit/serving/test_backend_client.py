"""A server as the router asks it: which model it has is found out, and found out again when it has another."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from halimede.serving.router.backend_client import Backend
from halimede.serving.router.server import main


class One:
    def __init__(self) -> None:
        self.name = "old"

    async def index(self, _: web.Request) -> web.Response:
        return web.json_response([{"name": self.name, "version": "1", "state": "READY", "reason": ""}])

    async def infer(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["model"] == self.name else 404, text=self.name)


async def test_a_server_that_has_another_model_now_is_asked_which() -> None:
    one, application = One(), web.Application()
    application.router.add_post("/v2/repository/index", one.index)
    application.router.add_post("/v2/models/{model}/infer", one.infer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        upstream = Backend(session, "--edge", str(server.make_url("")).rstrip("/"))
        assert (await upstream.ask(b"", {}, 30)).body == b"old"
        one.name = "new"
        assert (await upstream.ask(b"", {}, 30)).status == 404
        again = await upstream.ask(b"", {}, 30)
        assert (again.status, again.body) == (200, b"new")


def test_a_grace_period_that_is_none_is_a_mistake_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRACE_S", "soon")
    ways = ("--edge", "http://127.0.0.1:1", "--cloud", "http://127.0.0.1:2")
    assert main([*ways, "--mining", "Margin", "--param", "threshold_margin=0.2", "--http", "127.0.0.1:0"]) == 2
    assert "GRACE_S" in capsys.readouterr().err
