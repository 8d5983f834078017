"""What clients ask first: which groups, versions and resources there are."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.double.builtin import RELEASE
from tests.kubernetes.double.kinds import Kind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def answer(path: str, kinds: list[Kind]) -> dict[str, Any] | None:
    """Return the answer to a path of discovery; None: there is none."""
    parts = path.strip("/").split("/")
    if path.rstrip("/") == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path.rstrip("/") == "/apis":
        names = dict.fromkeys(kind.group for kind in kinds if kind.group)
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, kinds) for name in names]}
    if path == "/version":
        major, minor = RELEASE.split(".")
        return {"major": major, "minor": minor, "gitVersion": f"v{RELEASE}.0-double", "platform": "linux/amd64"}
    if parts[:2] == ["openapi", "v3"]:
        return _openapi("/".join(parts[2:]), kinds)
    if parts[0] == "api" and len(parts) == 2:
        return _resources("", parts[1], kinds)
    if parts[0] == "apis" and len(parts) == 3:
        return _resources(parts[1], parts[2], kinds)
    return None


def _root(kind: Kind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _openapi(root: str, kinds: list[Kind]) -> dict[str, Any] | None:
    """Return as much of the OpenAPI documents as kubectl needs to leave the checking to the server."""
    if not root:
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in map(_root, kinds)}}
    here = [kind for kind in kinds if _root(kind) == root]
    if not here:
        return None
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")]
    paths = {}
    for kind in here:
        said = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        where = "/namespaces/{namespace}" if kind.namespaced else ""
        operation = {"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": said}
        paths[f"/{root}{where}/{kind.plural}/{{name}}"] = {"patch": operation}
    info = {"title": "double", "version": RELEASE}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _group(name: str, kinds: list[Kind]) -> dict[str, Any]:
    found = dict.fromkeys(kind.version for kind in kinds if kind.group == name)
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in found]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, kinds: list[Kind]) -> dict[str, Any] | None:
    here = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    if not here:
        return None
    resources = []
    for kind in here:
        entry: dict[str, Any] = {"name": kind.plural, "singularName": kind.singular or kind.kind.lower()}
        entry |= {"namespaced": kind.namespaced, "kind": kind.kind, "verbs": _VERBS}
        if kind.short:
            entry["shortNames"] = list(kind.short)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        resources.append(entry)
        if kind.status:
            status = {"name": f"{kind.plural}/status", "singularName": "", "namespaced": kind.namespaced}
            resources.append({**status, "kind": kind.kind, "verbs": ["get", "patch", "update"]})
    full = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": full, "resources": resources}
