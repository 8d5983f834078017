"""The fields of message bodies, read from the message types and from the comments above their fields."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect as types

#: names of simple types in documents
SIMPLE: dict[type, str] = {
    types.AnyType: "any",
    types.BoolType: "true or false",
    types.BytesType: "bytes",
    types.FloatType: "number",
    types.IntType: "integer",
    types.NoneType: "null",
    types.StrType: "text",
    types.MemoryViewType: "bytes",
}
_COMMENT = re.compile(r"\s*#: ?(.*)")
_FIELD = re.compile(r"    (\w+): ")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body. ``kind``: its type in Markdown, which may also be null if ``default`` is.

    ``default``: JSON, empty if the field is required.
    """

    name: str
    kind: str
    default: str
    doc: str


def fields(kind: type) -> list[Field]:
    """Return the fields of a message type in order."""
    docs = comments(kind)
    return [
        Field(f.encode_name, _name(f.type), _default(f), _markdown(kind, docs.get(f.name, "")))
        for f in _struct(kind).fields
    ]


def comments(kind: type) -> dict[str, str]:
    """Return the comments (``#:``) above the fields of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is msgspec.Struct or not issubclass(base, msgspec.Struct):
            continue
        lines: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if comment := _COMMENT.match(line):
                lines.append(comment[1])
                continue
            if (field := _FIELD.match(line)) and lines:
                found[field[1]] = " ".join(lines)
            lines = []
    return found


def parts(kinds: Iterable[type]) -> list[type]:
    """Return the message types that these use, directly or not, themselves included, each once."""
    found: dict[type, None] = {}
    waiting = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    while waiting:
        kind = waiting.pop(0)
        if kind not in found:
            found[kind] = None
            waiting += [part for field in _struct(kind).fields for part in _structs(field.type)]
    return list(found)


def doc(kind: type) -> str:
    """Return a class's docstring in Markdown, in one line for each paragraph."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(_markdown(kind, " ".join(paragraph.split())) for paragraph in paragraphs)


def _markdown(kind: type, text: str) -> str:
    """Return reStructuredText as Markdown, with the names that fields have in bodies."""
    text = text.replace("``", "`")
    for field in _struct(kind).fields:
        text = text.replace(f"`{field.name}`", f"`{field.encode_name}`")
    return text


def _struct(kind: type) -> types.StructType:
    found = types.type_info(kind)
    assert isinstance(found, types.StructType)  # noqa: S101 - for the type checker
    return found


def _structs(found: types.Type) -> Iterator[type]:
    if isinstance(found, types.StructType):
        yield found.cls
    for part in _inner(found):
        yield from _structs(part)


def _inner(found: types.Type) -> tuple[types.Type, ...]:
    match found:
        case types.Metadata(type=part):
            return (part,)
        case types.UnionType(types=parts_):
            return parts_
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
            return (item,)
        case types.DictType(key_type=key, value_type=value):
            return key, value
    return ()


def _name(found: types.Type) -> str:
    inner = [_name(part) for part in _inner(found)]
    match found:
        case types.Metadata():
            return inner[0]
        case types.UnionType():
            return " or ".join(name for name in inner if name != "null")
        case types.ListType() | types.VarTupleType():
            return f"list of {inner[0]}"
        case types.DictType():
            return f"map of {inner[1]}"
        case types.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case types.StructType(cls=cls):
            return f"[{cls.__name__}](#type-{cls.__name__.lower()})"
    return SIMPLE[type(found)]


def _default(field: types.Field) -> str:
    if field.required:
        return ""
    value: Any = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    return json.dumps(msgspec.to_builtins(value))
