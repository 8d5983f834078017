"""The HTTP routes of GM's web page (``DashboardRoutes``): static files, a stream of updates, pictures of hard samples.

All requests are GET and change nothing, so request forgery has no effect. The content policy allows only GM's own
files: no inline script or style, no frame, no form. On other addresses than loopback the page requires a token (a
random secret): once in the link, then in a cookie.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from halimede.errors import InvalidFieldError
from halimede.observe.http import is_loopback, parse_bind
from services.gm.dashboard.feed import DashboardFeed

log = structlog.get_logger()
#: seconds that a client may take to read what was sent
SLOWEST = 10.0
#: name of the cookie with the token
COOKIE = "halimede-token"
#: what a browser may load for the page
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: headers of each response
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: file name and content type of each static route
FILES = {
    "/": ("index.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/boxes.js": ("boxes.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
#: answers a request
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: name of the file with the token, and random bytes in the token
FILE = "page-token"
BYTES = 24


class DashboardRoutes:
    """The page of ``feed`` on a web application. Each request needs ``token``; empty: none does."""

    def __init__(self, feed: DashboardFeed, token: str = "") -> None:
        self._feed = feed
        self._token = token

    def add_to(self, application: web.Application) -> None:
        """Register all routes on an application."""
        for path, (name, kind) in FILES.items():
            application.router.add_get(path, self._guard(_file(name, kind)))
        application.router.add_get("/stream", self._guard(self._stream))
        application.router.add_get("/samples/{id:[0-9a-f]{32}}", self._guard(self._sample))

    def _guard(self, handler: Handler) -> Handler:
        """Return a handler that refuses requests without the token."""

        async def handle_guarded(request: web.Request) -> web.StreamResponse:
            if self._token and (refused := self._refusal(request)):
                return refused
            return await handler(request)

        return handle_guarded

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Return the response to a request without a valid cookie or header; None: it has one.

        A valid token in the link becomes a cookie, so that it does not stay in the browser's address.
        """
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if any(_is_token(self._token, offered) for offered in (request.cookies.get(COOKIE, ""), bearer)):
            return None
        if _is_token(self._token, request.query.get("token", "")):
            moved = web.Response(status=303, headers={**HEADERS, "Location": request.path})
            moved.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict", path="/")
            return moved
        text = "This page requires a token: open it as .../?token=TOKEN (see the file page-token in GM's store).\n"
        return web.Response(status=401, text=text, headers=HEADERS)

    async def _sample(self, request: web.Request) -> web.StreamResponse:
        """Return the picture of a hard sample by its id; 404: it is not kept any more."""
        picture = self._feed.picture(request.match_info["id"])
        if picture is None:
            return web.Response(status=404, text="that sample is no longer stored\n", headers=HEADERS)
        kind, data = picture
        headers = {**HEADERS, "Cache-Control": "private, max-age=600, immutable"}
        return web.Response(body=data, content_type=kind, headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send each section when it has changed (server-sent events), until the client disconnects."""
        with self._feed.count_page() as is_counted:
            if not is_counted:
                return web.Response(status=503, text="too many open pages: close one\n", headers=HEADERS)
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
            try:
                await response.prepare(request)
                await self._send_changes(response)
            except (ConnectionError, TimeoutError) as error:
                log.debug("page closed by client", reason=type(error).__name__)
            return response

    async def _send_changes(self, response: web.StreamResponse) -> None:
        """Send changed sections at each record of the feed, without end. Raises TimeoutError or ConnectionError."""
        await _send(response, b"retry: 2000\n\n")
        sent: Mapping[str, bytes] = {}
        while True:
            now = self._feed.encoded
            for section, content in now.items():
                if sent.get(section) != content:
                    await _send(response, b"event: " + section.encode() + b"\ndata: " + content + b"\n\n")
            sent = now
            await _send(response, b": alive\n\n")
            await self._feed.wait_for_record()


async def _send(response: web.StreamResponse, content: bytes) -> None:
    """Send a part of a response. Raises TimeoutError if the client does not read it within 10 s."""
    async with asyncio.timeout(SLOWEST):
        await response.write(content)


def _file(name: str, kind: str) -> Handler:
    """Return a handler that serves a static file with a content type."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)

    content = files(__package__).joinpath("static", name).read_bytes()
    return handler


def _is_token(token: str, text: Any) -> bool:
    """Whether a text of a client is the token, compared in constant time."""
    return hmac.compare_digest(token.encode(), str(text).encode("utf-8", "surrogateescape"))


def page_token(store: Path, bind: str) -> str:
    """Return the token that the page requires at the address ``bind`` (host:port); empty on loopback: it needs none.

    It is in the file ``page-token`` of the folder ``store``, and drawn at random at the first call. Raises
    InvalidFieldError if ``bind`` is no address, the folder cannot be written, or the file is empty.
    """
    address = parse_bind(bind, "--http")
    if address is None or is_loopback(address[0]):
        return ""
    path = store / FILE
    try:
        store.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise InvalidFieldError("--store", str(store), f"make the folder writable ({error.strerror})") from error
    with os.fdopen(handle, "w") as file:
        token = secrets.token_urlsafe(BYTES)
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    """Return the token in a file. Raises InvalidFieldError if it is empty."""
    token = path.read_text().strip()
    if not token:
        raise InvalidFieldError(FILE, str(path), "it is empty: remove it, and GM creates a new one")
    return token
