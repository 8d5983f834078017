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
#: most names that an error lists
MOST_LISTED = 12


@dataclass(frozen=True, slots=True)
class ResourceField:
    """One field of a resource.

    ``path``: from the kind, such as ``spec.edgeWorker``; empty for the resource itself. ``schema``: from the CRD.
    ``required``: it must be set.
    """

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
        """The accepted values, of the field's items if it is a list; empty if the type allows any value."""
        return "; ".join(_limits(self.schema))

    @property
    def rules(self) -> list[str]:
        """The rules between its fields, each with the field of its error and the remedy.

        The rule that only some members of a union have a field is left out: the field's meaning names them.
        """
        rules = _object(self.schema).get("x-kubernetes-validations", [])
        texts = [f"{rule.get('fieldPath', '').lstrip('.')}: {rule['message']}".removeprefix(": ") for rule in rules]
        return [text for text in texts if "remove it: only " not in text]

    def fields(self) -> list[ResourceField]:
        """Return the fields of the object, or of the items of a list of objects."""
        parent = _object(self.schema)
        required = parent.get("required", [])
        return [
            ResourceField(f"{self.path}.{name}".lstrip("."), schema, name in required)
            for name, schema in parent.get("properties", {}).items()
        ]

    def walk(self) -> Iterator[ResourceField]:
        """Yield all fields below this one, each before its own fields."""
        for field in self.fields():
            yield field
            yield from field.walk()


def resource(kind: Kind) -> ResourceField:
    """Return the resource of a kind as a field with an empty path, to walk from."""
    return ResourceField("", definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def field_at(kind: Kind, path: Sequence[str]) -> ResourceField:
    """Return the field of a kind at a path of names, such as ``["spec", "tiers[0]", "name"]``; an index is ignored.

    Raises InvalidFieldError with the nearest field.
    """
    parent = whole = resource(kind)
    for name in path:
        fields = {field.path.rpartition(".")[2]: field for field in parent.fields()}
        plain = re.sub(r"\[\d*\]$", "", name)
        if plain not in fields:
            raise InvalidFieldError(f"{parent.path}.{name}".lstrip("."), name, _field_fix(plain, parent, whole))
        parent = fields[plain]
    return parent


def _field_fix(name: str, parent: ResourceField, whole: ResourceField) -> str:
    """Return the remedy for a name that is no field: the nearest field of its parent, else of all, else all names."""
    names = [field.path.rpartition(".")[2] for field in parent.fields()]
    if close := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {f'{parent.path}.{close[0]}'.lstrip('.')}?"
    paths: dict[str, str] = {}
    for field in whole.walk():
        paths.setdefault(field.path.rpartition(".")[2], field.path)
    if close := difflib.get_close_matches(name, paths, n=1):
        return f"did you mean {paths[close[0]]}?"
    more = ", ..." if len(names) > MOST_LISTED else ""
    return f"use one of {', '.join(names[:MOST_LISTED])}{more}" if names else f"{parent.path} has no fields"


def _object(schema: Schema) -> Schema:
    """Return the object of a schema: itself, or that of a list's items or a map's values."""
    while True:
        inner = schema.get("items") or schema.get("additionalProperties")
        if not isinstance(inner, dict):
            return schema
        schema = inner


def _type(schema: Schema) -> str:
    """Return the type of a schema in words."""
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    return TYPES.get(schema.get("type", ""), "object")


def _limits(schema: Schema) -> Iterator[str]:
    """Yield the limits of a schema in words, also those of its items or values."""
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
    """Yield the limit that two keywords of a schema set, if one is there."""
    least, most = schema.get(lower), schema.get(upper)
    if least is not None and most is not None:
        yield f"{least} to {most}{unit}"
    elif most is not None:
        yield f"at most {most}{unit}"
    elif least is not None:
        yield f"at least {least}{unit}"
