"""Printer columns: JSONPath as custom resource definitions use it, and ages as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from tests.kubernetes.double.kinds import Kind

_NAME = {"name": "Name", "type": "string", "format": "name", "priority": 0, "jsonPath": ".metadata.name"}
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_STEP = re.compile(
    r"""\.((?:[^.\[\\]|\\.)+)|\[(-?\d+|\*)\]|\[['"]([^'"]+)['"]\]|\[\?\(@\.([\w.]+)\s*==\s*['"]([^'"]*)['"]\)\]"""
)


def columns_of(kind: Kind) -> list[dict[str, Any]]:
    """Return a kind's columns; the name comes first."""
    custom = [{"priority": 0, "format": "", "description": "", **column} for column in kind.columns or (_AGE,)]
    return [{"description": "Name must be unique within a namespace.", **_NAME}, *custom]


def row(columns: list[dict[str, Any]], body: dict[str, Any]) -> list[Any]:
    return [_cell(column, find(body, column["jsonPath"])) for column in columns]


def find(body: Any, path: str) -> list[Any]:
    """Return what a JSONPath finds, in order."""
    found = [body]
    at = 0
    path = path.strip().removeprefix("{").removesuffix("}")
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return []
        at = step.end()
        found = [each for value in found for each in _below(value, step)]
    return found


def _below(value: Any, step: re.Match[str]) -> list[Any]:
    name, index, quoted, key, wanted = step.groups()
    if name is not None or quoted is not None:
        name = quoted if quoted is not None else re.sub(r"\\(.)", r"\1", name)
        return [value[name]] if isinstance(value, dict) and name in value else []
    if not isinstance(value, list):
        return []
    if key is not None:
        return [each for each in value if find(each, f".{key}") == [wanted]]
    if index == "*":
        return value
    return [value[int(index)]] if -len(value) <= int(index) < len(value) else []


def _cell(column: dict[str, Any], found: list[Any]) -> Any:
    if not found or found[0] is None:
        return "<unknown>" if column["type"] == "date" and column["name"] == "Age" else None
    if column["type"] == "date":
        return age(str(found[0]))
    if column["type"] == "string":
        return " ".join(map(_text, found)) if len(found) > 1 else _text(found[0])
    return found[0]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def age(timestamp: str) -> str:
    """Return how long ago something was, as kubectl shows it within two minutes."""
    passed = datetime.now(UTC) - datetime.fromisoformat(timestamp)
    return f"{max(0, int(passed.total_seconds()))}s"
