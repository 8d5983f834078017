"""A small HTTP server in each process: ``/healthz``, ``/readyz``, ``/metrics``, and a service's own paths.

``HttpServer`` accepts only GET and HEAD unless a service allows more (``Accepts``). On loopback, requests must have a
loopback name as their host, which prevents DNS rebinding by a foreign page. Requests, connections and the time until a
connection's first request are bounded. Errors in the server do not affect the service.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Self

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from halimede.errors import InvalidFieldError
from halimede.observe.metrics import Scrape, gauge

log = structlog.get_logger()

#: the address to listen on: this machine alone, any free port
DEFAULT_BIND = "127.0.0.1:0"
#: the text in place of an address: no server
OFF = "off"
#: the advice in errors about an address
FIX = "write host:port, :port for all addresses, port 0 for any free one, or off"
#: most bytes of a request line, and of a header
MAX_LINE, MAX_HEADERS = 4096, 16 * 1024
#: most connections at a time, unless ``Accepts`` has a limit; for one more the longest idle one is closed
MAX_CONNECTIONS = 64
#: most seconds until a connection's first request, of idle time afterwards, and for open responses at the end
FIRST_REQUEST_S, IDLE_S, CLOSING_S = 10.0, 30.0, 0.5
#: names of this machine in the header Host
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
#: headers of each response that this module makes
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
#: a check of a process: returns the problem in a few words, or an empty text. It must not block
Check = Callable[[], str]


class Health:
    """The checks of one process. ``live`` and ``ready`` add one; only ``report`` runs them.

    A process that is not live should be restarted; a process that is not ready should receive no work.
    """

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def live(self, name: str, check: Check) -> None:
        """Add the check ``name`` of whether the process works, or replace it."""
        self._live[name] = check

    def ready(self, name: str, check: Check) -> None:
        """Add the check ``name`` of whether the process can take work, or replace it."""
        self._ready[name] = check

    def report(self, *, readiness: bool) -> tuple[bool, dict[str, str]]:
        """Return whether all checks pass, and by name each check's problem, ``ok`` if it passes.

        ``readiness``: run the checks of both kinds; else those of ``live`` alone. A check that raises has failed.
        """
        checks = self._live | (self._ready if readiness else {})
        problems = {name: _run_check(check) for name, check in checks.items()}
        return not any(problems.values()), {name: reason or "ok" for name, reason in problems.items()}

    def metrics(self) -> Iterator[Metric]:
        """Yield the metric of all checks, for Prometheus."""
        checks = self._live | self._ready
        states = [({"check": name}, float(not _run_check(check))) for name, check in checks.items()]
        yield gauge("health_check_state", "1 if /healthz and /readyz pass the check, else 0.", states)


def _run_check(check: Check) -> str:
    """Return the problem that a check found, or how it failed; empty if it passes."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that raises has failed
        return f"the check failed: {type(error).__name__}"


