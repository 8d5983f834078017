"""Strategies for what comes in from outside: any plain data, valid bodies of any message type, and spoiled ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_origin

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from halimede.api.processing import ANCHOR_PATTERN, FILE_PATTERN, FUNCTION_PATTERN
from halimede.api.schema import KEYWORDS, pattern
from halimede.api.trainingmodel import CODE
from halimede.names import LABEL_PATTERN, NAME_PATTERN

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

texts = st.text(max_size=12) | st.sampled_from(["a", "a.b", "../..", "+", "#", "\0", "nan", "0", "1e9", "x" * 5000])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=10,
)

names = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?\Z")
#: what a pattern of the contract asks for, in a form that generates
PATTERNS = {
    NAME_PATTERN: names,
    LABEL_PATTERN: names,
    pattern(NAME_PATTERN)[KEYWORDS]["pattern"]: names,
    pattern(NAME_PATTERN, optional=True)[KEYWORDS]["pattern"]: st.just("") | names,
    r"^[^=\x00]+$": st.text(st.characters(exclude_characters="=\0", codec="utf-8"), min_size=1, max_size=20),
    "^([0-9a-f]{64})?$": st.just("") | st.binary(min_size=32, max_size=32).map(bytes.hex),
    r"^[0-9a-f]{64}$(?!\n)": st.binary(min_size=32, max_size=32).map(bytes.hex),
    "^([0-9a-f]{32})?$": st.just("") | st.binary(min_size=16, max_size=16).map(bytes.hex),
    "^[0-9a-f]{64}$": st.binary(min_size=32, max_size=32).map(bytes.hex),
    "^[0-9a-f]{32}$": st.binary(min_size=16, max_size=16).map(bytes.hex),
    r"^([A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*)?$": st.sampled_from(["", "mine:app", "a.b:C.d"]),
    FILE_PATTERN: st.sampled_from(["post.py", "lib/a-b_c.d/post.py"]),
    pattern(ANCHOR_PATTERN, optional=True)[KEYWORDS]["pattern"]: st.sampled_from(["", "anchors.npy", "lib/a-b.csv"]),
    FUNCTION_PATTERN: st.sampled_from(["postprocess", "_read1"]),
    r"^([01]?[0-9]|2[0-4]):[0-5][0-9]$": st.sampled_from(["02:00", "9:30", "24:00"]),
    r"^([<>]=?|==?)$": st.sampled_from([">", "<=", "="]),
    CODE: st.sampled_from(["Perceptron", "mine:Digits", "train.py:Digits"]),
    r"^-?[0-9]{1,3}$(?!\n)": st.integers(-999, 999).map(str),
}


@cache
def valid(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy for valid values of a message type; always the same one, as they take long to make."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:  # noqa: PLR0912 (one line a type)
    match info:
        case inspect.Metadata(extra={"shape": shape}):
            made = valid(shape).map(msgspec.to_builtins)
            return made | st.none() if isinstance(info.type, inspect.UnionType) else made
        case inspect.Metadata(extra={"crd": {"pattern": text}}):
            return PATTERNS[text]
        case inspect.Metadata():
            return _of(info.type)
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            low = info.ge if info.ge is not None else -(2**53)
            return st.integers(low, info.le if info.le is not None else 2**63 - 1)
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False, allow_infinity=False).map(lambda x: x + 0.0)
        case inspect.StrType():
            if info.pattern:
                return PATTERNS[info.pattern]
            return st.text(min_size=info.min_length or 0, max_size=min(info.max_length or 20, 20))
        case inspect.BytesType() | inspect.MemoryViewType():
            most = max(info.min_length or 0, min(info.max_length or 40, 40))
            made = st.binary(min_size=info.min_length or 0, max_size=most)
            return made.map(memoryview) if isinstance(info, inspect.MemoryViewType) else made
        case inspect.LiteralType():
            return st.sampled_from(list(info.values))
        case inspect.UnionType():
            return st.one_of([_of(kind) for kind in info.types])
        case inspect.ListType():
            least = info.min_length or 0
            return st.lists(_of(info.item_type), min_size=least, max_size=max(least, min(info.max_length or 2, 2)))
        case inspect.DictType():
            most = min(info.max_length or 3, 3)
            return st.dictionaries(_of(info.key_type), _of(info.value_type), max_size=most)
        case inspect.StructType():
            return st.builds(info.cls, **{field.name: _of(field.type) for field in info.fields})
        case inspect.AnyType():
            return json_values.filter(fits)
        case _:
            raise TypeError(f"no strategy for {info}")


def fits(value: Any) -> bool:
    """Whether a JSON value is one that our encoders write: its integers have at most 64 bits."""
    if isinstance(value, dict | list):
        return all(fits(item) for item in (value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or -(2**63) <= value < 2**64


@st.composite
def spoiled(draw: st.DrawFn, body: Any) -> Any:
    """Return a copy of plain data in which one to three parts are replaced, removed or added to."""
    body = copy.deepcopy(body, {id(part): part for part in _views(body)})
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(body))
        if not places:
            return draw(json_values)
        holder, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                holder[key] = draw(json_values)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(texts)] = draw(json_values)
            case _:
                holder.append(draw(json_values))
    return body


def _views(body: Any) -> list[memoryview]:
    return [holder[key] for holder, key in _places(body) if isinstance(holder[key], memoryview)]


def _places(body: Any) -> Any:
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in items:
        yield body, key
        yield from _places(value)


def is_struct(kind: Any) -> bool:
    """Whether a message type is one of ours: camera frames and resource bodies are plain bytes and maps."""
    return get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def attempt(call: Callable[..., T], *args: Any, refusal: type[E]) -> tuple[T | None, E | None]:
    """Return what a parser gives, or the one error that it may raise."""
    try:
        return call(*args), None
    except refusal as error:
        return None, error
