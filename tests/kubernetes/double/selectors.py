"""Label and field selectors of list, watch and deletecollection."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.kubernetes.double.errors import bad_request
from tests.kubernetes.double.kinds import Kind
from tests.kubernetes.double.names import label_key_problem, label_value_problem

Labels = dict[str, str]
Matches = Callable[[dict[str, Any]], bool]
_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s!=]*)$")


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [piece.strip() for piece in [*parts, part]]


def _requirement(text: str) -> Callable[[Labels], bool]:
    key, op, values = text, "exists", [""]
    if found := _SET.match(text):
        key, op = found["key"], found["op"]
        values = [value.strip() for value in found["values"].split(",")]
    elif found := _EQUAL.match(text):
        key, values = found["key"], [found["value"]]
        op = "notin" if found["op"] == "!=" else "in"
    elif text.startswith("!"):
        key, op = text[1:].strip(), "absent"
    problem = label_key_problem(key) or next(filter(None, map(label_value_problem, values)), None)
    if problem:
        raise bad_request(f"unable to parse requirement: {problem}")
    chosen = frozenset(values)
    if op == "in":
        return lambda labels: labels.get(key) in chosen
    if op == "notin":
        return lambda labels: labels.get(key) not in chosen
    if op == "exists":
        return lambda labels: key in labels
    return lambda labels: key not in labels


def labels_match(text: str) -> Callable[[Labels], bool]:
    """Read a label selector (equality and set based)."""
    requirements = [_requirement(part) for part in _split(text)] if text.strip() else []
    return lambda labels: all(holds(labels) for holds in requirements)


def _value(body: dict[str, Any], path: str) -> str:
    found: Any = body
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)


def _field(kind: Kind, text: str) -> Matches:
    found = _EQUAL.match(text)
    if not found:
        raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    path, value, same = found["key"], found["value"], found["op"] != "!="
    if path not in {"metadata.name", "metadata.namespace", *kind.fields}:
        detail = f'field selector "{text}": field label not supported: {path}'
        raise bad_request(f'Unable to find "{kind.resource}" that match label selector "", {detail}')
    return lambda body: (_value(body, path) == value) is same


def selected(kind: Kind, labels: str, fields: str) -> Matches | None:
    """Read both selectors; None: everything matches."""
    if not labels.strip() and not fields.strip():
        return None
    by_labels = labels_match(labels)
    by_fields = [_field(kind, part) for part in _split(fields)] if fields.strip() else []
    return lambda body: by_labels(body["metadata"].get("labels") or {}) and all(matches(body) for matches in by_fields)
