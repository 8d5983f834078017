"""The fields of message bodies, read from the message types and from the comments above their fields."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec import inspect as types

#: names of simple types in documents
SIMPLE_TYPES: dict[type, str] = {
    types.AnyType: "any",
    types.BoolType: "boolean",
    types.BytesType: "bytes",
    types.FloatType: "number",
    types.IntType: "integer",
    types.NoneType: "null",
    types.StrType: "text",
    types.MemoryViewType: "bytes",
}
#: a line of a comment, and a line with a field
_COMMENT = re.compile(r"\s*#: ?(.*)")
_FIELD = re.compile(r"    (\w+): ")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body, for documents.

    ``name``: that in the body. ``kind``: its type in Markdown. ``is_required``: it has no default. ``default``: JSON;
    empty if the default is empty, 0, false or null. ``doc``: its comment in Markdown, empty without one.
    """

    name: str
    kind: str
    is_required: bool
    default: str
    doc: str


def fields(kind: type) -> list[Field]:
    """Return the fields of a message type (a msgspec.Struct) in order."""
    docs = {name: _markdown(kind, text) for name, text in comments(kind).items()}
    return [
        Field(field.encode_name, _type_name(field.type), field.required, _default(field), docs.get(field.name, ""))
        for field in _struct(kind).fields
    ]


def is_array(kind: type) -> bool:
    """Whether a message type is written as an array of its fields, not as an object."""
    return _struct(kind).array_like


def comments(kind: type) -> dict[str, str]:
    """Return by field the comments (``#:``) above the fields of a class and of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is msgspec.Struct or not issubclass(base, msgspec.Struct):
            continue
        lines: list[str] = []
        for line in inspect.getsource(base).splitlines():
            if comment := _COMMENT.match(line):
                lines.append(comment[1])
                continue
            if (field := _FIELD.match(line)) and lines:
                docs[field[1]] = " ".join(lines)
            lines = []
    return docs


def message_types(kinds: Iterable[type]) -> list[type]:
    """Return the message types among some types, and all that their fields use, directly or not; each once."""
    visited: dict[type, None] = {}
    queue = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    while queue:
        kind = queue.pop(0)
        if kind not in visited:
            visited[kind] = None
            queue += [struct for field in _struct(kind).fields for struct in _structs(field.type)]
    return list(visited)


def nested_types(kinds: Iterable[type]) -> list[type]:
    """Return the message types of all fields of some types, once for each field that has them."""
    return [struct for kind in kinds for field in _struct(kind).fields for struct in _structs(field.type)]


def doc(kind: type) -> str:
    """Return a class's docstring in Markdown, in one line for each paragraph."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(_markdown(kind, " ".join(paragraph.split())) for paragraph in paragraphs)


def _markdown(kind: type, text: str) -> str:
    """Return reStructuredText as Markdown, with the names of fields in bodies."""
    text = text.replace("``", "`")
    for field in _struct(kind).fields:
        text = text.replace(f"`{field.name}`", f"`{field.encode_name}`")
    return text


def _struct(kind: type) -> types.StructType:
    """Return msgspec's description of a message type."""
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)  # noqa: S101 - for the type checker
    return info


def _structs(info: types.Type) -> Iterator[type]:
    """Yield the message types in a type, at any depth."""
    if isinstance(info, types.StructType):
        yield info.cls
    for inner in _inner_types(info):
        yield from _structs(inner)


def _inner_types(info: types.Type) -> tuple[types.Type, ...]:
    """Return the types directly in a type: of its items, keys, values or alternatives."""
    match info:
        case types.Metadata(type=annotated):
            return (annotated,)
        case types.UnionType(types=alternatives):
            return alternatives
        case types.ListType(item_type=item) | types.VarTupleType(item_type=item):
            return (item,)
        case types.DictType(key_type=key, value_type=value):
            return key, value
    return ()


def _type_name(info: types.Type) -> str:
    """Return the name of a type in Markdown. Message types are links, and ``null`` next to one is left out."""
    inner = [_type_name(inner_type) for inner_type in _inner_types(info)]
    match info:
        case types.Metadata():
            return inner[0]
        case types.UnionType():
            is_link = any(isinstance(alternative, types.StructType) for alternative in info.types)
            return " or ".join(sorted((name for name in inner if not is_link or name != "null"), key="null".__eq__))
        case types.ListType() | types.VarTupleType():
            return f"list of {inner[0]}"
        case types.DictType():
            return f"map of {inner[1]}"
        case types.LiteralType(values=values):
            *names, last = (f"`{value}`" if value != "" else "empty" for value in values)
            return f"{', '.join(names)} or {last}" if names else last
        case types.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
    return SIMPLE_TYPES[type(info)]


def _default(field: types.Field) -> str:
    """Return the default of a field as JSON, empty for an empty one."""
    value = "" if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default)
    return json.dumps(value) if value or isinstance(field.default, msgspec.Struct) else ""
