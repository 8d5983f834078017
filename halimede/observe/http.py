"""A small HTTP server in each process: ``/healthz``, ``/readyz``, ``/metrics``, and a service's own paths.

It accepts only GET and HEAD unless a service allows more (``Accepts``), and on loopback only requests to a loopback
name (which prevents DNS rebinding by a foreign page). Requests, connections and the time until a connection's first
request are bounded. Errors in the server do not affect the service.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from halimede.errors import InvalidFieldError

log = structlog.get_logger()

DEFAULT_BIND = "127.0.0.1:0"
OFF = "off"
FIX = "write host:port, :port for all addresses, port 0 for any free one, or off"
#: bytes of a request line and of all headers; no request has a body
MAX_LINE, MAX_HEADERS = 4096, 16 * 1024
#: connections at a time; for one more the longest idle one is closed
MOST_CONNECTIONS = 64
#: seconds until a connection's first request, of idle time afterwards, and for open responses at the end
ASKING_S, IDLE_S, CLOSING_S = 10.0, 30.0, 0.5
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
#: returns the problem, or an empty text
Check = Callable[[], str]


class Health:
    """The checks of one process. ``live`` and ``ready`` add one; only ``report`` runs them.

    A process that is not live should be restarted; one that is not ready should receive no work.
    """

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def live(self, name: str, check: Check) -> None:
        """Add a liveness check."""
        self._live[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add a readiness check."""
        self._ready[name] = check

    def report(self, *, readiness: bool) -> tuple[bool, dict[str, str]]:
        """Return whether all checks pass, and each check's reason (``ok`` if it passes).

        A process that is not live is not ready. A check that raises has failed.
        """
        checks = self._live | (self._ready if readiness else {})
        found = {name: _asked(check) for name, check in checks.items()}
        return not any(found.values()), {name: reason or "ok" for name, reason in found.items()}


def _asked(check: Check) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises has failed
        return f"the check failed: {type(error).__name__}"


def plain(status: int, text: str) -> web.Response:
    """Return a refusal as a line of text."""
    return web.Response(status=status, text=f"{text}\n", headers=HEADERS)


@dataclass(frozen=True, slots=True)
class Accepts:
    """Limits of a server: methods, bytes of a body, connections (0: a few); and the form of a refusal.

    ``closing_s``: seconds for open responses at the end. ``admits``: whether a client may make a request.
    ``tls``: a context for HTTPS.
    """

    methods: frozenset[str] = frozenset({"GET", "HEAD"})
    max_body: int = 1
    connections: int = 0
    refuse: Callable[[int, str], web.Response] = plain
    closing_s: float = CLOSING_S
    admits: Callable[[web.Request], bool] = lambda _: True
    tls: ssl.SSLContext | None = None


