"""Requests on resources: read what HTTP carries, ask the rules, and answer."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from aiohttp import web

from tests.kubernetes.double import errors, forms
from tests.kubernetes.double.control import Request
from tests.kubernetes.double.definitions import establish
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.kinds import CRD, Kind
from tests.kubernetes.double.owners import Owners
from tests.kubernetes.double.patches import patched
from tests.kubernetes.double.removal import Remover, Wish
from tests.kubernetes.double.selectors import Matches, selected
from tests.kubernetes.double.store import Name, Store, Version
from tests.kubernetes.double.writing import Options, Writer

Body = dict[str, Any]
_NOT_ALLOWED = (405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Resources:
    """Answers everything but watches."""

    def __init__(self, store: Store, writer: Writer, remover: Remover, owners: Owners) -> None:
        self._store = store
        self._writer = writer
        self._remover = remover
        self._owners = owners

    async def answer(self, http: web.Request, request: Request, kind: Kind, form: str) -> web.Response:
        known = {"", "status"} if kind.status else {""}
        if request.subresource not in known:
            raise errors.no_such_page()
        if request.query.get("dryRun"):
            raise errors.bad_request("this server makes no dry runs")
        name = (request.namespace, request.name)
        match request.verb:
            case "get":
                version = self._store.get(kind.storage, name)
                if version is None:
                    raise errors.not_found(kind, request.name)
                return _json(forms.one(kind, version, form))
            case "list":
                return _json(self._list(request, kind, form))
            case "create":
                return self._create(request, kind, await _body(http), form)
            case "update" | "patch":
                return await self._update(http, request, kind, form)
            case "delete":
                wish = Wish.read(await _body(http, empty=True), request.query)
                version, gone = self._remover.delete(kind, name, wish)
                if gone and not kind.returns_deleted:
                    return _json(msgspec.json.encode(_success(kind, version)))
                return _json(forms.one(kind, version, form))
        raise ApiError(*_NOT_ALLOWED)

    def _create(self, request: Request, kind: Kind, body: Body, form: str) -> web.Response:
        if request.name:
            raise ApiError(*_NOT_ALLOWED)
        options = _options(request)
        if kind is CRD and isinstance(body.get("spec"), dict) and "names" in body["spec"]:
            body = msgspec.json.decode(msgspec.json.encode(body))
            establish(body)
        self._owners.check(request.user, kind, request.namespace, body)
        version = self._writer.create(kind, request.namespace, body, options)
        return _json(forms.one(kind, version, form), 201)

    async def _update(self, http: web.Request, request: Request, kind: Kind, form: str) -> web.Response:
        body = await _body(http)
        options = _options(request)
        name = (request.namespace, request.name)

        def make(current: Body) -> Body:
            new = body if request.verb == "update" else patched(http.content_type, current, body, custom=kind.custom)
            if not request.subresource:
                self._owners.check(request.user, kind, request.namespace, new, current)
            return new

        replace = request.verb == "update"
        version = self._writer.update(kind, name, make, request.subresource, options, replace=replace)
        return _json(forms.one(kind, version, form))

    def _list(self, request: Request, kind: Kind, form: str) -> bytes:
        query = request.query
        matches = selected(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        rv, start = self._store.rv, ("", "")
        wanted = query.get("resourceVersion", "")
        if wanted and not wanted.isdecimal():
            raise errors.no_version(wanted)
        if token := query.get("continue"):
            if wanted and wanted != "0":
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            rv, start = _read_token(token)
            if rv < 0:
                rv = self._store.rv
        elif wanted and int(wanted) > rv:
            details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
            details["retryAfterSeconds"] = 1  # type: ignore[assignment]
            said = f"Timeout: Too large resource version: {wanted}, current: {rv}"
            raise ApiError(504, "Timeout", said, details=details)
        objects = self._store.at(kind.storage, rv) if rv != self._store.rv else self._store.table(kind.storage).objects
        if objects is None:
            if not token:
                raise errors.expired(f"The resourceVersion for the provided list is too old: {rv}")
            raise errors.expired(_OLD, token=_token(-1, start))
        found = [version for version in _chosen(objects, request.namespace, matches) if version.name > start]
        meta: Body = {"resourceVersion": str(rv)}
        limit = int(query.get("limit") or 0)
        if 0 < limit < len(found):
            meta["continue"] = _token(rv, found[limit - 1].name)
            if matches is None:
                meta["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        if kind.custom and form == forms.WHOLE:
            meta.setdefault("continue", "")
        return forms.many(kind, found, meta, form)


def _chosen(objects: dict[Name, Version], namespace: str, matches: Matches | None) -> list[Version]:
    here = [objects[name] for name in sorted(objects) if not namespace or name[0] == namespace]
    return [version for version in here if matches is None or matches(version.body)]


async def _body(http: web.Request, *, empty: bool = False) -> Any:
    try:
        data = await http.read()
    except web.HTTPRequestEntityTooLarge as problem:
        said = "Request entity too large: limit is 3145728"
        raise ApiError(413, "RequestEntityTooLarge", said) from problem
    if empty and not data:
        return {}
    try:
        return msgspec.json.decode(data)
    except Exception as problem:
        raise errors.bad_request(f"error decoding the body: {problem}") from problem


def _json(data: bytes, code: int = 200) -> web.Response:
    return web.Response(status=code, body=data, content_type="application/json")


def _options(request: Request) -> Options:
    query = request.query
    manager = query.get("fieldManager") or request.agent.partition("/")[0] or "unknown"
    validation = query.get("fieldValidation") or "Warn"
    return Options(validation=validation, manager=manager[:128])


def _success(kind: Kind, version: Version) -> Body:
    meta = version.metadata
    details = errors.details_of(meta["name"], kind.group, kind.plural) | {"uid": meta["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _token(rv: int, start: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": rv, "start": start})).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        read = msgspec.json.decode(base64.urlsafe_b64decode(token))
        return int(read["rv"]), (read["start"][0], read["start"][1])
    except (ValueError, KeyError, TypeError, msgspec.DecodeError) as problem:
        raise errors.bad_request(f"continue key is not valid: {problem}") from problem
