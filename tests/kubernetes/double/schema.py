"""Schemas of custom resources: unknown fields are dropped, defaults filled in, and what is wrong is named.

Types, bounds, patterns and enums are checked by `jsonschema` on a schema made from the OpenAPI one; the errors are put
into the real server's words. CEL rules (`x-kubernetes-validations`) are not evaluated here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from jsonschema import Draft4Validator, FormatChecker, ValidationError

from tests.kubernetes.double.errors import Cause, invalid, required, shown, unsupported

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
_KEPT = {
    "enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "required", "format",
}  # fmt: skip
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema (draft 4, as OpenAPI's) that says the same about types and bounds."""
    plain: dict[str, Any] = {key: schema[key] for key in schema if key in _KEPT}
    types = ["integer", "string"] if schema.get(INT_OR_STRING) else [schema["type"]] if "type" in schema else []
    nullable = schema.get("nullable", False)
    if types:
        plain["type"] = [*types, "null"] if nullable else types
    if nullable and "enum" in plain:
        plain["enum"] = [*plain["enum"], None]
    if "properties" in schema:
        plain["properties"] = {name: _plain(each) for name, each in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        plain["additionalProperties"] = _plain(schema["additionalProperties"])
    if "items" in schema:
        plain["items"] = _plain(schema["items"])
    plain |= {word: [_plain(each) for each in schema[word]] for word in ("allOf", "anyOf", "oneOf") if word in schema}
    if "not" in schema:
        plain["not"] = _plain(schema["not"])
    return plain


_FORMATS = FormatChecker(())
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


@_FORMATS.checks("date-time")
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or _TIME.fullmatch(value) is not None


class Schema:
    """The schema of one version of a custom resource."""

    def __init__(self, openapi: dict[str, Any]) -> None:
        self.openapi = openapi
        plain = _plain(openapi)
        properties = plain.get("properties", {})
        for name in ("apiVersion", "kind"):
            properties.pop(name, None)
        self._validator = Draft4Validator(plain, format_checker=_FORMATS)
        self._status = Draft4Validator(properties.get("status", {}), format_checker=_FORMATS)

    def prune(self, body: dict[str, Any]) -> list[str]:
        """Drop what the schema does not know (in place), and return its paths."""
        dropped: list[str] = []
        _prune(body, self.openapi, "", dropped, top=True)
        return dropped

    def fill(self, body: dict[str, Any]) -> None:
        _fill(body, self.openapi)

    def causes(self, body: dict[str, Any]) -> list[Cause]:
        plain = {key: value for key, value in body.items() if key not in {"apiVersion", "kind"}}
        return _all_causes(self._validator, plain, self.openapi, "")

    def status_causes(self, body: dict[str, Any]) -> list[Cause]:
        if (status := body.get("status")) is None:
            return []
        return _all_causes(self._status, status, self.openapi.get("properties", {}).get("status", {}), "status")


def _prune(value: Any, schema: dict[str, Any], path: str, dropped: list[str], *, top: bool = False) -> None:
    if isinstance(value, list) and (items := schema.get("items")) is not None:
        for index, each in enumerate(value):
            _prune(each, items, f"{path}[{index}]", dropped)
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    rest = schema.get("additionalProperties")
    known = {"apiVersion", "kind", "metadata"} if top or schema.get(EMBEDDED) else frozenset()
    for name in list(value):
        at = f"{path}.{name}" if path else name
        if name in known:
            continue
        if name in properties:
            _prune(value[name], properties[name], at, dropped)
        elif isinstance(rest, dict):
            _prune(value[name], rest, at, dropped)
        elif not schema.get(PRESERVE) and rest is not True:
            del value[name]
            dropped.append(at)


def _fill(value: Any, schema: dict[str, Any]) -> None:
    if isinstance(value, list) and "items" in schema:
        for each in value:
            _fill(each, schema["items"])
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    for name, each in properties.items():
        if name in value and value[name] is None and not each.get("nullable"):
            del value[name]
        if "default" in each and name not in value:
            value[name] = copy.deepcopy(each["default"])
        if name in value:
            _fill(value[name], each)
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict):
        for name in value.keys() - properties.keys():
            if value[name] is None and not rest.get("nullable"):
                del value[name]
            else:
                _fill(value[name], rest)


def _all_causes(validator: Draft4Validator, value: Any, schema: dict[str, Any], start: str) -> list[Cause]:
    causes = [cause for error in validator.iter_errors(value) for cause in _causes(error, start)]
    return [*dict.fromkeys(causes), *_lists(value, schema, start)]


def _path(parts: Any, start: str) -> str:
    path = start
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _causes(error: ValidationError, start: str) -> Iterator[Cause]:
    path = _path(error.absolute_path, start)
    value, limit, word = error.instance, error.validator_value, error.validator
    if word == "required":
        for name in limit:
            if name not in value:
                yield required(f"{path}.{name}" if path else name)
    elif word == "type":
        said = ",".join(each for each in limit if each != "null")
        kind = "null" if value is None else _TYPES[type(value)]
        cause = invalid(path, kind, f'{path} in body must be of type {said}: "{kind}"')
        yield Cause("FieldValueTypeInvalid", cause.field, cause.message)
    elif word == "enum":
        yield unsupported(path, value, [each for each in limit if each is not None])
    elif word == "maxLength":
        yield Cause("FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes")
    elif word in {"maxItems", "maxProperties"}:
        yield Cause("FieldValueTooMany", path, f"Too many: {len(value)}: must have at most {limit} items")
    else:
        shown_value = msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
        said = _SAID.get(str(word), "{message}").format(limit=limit, message=error.message)
        yield invalid(path, shown_value, f"{path} in body {said}")


_SAID = {
    "pattern": "should match '{limit}'",
    "minimum": "should be greater than or equal to {limit}",
    "maximum": "should be less than or equal to {limit}",
    "minLength": "should be at least {limit} chars long",
    "minItems": "should have at least {limit} items",
    "minProperties": "should have at least {limit} properties",
    "multipleOf": "should be a multiple of {limit}",
    "uniqueItems": "shouldn't contain duplicates",
    "anyOf": "must validate at least one schema (anyOf)",
    "oneOf": "must validate one and only one schema (oneOf)",
    "not": "must not validate the schema (not)",
    "format": "must be of type {limit}",
}


def _lists(value: Any, schema: dict[str, Any], path: str) -> Iterator[Cause]:
    """Lists that are sets or maps hold no two of one key."""
    if isinstance(value, dict):
        properties, rest = schema.get("properties") or {}, schema.get("additionalProperties")
        for name, each in value.items():
            below = properties.get(name, rest if isinstance(rest, dict) else None)
            if below:
                yield from _lists(each, below, f"{path}.{name}" if path else name)
    if not isinstance(value, list):
        return
    keys, seen = schema.get("x-kubernetes-list-map-keys"), set()
    for index, each in enumerate(value):
        yield from _lists(each, schema.get("items") or {}, f"{path}[{index}]")
        if not keys and schema.get("x-kubernetes-list-type") != "set":
            continue
        held = {key: each.get(key) for key in keys} if keys and isinstance(each, dict) else each
        mark = msgspec.json.encode(held)
        if mark in seen:
            text = mark.decode() if keys else shown(each)
            yield Cause("FieldValueDuplicate", f"{path}[{index}]", f"Duplicate value: {text}")
        seen.add(mark)
