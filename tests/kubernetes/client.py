"""A small client for tests: plain HTTP, so that what goes over the wire is what the test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import pytest

from tests.waiting import patience

Body = dict[str, Any]
MERGE = "application/merge-patch+json"
META = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
#: paths of the kinds that tests use
PATHS = {
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Service": ("/api/v1", "services", True),
    "Secret": ("/api/v1", "secrets", True),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "Event": ("/api/v1", "events", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers", True),
    "Ingress": ("/apis/networking.k8s.io/v1", "ingresses", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
}


class RefusedError(Exception):
    """The server answered with a Status of failure."""

    def __init__(self, code: int, status: Body) -> None:
        super().__init__(f"{code}: {status.get('message')}")
        self.code = code
        self.status = status

    @property
    def answer(self) -> tuple[int, str]:
        """The code, and the word for it."""
        return self.code, str(self.status.get("reason", ""))

    @property
    def causes(self) -> dict[str, str]:
        """What is wrong, by field."""
        causes = (self.status.get("details") or {}).get("causes") or []
        return {cause["field"]: cause["message"] for cause in causes}


async def refusal(attempt: Awaitable[object]) -> RefusedError:
    """Return why a request is refused; fail where it is not."""
    with pytest.raises(RefusedError) as refused:
        await attempt
    return refused.value


async def invalid_fields(attempt: Awaitable[object]) -> dict[str, str]:
    """Return the fields for which a body is refused, with the reasons."""
    refused = await refusal(attempt)
    assert refused.answer == (422, "Invalid")
    return refused.causes


def contains(whole: Any, part: Any, *but: str) -> bool:
    """Whether all of a part is in a body, which a server fills in; what has these names does not count."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(contains(whole.get(name), part[name], *but) for name in part.keys() - set(but))
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(contains(*pair, *but) for pair in zip(whole, part, strict=True))
    return bool(part == whole)


def path(kind: str, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
    """Return the path of a built-in kind, or of `plural.group/version` (a custom one, namespaced)."""
    if kind in PATHS:
        root, plural, namespaced = PATHS[kind]
    else:
        plural, _, rest = kind.partition(".")
        root, namespaced = f"/apis/{rest}", True
    where = f"/namespaces/{namespace}" if namespaced and namespace else ""
    return root + where + f"/{plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")


def _texts(query: dict[str, Any]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items()}


@dataclass
class Client:
    """Requests with one user's credentials; ``async with`` owns the connections."""

    url: str
    token: str | None
    tls: ssl.SSLContext | None = None
    _session: aiohttp.ClientSession | None = field(default=None, init=False, repr=False)

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers["User-Agent"] = "tests/1"
        connector = aiohttp.TCPConnector(ssl=self.tls if self.tls is not None else True, limit=0)
        self._session = aiohttp.ClientSession(headers=headers, connector=connector)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        accept: str = "",
        **query: Any,
    ) -> Body:
        """Send a request and return the answer. Raises RefusedError."""
        assert self._session is not None
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"Content-Type": content, **({"Accept": accept} if accept else {})}
        async with (
            asyncio.timeout(patience(60.0)),
            self._session.request(method, self.url + path, data=data, headers=headers, params=_texts(query)) as answer,
        ):
            text = await answer.read()
            found: Body = msgspec.json.decode(text) if text.startswith(b"{") else {"text": text.decode()}
            if answer.status >= 400:
                raise RefusedError(answer.status, found)
            return found

    async def create(self, kind: str, namespace: str | None, body: Body, **query: Any) -> Body:
        return await self.request("POST", path(kind, namespace), body, **query)

    async def get(self, kind: str, namespace: str | None, name: str, **more: Any) -> Body:
        return await self.request("GET", path(kind, namespace, name), **more)

    async def find(self, kind: str, namespace: str | None, name: str) -> Body | None:
        """GET one, or None."""
        try:
            return await self.get(kind, namespace, name)
        except RefusedError as refused:
            if refused.code == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str | None = None, **more: Any) -> Body:
        return await self.request("GET", path(kind, namespace), **more)

    async def replace(self, kind: str, namespace: str | None, body: Body, subresource: str = "") -> Body:
        return await self.request("PUT", path(kind, namespace, body["metadata"]["name"], subresource), body)

    async def patch(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        body: Any,
        subresource: str = "",
        *,
        content: str = MERGE,
        **more: Any,
    ) -> Body:
        """PATCH, by default as a JSON merge patch."""
        return await self.request("PATCH", path(kind, namespace, name, subresource), body, content=content, **more)

    async def delete(self, kind: str, namespace: str | None, name: str, body: Body | None = None, **more: Any) -> Body:
        return await self.request("DELETE", path(kind, namespace, name), body, **more)

    @asynccontextmanager
    async def watch(self, kind: str, namespace: str | None = None, **query: Any) -> AsyncIterator[Changes]:
        """Watch; leaving the context ends it."""
        assert self._session is not None
        headers = {"Accept": query.pop("accept", "application/json")}
        asked = {"watch": "true", **_texts(query)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
        where = self.url + path(kind, namespace)
        async with self._session.get(where, params=asked, timeout=timeout, headers=headers) as answer:
            if answer.status >= 400:
                raise RefusedError(answer.status, await answer.json())
            yield Changes(answer)


class Changes:
    """A watch's events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self, within: float = 30.0) -> tuple[str, Body] | None:
        """Return the next event's type and object; None: the watch has ended."""
        async with asyncio.timeout(patience(within)):
            line = await self._answer.content.readline()
        if not line.strip():
            return None
        event = msgspec.json.decode(line)
        return event["type"], event["object"]

    async def events(self, number: int = 1) -> list[tuple[str, Body]]:
        """Return the next events' types and objects; fail where the watch ends."""
        events = [event for _ in range(number) if (event := await self.next())]
        assert len(events) == number, "the watch has ended"
        return events

    async def quiet(self, seconds: float = 0.3) -> bool:
        """Whether nothing comes for a while."""
        try:
            return await self.next(seconds) is None
        except TimeoutError:
            return True
