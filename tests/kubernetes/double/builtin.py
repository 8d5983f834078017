"""Objects of built-in kinds as the real server decodes them: by the schemas that the package `kubernetes-validate` has.

A field of a wrong type is refused (400), an unknown one dropped; quantities become canonical; what Go leaves out when
it is empty (lists, maps, most strings and falses) is left out, so a client that compares naively sees a difference.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

from kubernetes_validate.utils import schema_contents

from tests.kubernetes.double.errors import ApiError, Cause, bad_request, required
from tests.kubernetes.double.kinds import Kind
from tests.kubernetes.double.quantities import canonical

RELEASE = "1.34"
_FOLDER = f"kubernetes-json-schema/v{RELEASE}.0-local"
_GROUPS = {
    "": "io.k8s.api.core",
    "coordination.k8s.io": "io.k8s.api.coordination",
    "rbac.authorization.k8s.io": "io.k8s.api.rbac",
    "networking.k8s.io": "io.k8s.api.networking",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
_GO = {"string": "string", "integer": "int32", "boolean": "bool", "number": "float64", "array": "[]", "object": "map"}
_JSON = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}
#: false says something else than nothing here
_FALSE_KEPT = {
    "automountServiceAccountToken", "enableServiceLinks", "optional", "privileged", "runAsNonRoot", "immutable",
    "started", "served", "storage", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "controller",
    "blockOwnerDeletion", "shareProcessNamespace", "hostUsers", "setHostnameAsFQDN", "allocateLoadBalancerNodePorts",
    "suspend",
}  # fmt: skip
#: zero says nothing here
_ZERO_DROPPED = {
    "minReadySeconds", "initialDelaySeconds", "hostPort", "nodePort", "observedGeneration", "generation",
    "readyReplicas", "updatedReplicas", "availableReplicas", "unavailableReplicas", "fullyLabeledReplicas",
}  # fmt: skip
#: an empty text says something else than nothing here
_EMPTY_KEPT = {"holderIdentity", "storageClassName", "ingressClassName", "key", "namespace", "apiGroup"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


@cache
def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = schema_contents(f"{_FOLDER}/_definitions.json", RELEASE)["$defs"]
    return found


@cache
def _root(group: str, version: str, kind: str) -> dict[str, Any]:
    prefix = _GROUPS.get(group, f"io.k8s.api.{group.partition('.')[0]}")
    return _definitions()[f"{prefix}.{version}.{kind}"]


def decode(kind: Kind, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the body as the server understands it, and the unknown fields that it dropped. Raises ApiError (400)."""
    reader = _Reader(kind)
    decoded = reader.object(body, _root(kind.group, kind.version, kind.kind), "")
    decoded["apiVersion"], decoded["kind"] = kind.api_version, kind.kind
    return decoded, reader.dropped