def plain(status: int, text: str) -> web.Response:
    """Return the response that refuses a request, with its reason as a line of text."""
    return web.Response(status=status, text=f"{text}\n", headers=HEADERS)


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a server accepts.

    Attributes:
        methods: of HTTP.
        max_body: most bytes of a request's body.
        connections: most at a time; 0: MAX_CONNECTIONS.
        refuse: makes the response that refuses a request, from status and reason.
        closing_s: seconds for open responses when the server ends.
        admits: whether the client that sent a request may do so; else it is refused with status 401.
        tls: the context for HTTPS; None: plain HTTP.

    """

    methods: frozenset[str] = frozenset({"GET", "HEAD"})
    max_body: int = 1
    connections: int = 0
    refuse: Callable[[int, str], web.Response] = plain
    closing_s: float = CLOSING_S
    admits: Callable[[web.Request], bool] = lambda _: True
    tls: ssl.SSLContext | None = None


class HttpServer:
    """Serves within an ``async with`` block; does nothing if ``bind`` is ``off``.

    ``bind``: ``host:port``, as ``parse_bind`` reads it. ``health``: what ``/healthz`` and ``/readyz`` report, and
    ``/metrics`` as a metric. ``registry``: the other metrics. ``routes``: adds a service's own paths; None: there are
    none. ``or_any``: if the port is in use, use any free one. ``accepts``: the limits and what is allowed.

    Attributes:
        url: where it listens, ``http://host:port`` or ``https://...``; empty before the block and for ``off``.

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
        """Begin to listen. Raises InvalidFieldError if the address cannot be used."""
        address = parse_bind(self._bind)
        if address is None:
            return self
        host, port = address
        self._registry.register(Scrape(self._health.metrics))
        guard = _guard(self._accepts, loopback=is_loopback(host))
        application = web.Application(middlewares=[self._track_idle, guard], client_max_size=self._accepts.max_body)
        application.router.add_get("/healthz", partial(self._report, readiness=False))
        application.router.add_get("/readyz", partial(self._report, readiness=True))
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
        host_text = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104 - what the user asked for
        self.url = f"http{'s' if self._accepts.tls else ''}://{host_text}:{self._listener.sockets[0].getsockname()[1]}"
        return self

    def stop_listening(self) -> None:
        """Accept no new connections; existing ones continue."""
        if self._listener:
            self._listener.close()
            self._listener = None

    async def __aexit__(self, *_: object) -> None:
        """Stop listening, wait for open responses at most ``closing_s`` seconds, and end all connections."""
        self.stop_listening()
        for closing in filter(None, self._idle.values()):
            closing.cancel()
        self._idle.clear()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _listen(self, runner: web.AppRunner, host: str, port: int) -> asyncio.Server:
        """Return the listening socket; an empty host is all addresses. Raises OSError."""
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
        """Return the protocol of a new connection. At the limit the longest idle one is closed, else the new one."""
        limit = self._accepts.connections or MAX_CONNECTIONS
        if len(self._idle) >= limit:
            for ended in [connection for connection in self._idle if not connection.transport]:
                self._forget(ended)
        if len(server.connections) >= limit and not self._close_longest_idle():
            return _Full()
        connection = server()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._expect_request, connection)  # after its transport is set
        return connection

    def _expect_request(self, connection: RequestHandler) -> None:
        """Close a new connection after FIRST_REQUEST_S without a request."""
        if connection.transport:
            self._idle[connection] = asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._give_up, connection)

    def _close_longest_idle(self) -> bool:
        """Close the connection that has been idle for longest; return whether there was one.

        Idle connections have no request, and no response that is still being sent.
        """
        for connection in self._idle:
            if connection.transport and not connection.transport.get_write_buffer_size():
                self._give_up(connection)
                return True
        return False

    def _give_up(self, connection: RequestHandler) -> None:
        """Close a connection at once."""
        self._forget(connection)
        connection.force_close()

    def _forget(self, connection: RequestHandler) -> None:
        """Count a connection as busy or ended: remove it and its timer from the idle ones."""
        if closing := self._idle.pop(connection, None):
            closing.cancel()

    @web.middleware
    async def _track_idle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Run a handler; its connection is busy meanwhile."""
        self._forget(request.protocol)
        try:
            return await handler(request)
        finally:
            if request.protocol.transport:
                self._idle[request.protocol] = None

    async def _report(self, _: web.Request, *, readiness: bool) -> web.StreamResponse:
        """Answer with the results of the checks: status 200 if all pass, else 503."""
        is_healthy, checks = self._health.report(readiness=readiness)
        body = {"status": "ok" if is_healthy else "failed", "checks": checks}
        return web.json_response(body, status=200 if is_healthy else 503, headers=HEADERS)

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        """Answer with the present metrics, in Prometheus' text format."""
        content = generate_latest(self._registry)
        return web.Response(body=content, headers={**HEADERS, "Content-Type": CONTENT_TYPE_LATEST})


class _Full(asyncio.Protocol):
    """The protocol of a connection beyond the limit: closes it as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the transport."""
        transport.close()


def parse_bind(text: str, variable: str = "HALIMEDE_HTTP") -> tuple[str, int] | None:
    """Return host and port of ``host:port``; None for ``off``. Raises InvalidFieldError, which names ``variable``.

    An IPv6 address is written in brackets. An empty host is all addresses of the machine; port 0 is any free one.
    """
    if text.strip().lower() == OFF:
        return None
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]*):(\d{1,5})", text.strip())
    if not match or int(match[2]) > 65_535:
        raise InvalidFieldError(variable, text, FIX)
    return match[1].strip("[]"), int(match[2])


def same_host(bind: str) -> str:
    """Return the ``bind`` of another process of the same machine: the same host, any free port; or ``off``."""
    return OFF if parse_bind(bind) is None else bind.strip().rpartition(":")[0] + ":0"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host: a loopback address, or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _guard(accepts: Accepts, *, loopback: bool) -> Middleware:
    """Return the middleware that refuses requests by ``accepts``, and answers an error of a handler with status 500.

    ``loopback``: requests must name a loopback host.
    """
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
