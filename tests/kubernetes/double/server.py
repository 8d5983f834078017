"""The server: HTTP in front of the rules."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from tests.kubernetes.double import errors, forms
from tests.kubernetes.double.access import ALL, Access, Act, Rule
from tests.kubernetes.double.control import Control, Request
from tests.kubernetes.double.definitions import Kinds
from tests.kubernetes.double.discovery import answer
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.garbage import Garbage
from tests.kubernetes.double.kinds import Kind
from tests.kubernetes.double.owners import Owners
from tests.kubernetes.double.removal import Remover
from tests.kubernetes.double.resources import Resources
from tests.kubernetes.double.routes import route
from tests.kubernetes.double.store import Store
from tests.kubernetes.double.streams import Streams
from tests.kubernetes.double.writing import Options, Writer
from tests.ports import free_port

LARGEST = 3 * 1024 * 1024
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
            429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


class Double:
    """An API server on loopback: ``async with`` starts it, with the namespaces `default` and `kube-system`."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self._tls = tls
        self.store = Store()
        self.kinds = Kinds(self.store)
        self.access = Access()
        self.streams = Streams(self.store)
        self.control = Control(self)
        self._writer = Writer(self.store)
        self._remover = Remover(self.store)
        self.garbage = Garbage(self.store, self.kinds, self._remover)
        self._resources = Resources(self.store, self._writer, self._remover, Owners(self.access, self.kinds))
        self.admin = self.access.add("system:admin", [ALL])
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def user(self, name: str, rules: Iterable[dict[str, Any] | Rule]) -> str:
        """Let a user in with rules as manifests write them (and `namespaces`, optional); return the token."""
        return self.access.add(name, [rule if isinstance(rule, Rule) else Rule.read(rule) for rule in rules])

    async def __aenter__(self) -> Self:
        namespace = self.kinds.find("", "v1", "namespaces")
        assert namespace is not None
        for name in ("default", "kube-system"):
            self._writer.create(namespace, "", {"metadata": {"name": name}}, Options())
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        if self._runner is not None:
            return
        app = web.Application(client_max_size=LARGEST)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._task = asyncio.create_task(self.garbage.run(), name="garbage")

    async def stop(self) -> None:
        """Go away: open connections break."""
        runner, self._runner = self._runner, None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if runner is not None:
            self.streams.end(None)
            await runner.cleanup()

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        found = route(http.method, http.path, http.query)
        verb, agent = found.verb if found else http.method.lower(), http.headers.get("User-Agent", "")
        request = Request(verb=verb, method=http.method, path=http.path, user="", query=dict(http.query), agent=agent)
        if found:
            request.group, request.resource, request.subresource = found.group, found.plural, found.subresource
            request.namespace, request.name = found.namespace, found.name
        try:
            request.user = self.access.user(http.headers.get("Authorization"))
            outcome, fault = await self.control.meet(request)
            if outcome == "drop":
                return _abort(http)
            if isinstance(outcome, int):
                raise _made_up(outcome, fault.retry_after if fault else None)
            response = await self._answer(http, request)
            if outcome == "lose":
                return _abort(http)
        except ApiError as error:
            request.code = error.code
            body = msgspec.json.encode(error.status())
            return web.Response(status=error.code, body=body, content_type="application/json", headers=error.headers)
        request.code = response.status
        return response

    async def _answer(self, http: web.Request, request: Request) -> web.StreamResponse:
        if not request.resource:
            self.access.check(request.user, Act(verb=request.verb, path=http.path))
            found = answer(http.path, self.kinds.all())
            if found is None:
                raise errors.no_such_page()
            return web.json_response(body=msgspec.json.encode(found))
        parts = http.path.strip("/").split("/")
        version = parts[1] if parts[0] == "api" else parts[2]
        kind = self.kinds.find(request.group, version, request.resource)
        self._allow(request, kind)
        if kind is None:
            raise errors.no_such_page()
        form = forms.negotiated(http.headers.get("Accept", ""))
        if request.verb == "watch":
            request.code = 200
            return await self.streams.serve(http, kind, request.namespace, form)
        return await self._resources.answer(http, request, kind, form)

    def _allow(self, request: Request, kind: Kind | None) -> None:
        resource = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
        namespace = request.namespace
        if kind is not None and kind.plural == "namespaces":
            namespace = request.name
        act = Act(verb=request.verb, group=request.group, resource=resource, namespace=namespace, name=request.name)
        self.access.check(request.user, act)


def _abort(http: web.Request) -> web.Response:
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


def _made_up(code: int, retry_after: int | None) -> ApiError:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    details = None if retry_after is None else {"retryAfterSeconds": retry_after}
    return ApiError(code, _REASONS.get(code, "Unknown"), "made to fail by the test", details=details, headers=headers)
