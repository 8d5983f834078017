"""JSON merge patches (RFC 7386), JSON patches (RFC 6902), and kubectl's strategic merge for built-in kinds."""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.double.errors import ApiError, bad_request

MERGE, JSON, STRATEGIC, APPLY = (
    "application/merge-patch+json",
    "application/json-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
#: lists of built-in kinds that are merged item by item, and the field that tells items apart
_KEYS = {
    "containers": ("name",), "initContainers": ("name",), "ephemeralContainers": ("name",), "env": ("name",),
    "volumes": ("name",), "volumeMounts": ("mountPath",), "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"), "ownerReferences": ("uid",), "conditions": ("type",), "addresses": ("type",),
    "hostAliases": ("ip",), "secrets": ("name",), "topologySpreadConstraints": ("topologyKey",), "taints": ("key",),
}  # fmt: skip


def patched(content_type: str, current: dict[str, Any], patch: Any, *, custom: bool) -> dict[str, Any]:
    """Return the object after the patch. Raises ApiError (415, 400, 422)."""
    form = content_type.partition(";")[0].strip()
    if form == JSON:
        return json_patch(current, patch)
    if form in {MERGE, STRATEGIC} and not (form == STRATEGIC and custom):
        if not isinstance(patch, dict):
            raise bad_request("the patch is not an object")
        merged: dict[str, Any] = merge(current, patch) if form == MERGE else strategic(current, patch)
        return merged
    accepted = ", ".join([JSON, MERGE, *([] if custom else [STRATEGIC])])
    said = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    raise ApiError(415, "UnsupportedMediaType", said)


def merge(current: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: null deletes."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(current) if isinstance(current, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def strategic(current: Any, patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    merged = dict(current) if isinstance(current, dict) else {}
    if retained := patch.get("$retainKeys"):
        merged = {name: value for name, value in merged.items() if name in retained}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [each for each in merged.get(field) or [] if each not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = strategic(merged.get(name), value)
        elif isinstance(value, list):
            merged[name] = _lists(name, merged.get(name) or [], value)
        else:
            merged[name] = value
    return {name: value for name, value in merged.items() if not (isinstance(value, dict) and value.get("$patch"))}


def _lists(name: str, current: list[Any], patch: list[Any]) -> list[Any]:
    items = [*current, *patch]
    if name == "finalizers":
        return list(dict.fromkeys(items))
    key = next((k for k in _KEYS.get(name, ()) if items and all(isinstance(i, dict) for i in items)
                and any(k in item for item in items)), None)  # fmt: skip
    if key is None:
        return copy.deepcopy(patch)
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    merged = list(current)
    for item in patch:
        at = next((index for index, each in enumerate(merged) if each.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(strategic({}, item))
        else:
            merged[at] = strategic(merged[at], item)
    return merged


def json_patch(current: dict[str, Any], operations: Any) -> dict[str, Any]:
    """Apply a JSON patch: all of it or nothing."""
    root = {"": copy.deepcopy(current)}
    try:
        for each in operations:
            _operate(root, each)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as problem:
        said = "the server rejected our request due to an error in our request"
        raise ApiError(422, "Invalid", said, details={}) from problem
    return root[""]


def _operate(root: dict[str, Any], operation: dict[str, Any]) -> None:
    op, path = operation["op"], operation["path"]
    if op == "test":
        if _find(root, path) != operation["value"]:
            raise ValueError(path)
    elif op == "remove":
        _take(root, path)
    elif op == "replace":
        _take(root, path)
        _add(root, path, operation["value"])
    elif op == "add":
        _add(root, path, operation["value"])
    elif op == "move":
        _add(root, path, _take(root, operation["from"]))
    elif op == "copy":
        _add(root, path, copy.deepcopy(_find(root, operation["from"])))
    else:
        raise ValueError(op)


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]


def _find(value: Any, path: str) -> Any:
    for step in _steps(path):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _parent(root: Any, path: str) -> tuple[Any, str]:
    above, _, last = path.rpartition("/")
    return (root, path) if not path else (_find(root, above), _steps(last)[0])


def _take(root: Any, path: str) -> Any:
    parent, last = _parent(root, path)
    return parent.pop(int(last)) if isinstance(parent, list) else parent.pop(last)


def _add(root: Any, path: str, value: Any) -> None:
    parent, last = _parent(root, path)
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else int(last), value)
    else:
        parent[last] = value
