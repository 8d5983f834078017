"""What a request's method and path ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True)
class Route:
    """A request on a resource."""

    verb: str
    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str


def route(method: str, path: str, query: Mapping[str, str]) -> Route | None:
    """Read a request; None: it is not about a resource."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", ""][:3]
    if len(rest) > 3:
        return None
    verb = _verb(method, query, named=bool(name))
    if verb in {"list", "watch", "deletecollection"} and not name:
        fields = (field.partition("=") for field in query.get("fieldSelector", "").split(","))
        name = next((value.lstrip("=") for key, _, value in fields if key == "metadata.name"), "")
    return Route(verb, group, version, plural, namespace, name, subresource)


def _verb(method: str, query: Mapping[str, str], *, named: bool) -> str:
    if method in {"GET", "HEAD"}:
        if query.get("watch") in {"true", "1"}:
            return "watch"
        return "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    return _VERBS.get(method, method.lower())