def decode_metadata(kind: Kind, meta: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a custom resource's metadata as the server understands it, and what it dropped."""
    reader = _Reader(kind)
    schema = _definitions()["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
    if not isinstance(meta, dict):
        raise bad_request(f"{kind.kind}.metadata is not an object")
    return reader.object(meta, schema, "metadata"), reader.dropped


def required_causes(kind: Kind, body: dict[str, Any]) -> list[Cause]:
    """Say which fields of `spec` are missing (other parts are the server's own)."""
    spec = _root(kind.group, kind.version, kind.kind)["properties"].get("spec")
    if spec is None:
        return []
    found: list[Cause] = []
    _required(body.get("spec") or {}, _resolve(spec)[0], "spec", found)
    return found


def _resolve(schema: dict[str, Any]) -> tuple[dict[str, Any], str]:
    ref = schema.get("$ref", "")
    if not ref:
        return schema, ""
    name = ref.removeprefix("#/$defs/").rpartition("/")[2]
    found, deeper = _resolve(_definitions()[name])
    return found, deeper or name.rpartition(".")[2]


def _required(value: Any, schema: dict[str, Any], path: str, found: list[Cause]) -> None:
    if isinstance(value, list):
        items = _resolve(schema.get("items", {}))[0]
        for index, each in enumerate(value):
            _required(each, items, f"{path}[{index}]", found)
    elif isinstance(value, dict):
        found += [required(f"{path}.{name}") for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            below = schema.get("properties", {}).get(name)
            if below is not None:
                _required(each, _resolve(below)[0], f"{path}.{name}", found)


class _Reader:
    """One pass over one object."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.dropped: list[str] = []

    def object(self, value: dict[str, Any], schema: dict[str, Any], path: str) -> dict[str, Any]:
        properties = schema.get("properties")
        rest = schema.get("additionalProperties")
        if properties is None and not isinstance(rest, dict):
            return value
        read: dict[str, Any] = {}
        for name, each in value.items():
            at = f"{path}.{name}" if path else name
            below = (properties or {}).get(name)
            if below is None and isinstance(rest, dict):
                if each is not None:
                    read[name] = self._value(each, rest, at, name, entry=True)
            elif below is None:
                self.dropped.append(at)
            elif each is not None:
                kept = self._value(each, below, at, name, needed=name in schema.get("required", ()))
                if kept is not None:
                    read[name] = kept
        return read

    def _value(
        self, value: Any, ref: dict[str, Any], path: str, name: str, *, entry: bool = False, needed: bool = False
    ) -> Any:
        schema, defined = _resolve(ref)
        if defined == "Quantity":
            return self._quantity(value, path)
        if defined in {"Time", "MicroTime"}:
            return self._time(value, path, micro=defined == "MicroTime")
        if defined == "IntOrString" or (defined.startswith("JSON") and "type" not in schema):
            return value
        types = schema.get("type", [])
        wanted = next((each for each in ([types] if isinstance(types, str) else types) if each != "null"), "")
        if wanted and not _is(value, wanted):
            go = _JSON[type(value)]
            said = f"json: cannot unmarshal {go} into Go struct field {self._kind.kind}.{path} of type {_GO[wanted]}"
            raise self._refused(said)
        if isinstance(value, dict):
            read = self.object(value, schema, path)
            is_map = isinstance(schema.get("additionalProperties"), dict)
            return None if is_map and not read and not entry else read
        if isinstance(value, list):
            items = schema.get("items", {})
            return [self._value(each, items, f"{path}[{i}]", name, entry=True) for i, each in enumerate(value)] or None
        return None if not (entry or needed) and _nothing(name, value) else value

    def _quantity(self, value: Any, path: str) -> str:
        # what containers ask for is counted in thousandths
        finest = 3 if path.split(".")[-2:-1] in (["limits"], ["requests"]) else 9
        number = isinstance(value, str | int | float) and not isinstance(value, bool)
        text = canonical(value, finest=finest) if number else None
        if text is None:
            said = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            raise self._refused(f"{said} ({path})")
        return text

    def _time(self, value: Any, path: str, *, micro: bool) -> str:
        found = _TIME.fullmatch(value) if isinstance(value, str) else None
        if found is None or (micro and len(found[2] or "") != 7):
            form = "2006-01-02T15:04:05.000000Z07:00" if micro else "2006-01-02T15:04:05Z07:00"
            said = f'parsing time "{value}" as "{form}": cannot parse'
            raise self._refused(f"{said} ({path})")
        at = datetime.fromisoformat(value).astimezone(UTC)
        return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")

    def _refused(self, why: str) -> ApiError:
        kind = self._kind
        return bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


def _nothing(name: str, value: Any) -> bool:
    if value == "" and isinstance(value, str):
        return name not in _EMPTY_KEPT
    if value is False:
        return name not in _FALSE_KEPT
    return value == 0 and not isinstance(value, bool) and name in _ZERO_DROPPED


def _is(value: Any, wanted: str) -> bool:
    if wanted == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if wanted == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool, "object": dict, "array": list}[wanted])


def unknown_fields(paths: list[str]) -> str:
    """Return the words about fields that strict decoding refuses."""
    listed = ", ".join(f'unknown field "{path}"' for path in paths)
    return f"strict decoding error: {listed}"
