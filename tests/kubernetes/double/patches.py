"""JSON merge patches (RFC 7386), and kubectl's strategic merge for built-in kinds."""

from __future__ import annotations

import copy
from typing import Any

from tests.kubernetes.double.errors import ApiError, bad_request

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
#: lists of built-in kinds that are merged item by item, and the field that tells items apart
_KEYS = {
    "containers": ("name",), "initContainers": ("name",), "ephemeralContainers": ("name",), "env": ("name",),
    "volumes": ("name",), "volumeMounts": ("mountPath",), "imagePullSecrets": ("name",),
    "ports": ("containerPort", "port"), "ownerReferences": ("uid",), "conditions": ("type",), "addresses": ("type",),
    "hostAliases": ("ip",), "secrets": ("name",), "topologySpreadConstraints": ("topologyKey",), "taints": ("key",),
}  # fmt: skip


def patched(content_type: str, current: dict[str, Any], patch: Any, *, custom: bool) -> dict[str, Any]:
    """Return the object after the patch. Raises ApiError (415, 400)."""
    form = content_type.partition(";")[0].strip()
    if form in {MERGE, STRATEGIC} and not (form == STRATEGIC and custom):
        if not isinstance(patch, dict):
            raise bad_request("the patch is not an object")
        merged: dict[str, Any] = merge(current, patch) if form == MERGE else strategic(current, patch)
        return merged
    accepted = ", ".join([MERGE, *([] if custom else [STRATEGIC])])
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
