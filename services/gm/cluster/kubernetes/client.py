"""Calls to the Kubernetes API server (``KubernetesClient``) with a deadline, typed errors, and objects as plain dicts.

It is a thin layer over the official client's ``ApiClient``, which handles addresses, certificates and tokens. Not used
are the official client's typed models (three times the memory), its watch (it ends silently on 404 and has no
back-off), its elector and its dynamic client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
import structlog
from kubernetes.aio import config as loaders
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException, OpenApiException

from halimede import __version__
from halimede.errors import HalimedeError, InvalidFieldError, cause_of, hide_secrets
from services.gm.cluster.kubernetes.api_paths import MANAGER, OPENED, ApiResource, Object
from services.gm.cluster.port import ConflictError, NotAcceptedError

#: seconds for one call, including pauses that the server requests
CALL_TIMEOUT = 10.0
#: seconds that a watch may last beyond its requested duration
WATCH_GRACE = 5.0
#: most objects in one response
PAGE = 250
#: attempts of one call while the server requests a retry
ATTEMPTS = 4
#: least seconds between two attempts
LEAST_PAUSE = 0.1
#: media types: of objects, of merge-patches, and of objects of which only the metadata is requested
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_decoder = msgspec.json.Decoder(dict[str, Any])
#: variables: set in a pod, and path of a kubeconfig
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
VARIABLE = "KUBECONFIG"
#: the file in which a pod finds its own namespace
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
#: the option of GM with the path of a kubeconfig
OPTION = "--kubeconfig"
log = structlog.get_logger()
#: most characters of the server's message that are shown: it names the field
MAX_MESSAGE = 1000
#: seconds; a longer Retry-After of the server is cut to this
MAX_RETRY_AFTER = 30.0
#: the start of the server's message about an invalid patch: it contains the whole object, then the reason
_PATCHED = re.compile(r'\A[^{]* is invalid: patch: Invalid value: "(?:[^"\\]|\\.)*": (?=\S)', re.DOTALL)


class KubernetesApiError(HalimedeError):
    """The API server has refused a call, or cannot be reached. Only after an ``UnavailableError`` a retry can succeed.

    ``subject``: the call, or the object. ``status``: the HTTP status; 0: there was no response. ``message``: the
    server's text.
    """

    def __init__(self, subject: str, status: int, message: str) -> None:
        self.status = status
        text = hide_secrets(message[: 2 * MAX_MESSAGE])
        shown = text if text.isprintable() else " ".join(text.split())
        #: the server's message
        self.message = shown[:MAX_MESSAGE]
        super().__init__(f"{subject}: {self.message} ({status})" if status else f"{subject}: {self.message}")

    def about(self, subject: str) -> Self:
        """Return the same error for users: its text names the object ``subject``, not the call and the status code."""
        error = type(self)(subject, 0, self.message)
        error.status = self.status
        return error


class NotFoundError(KubernetesApiError):
    """The object does not exist, or the server does not know its kind."""


class AlreadyExistsError(KubernetesApiError):
    """An object of the same name exists."""


class StaleError(KubernetesApiError, ConflictError):
    """The object has changed since it was read: it has another version or another uid."""


class GoneError(KubernetesApiError):
    """The version to watch from, or the continuation of a list, is too old: list again."""


class ForbiddenError(KubernetesApiError, NotAcceptedError):
    """GM's role does not allow the call, or the server does not accept GM's credentials."""


class RefusedObjectError(KubernetesApiError, NotAcceptedError):
    """The object is invalid: the message names the field."""


class UnavailableError(KubernetesApiError):
    """The server is not reachable, too slow, overloaded or broken; a later call may succeed.

    ``retry_after_s``: seconds until then, as the server has requested; 0: it has not.
    """

    def __init__(self, subject: str, status: int, message: str, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(subject, status, message)


@contextlib.contextmanager
def refusals_for_users(about: object) -> Iterator[None]:
    """Turn refusals (ForbiddenError, RefusedObjectError) of the block into a form for users, which names the object.

    ``about``: the object; its text is used. The call and the status code are logged.
    """
    try:
        yield
    except (ForbiddenError, RefusedObjectError) as error:
        log.info("object not accepted", object=str(about), error=str(error))
        raise error.about(str(about)) from error


#: the error by HTTP status; all others are an UnavailableError
_by_status: dict[int, type[KubernetesApiError]] = {
    400: RefusedObjectError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: StaleError,
    410: GoneError,
    413: RefusedObjectError,
    415: RefusedObjectError,
    422: RefusedObjectError,
}


class _Details(msgspec.Struct, kw_only=True):
    """Details of an error response."""

    retryAfterSeconds: float = 0.0  # noqa: N815


class _Status(msgspec.Struct, kw_only=True):
    """The Status object of an error response."""

    message: str = ""
    reason: str = ""
    details: _Details | None = None


def error_of(call: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubernetesApiError:
    """Return the error for a response that is not a success. ``call``: what was called, for the error's text."""
    answer = _Status()
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # a proxy in between answers in plain text
        answer = msgspec.json.decode(body, type=_Status)
    message = _PATCHED.sub("", answer.message, count=1) or body[:MAX_MESSAGE].decode(errors="replace") or "no reason"
    if status == 409 and answer.reason == "AlreadyExists":
        return AlreadyExistsError(call, status, message)
    if status in _by_status:
        return _by_status[status](call, status, message)
    after = answer.details.retryAfterSeconds if answer.details else 0.0
    with contextlib.suppress(ValueError):  # Retry-After may be a date: then this client's own back-off applies
        after = max(after, float(headers.get("Retry-After", "")))
    return UnavailableError(call, status, message, min(max(after, 0.0), MAX_RETRY_AFTER))


