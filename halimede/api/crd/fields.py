"""The fields of a kind, read from its definition: what ``halimede explain`` and the reference pages show.

Each field has its path, type, limits, default and meaning. All of them come from the types of ``halimede.api``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from halimede.api.base import Kind
from halimede.api.crd.definition import Schema, definition
from halimede.errors import InvalidFieldError

#: the plain names of a schema's types
TYPES = {"array": "list", "number": "number", "integer": "integer", "string": "string", "boolean": "boolean"}
#: names that an error lists
MOST_LISTED = 12


@dataclass(frozen=True, slots=True)
class ResourceField:
    """One field of a resource: its path from the kind (``spec.edgeWorker``; empty for the resource), and its schema."""

    path: str
    schema: Schema
    required: bool = False

    @property
    def type(self) -> str:
        """The type: ``list of string``, ``map of string``, ``object``."""
        return _type(self.schema)

    @property
    def meaning(self) -> str:
        """What the field is; empty if the path explains it."""
        return str(self.schema.get("description", ""))

    @property
    def default(self) -> str:
        """The default as JSON, ``required`` for a field that must be set, or empty: absent."""
        if "default" in self.schema:
            return json.dumps(self.schema["default"])
        return "required" if self.required else ""

    @property
    def limits(self) -> str:
        """What values are accepted, of the field's items if it is a list; empty if the type allows any."""
        return "; ".join(_limits(self.schema))

    @property
    def rules(self) -> list[str]:
        """What its fields must be together, each with its field and the remedy of its error.

        Fields of only some members of a union are left out: their meaning says it.
        """
        found = _object(self.schema).get("x-kubernetes-validations", [])
        texts = [f"{rule.get('fieldPath', '').lstrip('.')}: {rule['message']}".removeprefix(": ") for rule in found]
        return [text for text in texts if "remove it: only " not in text]

    def fields(self) -> list[ResourceField]:
        """Return the fields of the object, or of the items of a list of objects."""
        below = _object(self.schema)
        required = below.get("required", [])
        return [
            ResourceField(f"{self.path}.{name}".lstrip("."), schema, name in required)
            for name, schema in below.get("properties", {}).items()
        ]

    def walk(self) -> Iterator[ResourceField]:
        """Yield all fields below this one, each before its own fields."""
        for field in self.fields():
            yield field
            yield from field.walk()


def resource(kind: Kind) -> ResourceField:
    """Return the resource of a kind as a field with an empty path."""
    return ResourceField("", definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def field_at(kind: Kind, path: Sequence[str]) -> ResourceField:
    """Return the field of a kind at a path of names; an index (``tiers[0]``) is ignored.

    Raises InvalidFieldError with the nearest field.
    """
    here = whole = resource(kind)
    for name in path:
        below = {field.path.rpartition(".")[2]: field for field in here.fields()}
        plain = re.sub(r"\[\d*\]$", "", name)
        if plain not in below:
            raise InvalidFieldError(f"{here.path}.{name}".lstrip("."), name, _nearest(plain, here, whole))
        here = below[plain]
    return here


def _nearest(name: str, here: ResourceField, whole: ResourceField) -> str:
    """Return the remedy for a name that is no field: the nearest one here, else anywhere, else the fields here."""
    names = [field.path.rpartition(".")[2] for field in here.fields()]
    if close := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {f'{here.path}.{close[0]}'.lstrip('.')}?"
    paths: dict[str, str] = {}
    for field in whole.walk():
        paths.setdefault(field.path.rpartition(".")[2], field.path)
    if close := difflib.get_close_matches(name, paths, n=1):
        return f"did you mean {paths[close[0]]}?"
    more = ", ..." if len(names) > MOST_LISTED else ""
    return f"use one of {', '.join(names[:MOST_LISTED])}{more}" if names else f"{here.path} has no fields"


def _object(schema: Schema) -> Schema:
    """Return the object of a schema: itself, or that of a list's items or a map's values."""
    while True:
        inner = schema.get("items") or schema.get("additionalProperties")
        if not isinstance(inner, dict):
            return schema
        schema = inner


def _type(schema: Schema) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    return TYPES.get(schema.get("type", ""), "object")


def _limits(schema: Schema) -> Iterator[str]:
    if "enum" in schema:
        yield f"one of {', '.join(map(str, schema['enum']))}"
    yield from _range(schema, "minimum", "maximum", "")
    yield from _range(schema, "minLength", "maxLength", " characters")
    yield from _range(schema, "minItems", "maxItems", " items")
    yield from _range(schema, "minProperties", "maxProperties", " entries")
    if "pattern" in schema:
        yield f"pattern {schema['pattern']}"
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, dict) and "properties" not in inner:
        yield from (f"each: {limit}" for limit in _limits(inner))


def _range(schema: Schema, lower: str, upper: str, unit: str) -> Iterator[str]:
    least, most = schema.get(lower), schema.get(upper)
    if least is not None and most is not None:
        yield f"{least} to {most}{unit}"
    elif most is not None:
        yield f"at most {most}{unit}"
    elif least is not None:
        yield f"at least {least}{unit}"
