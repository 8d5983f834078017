"""The page's token: made where others than this machine reach the page, asked for, and never shown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from halimede.errors import InvalidFieldError
from services.gm.dashboard.routes import BYTES, FILE, DashboardRoutes, page_token
from tests.ports import serve_app


@contextlib.asynccontextmanager
async def page(token: str) -> AsyncIterator[str]:
    application = web.Application()
    feed: Any = None  # files need none
    DashboardRoutes(feed, token).add_to(application)
    async with serve_app(application) as address:
        yield f"http://{address}"


@pytest.mark.parametrize("bind", ["127.0.0.1:8686", "localhost:8686", "[::1]:8686", "off"])
def test_a_page_that_nobody_else_reaches_asks_for_none(bind: str, tmp_path: Path) -> None:
    assert page_token(tmp_path / "gm", bind) == ""
    assert not (tmp_path / "gm").exists()


@pytest.mark.parametrize("bind", ["0.0.0.0:8686", "10.1.2.3:8686", "[::]:8686"])
def test_one_that_others_reach_has_one_that_only_gm_can_read_and_that_stays(bind: str, tmp_path: Path) -> None:
    token = page_token(tmp_path, bind)
    assert len(token) >= BYTES
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert page_token(tmp_path, bind) == token
    assert page_token(tmp_path / "other", bind) != token


def test_an_empty_file_is_no_token(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("\n")
    with pytest.raises(InvalidFieldError, match="remove it"):
        page_token(tmp_path, "0.0.0.0:8686")


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 401),
        ("?token=", {}, 401),
        ("?token=guess", {}, 401),
        ("?token=%ff", {}, 401),
        ("", {"Authorization": "Bearer guess"}, 401),
        ("", {"Cookie": "halimede-token=guess"}, 401),
        ("", {"Authorization": "Bearer s3cret"}, 200),
        ("", {"Cookie": "halimede-token=s3cret"}, 200),
        ("?token=s3cret", {}, 303),
    ],
)
async def test_only_who_has_it_sees_the_page(query: str, headers: dict[str, str], status: int) -> None:
    async with page("s3cret") as url, aiohttp.ClientSession(headers=headers) as session:
        for path in ("/", "/page.js"):
            async with session.get(f"{url}{path}{query}", allow_redirects=False) as answer:
                assert answer.status == status
                assert "s3cret" not in await answer.text()


async def test_without_a_token_everybody_does() -> None:
    async with page("") as url, aiohttp.ClientSession() as session, session.get(url + "/") as answer:
        assert answer.status == 200