class KubernetesClient:
    """The API server at ``configuration``; use it inside ``async with``. All calls raise KubernetesApiError.

    ``timeout_s``: deadline of a call, unless it has its own.
    """

    def __init__(self, configuration: Configuration, *, timeout_s: float = CALL_TIMEOUT) -> None:
        self._configuration = configuration
        self._timeout_s = timeout_s
        self._api: ApiClient | None = None
        #: why the last call did not reach a working server; empty: it did
        self.trouble = ""
        #: number of calls that change something, and number of those that failed
        self.writes = self.failures = 0

    async def __aenter__(self) -> Self:
        self._api = ApiClient(self._configuration)
        self._api.user_agent = f"{MANAGER}/{__version__}"
        return self

    async def __aexit__(self, *_: object) -> None:
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
        """Return an object; ``metadata_only``: only its metadata. Raises NotFoundError."""
        accept = METADATA_ONLY if metadata_only else JSON
        return await self._call("GET", api, namespace, name, accept=accept, timeout_s=timeout_s)

    async def pages(
        self, api: ApiResource, *, selector: str = "", namespace: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[list[Object], str]]:
        """Yield all objects page by page, with the version of the list. Raises GoneError: then list again.

        ``selector`` and ``fields`` select by labels and by fields; empty: all. ``namespace``: empty: of all namespaces.
        """
        chosen = {"labelSelector": selector, "fieldSelector": fields}
        query = {"limit": str(PAGE), **{name: text for name, text in chosen.items() if text}}
        while True:
            page = await self._call("GET", api, namespace, query=query)
            metadata = page.get("metadata") or {}
            yield page.get("items") or [], metadata.get("resourceVersion", "")
            if not (going_on := metadata.get("continue")):
                return
            query["continue"] = going_on

    async def watch(
        self, api: ApiResource, version: str, *, selector: str = "", seconds: float
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) of each event after ``version``, bookmarks included, until the server ends the watch.

        The server does so after about ``seconds``. The first event is OPENED, with an empty object, because the API may
        send no event for a long time. ``selector``: by labels; empty: all objects. Raises GoneError when the version is
        too old, UnavailableError when the connection breaks or lasts ``WATCH_GRACE`` longer.
        """
        call = f"watching {api.plural}"
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
            **({"labelSelector": selector} if selector else {}),
        }
        ends = asyncio.get_running_loop().time() + seconds + WATCH_GRACE
        async with contextlib.AsyncExitStack() as stack:
            with self._translate_errors(call):
                async with asyncio.timeout(self._timeout_s):
                    response = await self._send("GET", api.path(), query=query)
            stack.callback(response.close)  # the connection cannot be used again before the response has ended
            if response.status != 200:
                with self._translate_errors(call):
                    async with asyncio.timeout(self._timeout_s):
                        raise self._note(error_of(call, response.status, await response.read(), response.headers))
            self.trouble = ""
            yield OPENED, {}
            while True:
                with self._translate_errors(call):
                    async with asyncio.timeout_at(ends):
                        line = await response.content.readline()
                    if not line:
                        return
                    event = _decoder.decode(line)
                kind, thing = event.get("type", ""), event.get("object") or {}
                if kind == "ERROR":
                    raise self._note(error_of(call, int(thing.get("code") or 500), msgspec.json.encode(thing), {}))
                yield kind, thing

    # --- writing ----------------------------------------------------------------------------------------------

    async def create(
        self, api: ApiResource, namespace: str, body: Object, *, strict: bool = False, timeout_s: float | None = None
    ) -> Object:
        """Create an object and return it; ``strict``: the server refuses unknown fields. Raises AlreadyExistsError."""
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
        """Merge ``body`` into an object (JSON merge-patch), and return the object.

        ``subresource``: such as ``status``. ``strict``: the server refuses unknown fields. Raises NotFoundError;
        StaleError if ``body`` has ``metadata.resourceVersion`` or ``uid``, and the object has another one.
        """
        at, query = (api, namespace, name, subresource), _query(strict)
        return await self._write("PATCH", *at, query=query, body=body, kind=MERGE_PATCH, timeout_s=timeout_s)

    async def delete(self, api: ApiResource, namespace: str, name: str, *, uid: str) -> None:
        """Delete an object and what it owns. Raises NotFoundError; StaleError if the object has another uid."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        await self._write("DELETE", api, namespace, name, body=body)

    # --- all calls --------------------------------------------------------------------------------------------

    async def _write(self, method: str, *args: Any, **options: Any) -> Object:
        """Make a call that changes something, and count it."""
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
        """Call until the server answers, at most ``timeout_s`` (None: the client's deadline); return the object.

        ``method``: of HTTP. ``query``: of the URL, whose path ``ApiResource.path`` makes of the names. ``accept`` and
        ``kind``: media types of the response and of ``body``. Only a call that the server did not begin
        to process is repeated.
        """
        at = "/".join(part for part in (namespace, name, subresource) if part)
        call = f"{method} {api.plural} {at}".rstrip()
        path = api.path(namespace, name, subresource)
        deadline = asyncio.get_running_loop().time() + (timeout_s or self._timeout_s)
        for attempt in range(1, ATTEMPTS + 1):
            with self._translate_errors(call):
                async with asyncio.timeout_at(deadline):
                    response = await self._send(method, path, query=query, body=body, accept=accept, kind=kind)
                    try:
                        answer = await response.read()
                    finally:
                        response.release()
                if 200 <= response.status < 300:
                    result = _decoder.decode(answer)
                    self.trouble = ""
                    return result
            error = error_of(call, response.status, answer, response.headers)
            pause = _pause(error)
            if pause is None or attempt == ATTEMPTS or asyncio.get_running_loop().time() + pause >= deadline:
                raise self._note(error)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: every attempt returns or raises")

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
        """Send one request; return the response with its content not read yet. Parameters are as of ``_call``."""
        if self._api is None:
            raise RuntimeError("use the client inside `async with`")
        method, url, headers, data, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        # the caller sets the deadline for connecting, sending and reading together, with asyncio
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s)
        answer = await self._api.call_api(method, url, headers, data, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    @contextlib.contextmanager
    def _translate_errors(self, call: str) -> Any:
        """Turn timeouts and errors of the connection in the block into an UnavailableError."""
        try:
            yield
        except TimeoutError as error:
            raise self._note(UnavailableError(call, 0, "the API server did not answer in time")) from error
        except (aiohttp.ClientError, ApiException, OpenApiException, OSError, ValueError) as error:
            # ValueError: invalid JSON, or a line above the size limit
            text = f"the API server cannot be reached: {str(error) or cause_of(error)}"
            raise self._note(UnavailableError(call, 0, text)) from error

    def _note(self, error: KubernetesApiError) -> KubernetesApiError:
        """Record whether an error shows that the server does not work; return the error."""
        self.trouble = str(error) if isinstance(error, UnavailableError) else ""
        return error


def _query(strict: bool) -> Mapping[str, str]:  # noqa: FBT001
    """Return the query that makes the server refuse unknown fields (``strict``), or drop them silently."""
    return {"fieldValidation": "Strict"} if strict else {}


def _pause(error: KubernetesApiError) -> float | None:
    """Return the seconds before a retry; None: no retry, because the server may have begun to process the call."""
    if not isinstance(error, UnavailableError):
        return None
    if error.status == 429 or (error.status == 503 and error.retry_after_s):
        return max(error.retry_after_s, LEAST_PAUSE)
    return None


async def load_configuration(kubeconfig: str = "") -> Configuration:
    """Return the address and credentials of the API server. Raises InvalidFieldError.

    ``kubeconfig``: a path; empty: the pod's service account, else $KUBECONFIG, else ``~/.kube/config``.
    """
    configuration = Configuration()
    if not kubeconfig and os.environ.get(IN_CLUSTER):
        try:
            loaders.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (loaders.ConfigException, OSError) as error:
            fix = f"this pod has no usable service account ({error}): configure one, or set {OPTION}"
            raise InvalidFieldError(IN_CLUSTER, os.environ[IN_CLUSTER], fix) from error
        return configuration
    field = OPTION if kubeconfig else VARIABLE
    path = _files(field, kubeconfig or os.environ.get(VARIABLE) or "~/.kube/config")
    try:
        await loaders.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # the loader reads YAML and certificates and runs programs: each may fail in its own way
        detail = " ".join(str(error).split())
        raise InvalidFieldError(field, path, f"write a kubeconfig that names cluster and user: {detail}") from error
    return configuration


def _files(field: str, path: str) -> str:
    """Return the existing ones of a list of paths, separated as in PATH. Raises InvalidFieldError if none exists."""
    files = [Path(part).expanduser() for part in path.split(os.pathsep) if part]
    if not any(file.is_file() for file in files):
        fix = f"there is no such file: give a kubeconfig with {OPTION} or ${VARIABLE}, or run GM as a pod"
        raise InvalidFieldError(field, path, fix)
    return os.pathsep.join(str(file) for file in files if file.is_file())


def own_namespace(name: str = "") -> str:
    """Return the namespace of GM's Lease: the given one, else the pod's own, else ``default``."""
    if name:
        return name
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
