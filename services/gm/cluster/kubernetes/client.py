"""Calls to the API server: each with a deadline, each failing with one of a few errors, objects as plain dicts.

A thin layer over the official client's ``ApiClient``, which knows addresses, certificates and tokens. Its typed models
are not used (three times the memory), nor its watch (a quiet end on 404, no back-off), elector and dynamic client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException, OpenApiException

from halimede import __version__
from services.gm.cluster.kubernetes.api_paths import MANAGER, OPENED, ApiResource, Object
from services.gm.cluster.kubernetes.errors import KubernetesApiError, UnavailableError, error_of

#: seconds for one call, what it waits because the server asked it to included
CALL_TIMEOUT = 10.0
#: seconds that a watch may be silent beyond what it asked for
WATCH_GRACE = 5.0
#: objects in one answer
PAGE = 250
#: answers that say "come again" which one call takes
ATTEMPTS = 4
#: seconds between them, at least
LEAST_PAUSE = 0.1

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

_decoder = msgspec.json.Decoder(dict[str, Any])


class KubernetesClient:
    """The API server at ``configuration``; use inside ``async with``."""

    def __init__(self, configuration: Configuration, *, timeout_s: float = CALL_TIMEOUT) -> None:
        self._configuration = configuration
        self._timeout_s = timeout_s
        self._api: ApiClient | None = None
        #: why the last call did not reach a working server; empty when it did
        self.trouble = ""
        #: calls that changed something, and those of them that failed
        self.writes = self.failures = 0

    async def __aenter__(self) -> Self:
        self._api = ApiClient(self._configuration)
        self._api.user_agent = f"{MANAGER}/{__version__}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._api is not None:
            await self._api.close()  # type: ignore[no-untyped-call]
            self._api = None

    # --- reading ----------------------------------------------------------------------------------------------

    async def get(
        self,
        api: ApiResource,
        namespace: str,
        name: str,
        *,
        metadata_only: bool = False,
        timeout_s: float | None = None,
    ) -> Object:
        """Return an object. Raises NotFoundError."""
        accept = METADATA_ONLY if metadata_only else JSON
        return await self._call("GET", api, namespace, name, accept=accept, timeout_s=timeout_s)

    async def pages(self, api: ApiResource, *, selector: str = "") -> AsyncIterator[tuple[list[Object], str]]:
        """Yield all objects of all namespaces page by page, with the version of the list. GoneError: begin again."""
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._call("GET", api, query=query)
            metadata = page.get("metadata") or {}
            yield page.get("items") or [], metadata.get("resourceVersion", "")
            if not (going_on := metadata.get("continue")):
                return
            query["continue"] = going_on

    async def watch(
        self, api: ApiResource, version: str, *, selector: str = "", seconds: float
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) of what happens after ``version``, bookmarks included, for about ``seconds``; first of
        all OPENED, for nothing may happen for long.

        It ends when the server ends it. Raises GoneError when the version is too old, UnavailableError when the
        connection breaks or is silent for longer than it should.
        """
        what = f"watching {api.plural}"
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
            **({"labelSelector": selector} if selector else {}),
        }
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds + WATCH_GRACE
        async with contextlib.AsyncExitStack() as stack:
            with self._translated(what):
                async with asyncio.timeout(self._timeout_s):
                    response = await self._send("GET", api.path(), query=query)
            stack.callback(response.close)  # before its end there is no way to use the connection again
            if response.status != 200:
                with self._translated(what):
                    async with asyncio.timeout(self._timeout_s):
                        raise self._noted(error_of(what, response.status, await response.read(), response.headers))
            self.trouble = ""
            yield OPENED, {}
            while True:
                with self._translated(what):
                    async with asyncio.timeout_at(ends):
                        line = await response.content.readline()
                    if not line:
                        return
                    event = _decoder.decode(line)
                kind, thing = event.get("type", ""), event.get("object") or {}
                if kind == "ERROR":
                    raise self._noted(error_of(what, int(thing.get("code") or 500), msgspec.json.encode(thing), {}))
                yield kind, thing

    # --- writing ----------------------------------------------------------------------------------------------

    async def create(
        self, api: ApiResource, namespace: str, body: Object, *, strict: bool = False, timeout_s: float | None = None
    ) -> Object:
        """Create an object; ``strict``: a field that nobody knows is refused. Raises AlreadyExistsError."""
        return await self._write("POST", api, namespace, query=_query(strict), body=body, timeout_s=timeout_s)

    async def patch(
        self,
        api: ApiResource,
        namespace: str,
        name: str,
        body: Object,
        *,
        subresource: str = "",
        strict: bool = False,
        timeout_s: float | None = None,
    ) -> Object:
        """Merge ``body`` into an object. With ``metadata.resourceVersion`` or ``uid`` in it: raises StaleError."""
        at, query = (api, namespace, name, subresource), _query(strict)
        return await self._write("PATCH", *at, query=query, body=body, kind=MERGE_PATCH, timeout_s=timeout_s)

    async def delete(self, api: ApiResource, namespace: str, name: str, *, uid: str) -> None:
        """Delete this very object; what it owns follows. Raises NotFoundError, StaleError (another uid)."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        await self._write("DELETE", api, namespace, name, body=body)

    # --- all calls --------------------------------------------------------------------------------------------

    async def _write(self, method: str, *args: Any, **options: Any) -> Object:
        self.writes += 1
        try:
            return await self._call(method, *args, **options)
        except KubernetesApiError:
            self.failures += 1
            raise

    async def _call(
        self,
        method: str,
        api: ApiResource,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        accept: str = JSON,
        kind: str = JSON,
        timeout_s: float | None = None,
    ) -> Object:
        """Call until answered, at most ``timeout_s``. Only what the server did not even begin with is sent again."""
        at = "/".join(part for part in (namespace, name, subresource) if part)
        what = f"{method} {api.plural} {at}".rstrip()
        path = api.path(namespace, name, subresource)
        deadline = asyncio.get_running_loop().time() + (timeout_s or self._timeout_s)
        for attempt in range(1, ATTEMPTS + 1):
            with self._translated(what):
                async with asyncio.timeout_at(deadline):
                    response = await self._send(method, path, query=query, body=body, accept=accept, kind=kind)
                    try:
                        answer = await response.read()
                    finally:
                        response.release()
                if 200 <= response.status < 300:
                    found = _decoder.decode(answer)
                    self.trouble = ""
                    return found
            error = error_of(what, response.status, answer, response.headers)
            pause = _pause(error)
            if pause is None or attempt == ATTEMPTS or asyncio.get_running_loop().time() + pause >= deadline:
                raise self._noted(error)
            await asyncio.sleep(pause)
        raise AssertionError("every attempt returns or raises")

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        accept: str = JSON,
        kind: str = JSON,
    ) -> aiohttp.ClientResponse:
        if self._api is None:
            raise RuntimeError("the client is open inside async with")
        method, url, headers, data, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        # the deadline is asyncio's, around connecting, sending and reading alike
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s)
        answer = await self._api.call_api(method, url, headers, data, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    @contextlib.contextmanager
    def _translated(self, what: str) -> Any:
        try:
            yield
        except TimeoutError as error:
            raise self._noted(UnavailableError(what, 0, "the API server does not answer in time")) from error
        except (aiohttp.ClientError, ApiException, OpenApiException, OSError, ValueError) as error:
            # ValueError: what no JSON is, and a line beyond all bounds
            text = str(error) or type(error).__name__
            raise self._noted(UnavailableError(what, 0, f"the API server cannot be reached: {text}")) from error

    def _noted(self, error: KubernetesApiError) -> KubernetesApiError:
        self.trouble = str(error) if isinstance(error, UnavailableError) else ""
        return error


def _query(strict: bool) -> Mapping[str, str]:  # noqa: FBT001
    """Return how what is not known is taken: refused, or dropped without a word."""
    return {"fieldValidation": "Strict"} if strict else {}


def _pause(error: KubernetesApiError) -> float | None:
    """Return how long to wait before the same again, if the server refused before it did anything."""
    if not isinstance(error, UnavailableError):
        return None
    if error.status == 429 or (error.status == 503 and error.retry_after_s):
        return max(error.retry_after_s, LEAST_PAUSE)
    return None