class HttpServer:
    """Serves between ``async with`` and its end; with ``off`` it does nothing.

    ``or_any``: if the port is in use, use any free one.

    Attributes:
        url: its address while it runs, else empty.

    """

    def __init__(
        self,
        bind: str = DEFAULT_BIND,
        *,
        health: Health,
        registry: CollectorRegistry,
        routes: Callable[[web.Application], None] | None = None,
        or_any: bool = False,
        accepts: Accepts = Accepts(),
    ) -> None:
        self.url = ""
        self._bind = bind
        self._health = health
        self._registry = registry
        self._routes = routes
        self._or_any = or_any
        self._accepts = accepts
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        #: connections without a request, the longest idle first, with the timer that closes those without a first one
        self._idle: dict[RequestHandler, asyncio.TimerHandle | None] = {}

    async def __aenter__(self) -> Self:
        """Listen. Raises InvalidFieldError if the address cannot be used."""
        address = parse_bind(self._bind)
        if address is None:
            return self
        host, port = address
        guard = _guard(self._accepts, loopback=is_loopback(host))
        application = web.Application(middlewares=[self._note, guard], client_max_size=self._accepts.max_body)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics)
        if self._routes:
            self._routes(application)
        runner = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=IDLE_S,
            max_line_size=MAX_LINE,
            max_field_size=MAX_HEADERS,
            shutdown_timeout=self._accepts.closing_s,
        )
        await runner.setup()
        try:
            self._listener = await self._listen(runner, host, port)
        except OSError as error:
            await runner.cleanup()
            text = f"it cannot be used ({error.strerror}): {FIX}"
            raise InvalidFieldError("HALIMEDE_HTTP", self._bind, text) from error
        self._runner = runner
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104 - what the user asked for
        self.url = f"http{'s' if self._accepts.tls else ''}://{shown}:{self._listener.sockets[0].getsockname()[1]}"
        return self

    def stop_listening(self) -> None:
        """Accept no new connections; existing ones continue."""
        if self._listener:
            self._listener.close()
            self._listener = None

    async def __aexit__(self, *_: object) -> None:
        """End all connections."""
        self.stop_listening()
        for closing in filter(None, self._idle.values()):
            closing.cancel()
        self._idle.clear()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _listen(self, runner: web.AppRunner, host: str, port: int) -> asyncio.Server:
        server = runner.server
        assert server is not None, "set up"  # noqa: S101 - for the type checker
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(lambda: self._admit(server), host or None, port, ssl=self._accepts.tls)
        except OSError as error:
            if not self._or_any:
                raise
            log.warning("http port in use", port=port, error=error.strerror)
            return await loop.create_server(lambda: self._admit(server), host or None, 0, ssl=self._accepts.tls)

    def _admit(self, server: web.Server) -> asyncio.Protocol:
        """Return the protocol of a new connection. At the limit, the longest idle one is closed, else the new one."""
        most = self._accepts.connections or MOST_CONNECTIONS
        if len(self._idle) >= most:
            for lost in [each for each in self._idle if not each.transport]:
                self._forget(lost)
        if len(server.connections) >= most and not self._close_longest_idle():
            return _Full()
        connection = server()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._expect, connection)  # after its transport is set
        return connection

    def _expect(self, connection: RequestHandler) -> None:
        if connection.transport:
            self._idle[connection] = asyncio.get_running_loop().call_later(ASKING_S, self._give_up, connection)

    def _close_longest_idle(self) -> bool:
        """Close the connection whose last request ended first, if one has no request and no response in flight."""
        for connection in self._idle:
            if connection.transport and not connection.transport.get_write_buffer_size():
                self._give_up(connection)
                return True
        return False

    def _give_up(self, connection: RequestHandler) -> None:
        self._forget(connection)
        connection.force_close()

    def _forget(self, connection: RequestHandler) -> None:
        if closing := self._idle.pop(connection, None):
            closing.cancel()

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._forget(request.protocol)
        try:
            return await handler(request)
        finally:
            if request.protocol.transport:
                self._idle[request.protocol] = None

    async def _healthz(self, _: web.Request) -> web.StreamResponse:
        return self._answer(readiness=False)

    async def _readyz(self, _: web.Request) -> web.StreamResponse:
        return self._answer(readiness=True)

    def _answer(self, *, readiness: bool) -> web.Response:
        well, checks = self._health.report(readiness=readiness)
        body = {"status": "ok" if well else "failed", "checks": checks}
        return web.json_response(body, status=200 if well else 503, headers=HEADERS)

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        content = generate_latest(self._registry)
        return web.Response(body=content, headers={**HEADERS, "Content-Type": CONTENT_TYPE_LATEST})


class _Full(asyncio.Protocol):
    """Closes a connection as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the transport."""
        transport.close()


def parse_bind(text: str, variable: str = "HALIMEDE_HTTP") -> tuple[str, int] | None:
    """Read ``host:port`` (IPv6 in brackets; no host: all addresses); None for ``off``. Raises InvalidFieldError."""
    if text.strip().lower() == OFF:
        return None
    found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]*):(\d{1,5})", text.strip())
    if not found or int(found[2]) > 65_535:
        raise InvalidFieldError(variable, text, FIX)
    return found[1].strip("[]"), int(found[2])


def same_host(bind: str) -> str:
    """Return the address of another process of the same machine: the same host, any free port."""
    return OFF if parse_bind(bind) is None else bind.strip().rpartition(":")[0] + ":0"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _guard(accepts: Accepts, *, loopback: bool) -> Middleware:
    allowed = ", ".join(sorted(accepts.methods))

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in accepts.methods:
            refused = accepts.refuse(405, f"only {allowed} are answered")
            refused.headers["Allow"] = allowed
            return refused
        if loopback and re.sub(r":\d+$", "", request.host) not in LOOPBACK_NAMES:
            return accepts.refuse(421, "this server answers to a loopback name alone")
        if not accepts.admits(request):
            refused = accepts.refuse(401, "show the server's token: Authorization: Bearer TOKEN")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        try:
            return await handler(request)
        except web.HTTPException as error:
            return accepts.refuse(error.status, error.reason)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("http request failed", path=request.path[:256])
            return accepts.refuse(500, "the request failed: see the log")

    return guard
