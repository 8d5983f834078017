"""The forms in which objects are shown: whole, metadata only, or rows of a table as `kubectl get` prints them."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.kubernetes.double.columns import columns_of, row
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.kinds import Kind
from tests.kubernetes.double.store import Event, Version

WHOLE, META, TABLE = "", "PartialObjectMetadata", "Table"
META_VERSION = "meta.k8s.io/v1"
_encode = msgspec.json.encode


def negotiated(accept: str) -> str:
    """Return the form that an Accept header asks for first, of those that there are. Raises ApiError (406)."""
    for part in (accept or "*/*").split(","):
        media, *rest = [piece.strip() for piece in part.split(";")]
        parameters = dict(piece.partition("=")[::2] for piece in rest)
        if media not in {"application/json", "application/*", "*/*"}:
            continue
        form = parameters.get("as", "")
        if not form:
            return WHOLE
        if form in {META, TABLE} and (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1"):
            return form
    accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    raise ApiError(406, "NotAcceptable", f"only the following media types are accepted: {accepted}", details={})


def _meta(version: Version) -> dict[str, Any]:
    return {"kind": META, "apiVersion": META_VERSION, "metadata": version.metadata}


def _item(kind: Kind, version: Version) -> bytes:
    """Return an object in a list: built-in kinds do not repeat kind and apiVersion there."""
    if kind.custom:
        return version.data

    return version.form("item", _bare)


def _bare(version: Version) -> Any:
    return {name: value for name, value in version.body.items() if name not in {"apiVersion", "kind"}}


def one(kind: Kind, version: Version, form: str) -> bytes:
    if form == META:
        return version.form(META, _meta)
    if form == TABLE:
        return _encode(table(kind, [version], {"resourceVersion": version.metadata["resourceVersion"]}))
    return version.data


def many(kind: Kind, versions: list[Version], meta: dict[str, Any], form: str) -> bytes:
    if form == META:
        raise ApiError(406, "NotAcceptable", f"the requested object is a list (*{kind.kind}List)", details={})
    if form == TABLE:
        return _encode(table(kind, versions, meta))
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta}
    items = [_item(kind, version) for version in versions]
    return _encode(head)[:-1] + b',"items":[' + b",".join(items) + b"]}"


def table(kind: Kind, versions: list[Version], meta: dict[str, Any]) -> dict[str, Any]:
    """Return the table that `kubectl get` prints."""
    columns = columns_of(kind)
    rows = [{"cells": row(columns, version.body), "object": _meta(version)} for version in versions]
    shown = [{name: value for name, value in column.items() if name != "jsonPath"} for column in columns]
    return {"kind": TABLE, "apiVersion": META_VERSION, "metadata": meta, "columnDefinitions": shown, "rows": rows}


def line(kind: Kind, event: Event, change: str, version: Version, form: str) -> bytes:
    """Return one line of a watch, encoded once for all watches of one form."""
    key = (change, form, kind.group, kind.plural)
    data = event.lines.get(key)
    if data is None:
        if change == "DELETED" and version.rv != event.rv:
            body = version.copy()
            body["metadata"]["resourceVersion"] = str(event.rv)
            version = Version(body)
        data = event.lines[key] = added(kind, change, version, form)
    return data


def added(kind: Kind, change: str, version: Version, form: str) -> bytes:
    """Return a line about a version that no event brought."""
    return b'{"type":"' + change.encode() + b'","object":' + one(kind, version, form) + b"}\n"


def bookmark(kind: Kind, rv: int) -> bytes:
    """Return the line that only tells how far the watch is."""
    body: dict[str, Any] = {"kind": kind.kind, "apiVersion": kind.api_version}
    body["metadata"] = {"resourceVersion": str(rv), "creationTimestamp": None}
    return b'{"type":"BOOKMARK","object":' + _encode(body) + b"}\n"


def failure(error: ApiError) -> bytes:
    return b'{"type":"ERROR","object":' + _encode(error.status()) + b"}\n"
