"""The CRDs as tests use them: the schema of a kind, what an object breaks in it, and its defaults filled in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from halimede.api.crd import definitions

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "crds"
DEFINITIONS = definitions()


def schema_of(api_version: str, kind: str) -> dict[str, Any]:
    for body in DEFINITIONS.values():
        spec = body["spec"]
        for version in spec["versions"]:
            if (f"{spec['group']}/{version['name']}", spec["names"]["kind"]) == (api_version, kind):
                return version["schema"]["openAPIV3Schema"]
    raise KeyError(f"{api_version} {kind}")


def problems(body: dict[str, Any]) -> dict[str, str]:
    """Return what a body breaks in its schema: path of the field, and the reason."""
    found = _validator(body["apiVersion"], body["kind"]).iter_errors(body)
    return {
        "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in e.path)[1:]: e.message for e in found
    }


@cache
def _validator(api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(api_version, kind))


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each level of a schema with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """Return plain data with the schema's defaults, as the API server stores it."""
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    filled = copy.copy(value)
    for name, inner in schema.get("properties", {}).items():
        if name not in filled and "default" in inner:
            filled[name] = inner["default"]
        if name in filled:
            filled[name] = with_defaults(filled[name], inner)
    return filled
