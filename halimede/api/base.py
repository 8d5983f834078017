"""What all kinds share: metadata, the registry of kinds, and parsing with errors that name the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from halimede.api.schema import PrinterColumn, ValidationRule
from halimede.errors import InvalidFieldError, check_all, one_line, together
from halimede.messages import ResourceBody
from halimede.names import FIX, Key, check_label, check_name

S = TypeVar("S", bound="Spec")

SEDNA = "sedna.io/v1alpha1"
NEPTUNE = "neptune.io/v1alpha1"
MAX_NODES_IN_BODY = 100_000
#: most errors that are explained of one part of a body: a hostile one must not cost more
MOST_ERRORS = 50
#: msgspec's text for a value that is outside of limits: the kind of the value
OF_LIMIT = re.compile(r"Expected `(\w+)`(?: of length)? [<>].*")
#: the words of a schema for the least value, for a value below all, and for the greatest one
LIMITS = (
    ("minimum", "minLength", "minItems", "minProperties"),
    ("exclusiveMinimum",),
    ("maximum", "maxLength", "maxItems", "maxProperties"),
)
#: what is counted in texts, lists and mappings
UNITS = {"str": "characters", "array": "items", "object": "entries"}
NESTED = (dict, list)
#: the order of a kind that refers to others
LAST = 9
#: the fields of a resource
PARTS = ("apiVersion", "kind", "metadata", "spec", "status")


class Spec(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every typed part of a resource: unknown fields are errors.

    ``rules`` are the checks between fields for the API server, equal to those of ``check`` here.
    """

    rules: ClassVar[tuple[ValidationRule, ...]] = ()


class ObjectMeta(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The part of Kubernetes' metadata that halimede reads; other fields are kept unchanged."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: Annotated[int, Meta(ge=0)] = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Resource(Generic[S]):
    """A checked resource: its typed spec, and the body as the user wrote it."""

    kind: Kind
    metadata: ObjectMeta
    spec: S
    body: ResourceBody

    @property
    def key(self) -> Key:
        """Plural, namespace and name."""
        return Key(self.kind.plural, self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class Kind:
    """A registered kind. ``check`` checks what types cannot express, and raises InvalidFieldError.

    ``admit`` checks more of a resource that a user creates or changes (see the function ``admit``).

    ``columns`` and ``name_limit`` are for the API server: the columns of ``kubectl get``, and the longest name with
    which services and labels can be named after the resource (0: any resource name is valid).

    Attributes:
        order: the position in which several manifests are applied: resources that others refer to come first.
        relative_url: whether ``spec.url`` may be relative to its manifest.
        versioned: whether its status remembers versions for a rollback.

    """

    api_version: str
    kind: str
    plural: str
    short_names: tuple[str, ...]
    spec: type[Spec]
    check: Callable[[Any], None]
    admit: Callable[[Any], None]
    columns: tuple[PrinterColumn, ...] = ()
    name_limit: int = 0
    order: int = LAST
    relative_url: bool = False
    versioned: bool = False


_kinds: dict[tuple[str, str], Kind] = {}


def register(
    api_version: str,
    kind: str,
    plural: str,
    *short_names: str,
    check: Callable[[Any], None] = lambda _: None,
    admit: Callable[[Any], None] = lambda _: None,
    columns: tuple[PrinterColumn, ...] = (),
    name_limit: int = 0,
    order: int = LAST,
    relative_url: bool = False,
    versioned: bool = False,
) -> Callable[[type[S]], type[S]]:
    """Register a spec class as the kind ``kind`` of ``api_version``."""

    def add(spec: type[S]) -> type[S]:
        if (api_version, kind) in _kinds:
            raise ValueError(f"{api_version} {kind} is registered twice")
        _kinds[api_version, kind] = Kind(
            api_version,
            kind,
            plural,
            short_names,
            spec,
            check,
            admit,
            columns,
            name_limit,
            order,
            relative_url,
            versioned,
        )
        return spec

    return add


def kinds() -> tuple[Kind, ...]:
    """Return all registered kinds."""
    return tuple(_kinds.values())


def plurals() -> tuple[Kind, ...]:
    """Return one kind of each plural (that of sedna.io), in the order in which manifests are applied."""
    return tuple(sorted((kind for kind in kinds() if kind.api_version == SEDNA), key=lambda kind: kind.order))


def kind_of(word: str) -> Kind:
    """Return the kind for a kind, plural or short name of a user (sedna.io before neptune.io)."""
    wanted = word.lower()
    for kind in sorted(kinds(), key=lambda k: k.api_version != SEDNA):
        if wanted in {kind.kind.lower(), kind.plural, *kind.short_names}:
            return kind
    known = ", ".join(sorted({name for k in kinds() for name in (k.plural, *k.short_names)}))
    raise InvalidFieldError("kind", word, f"use one of {known}")


def parse(body: object) -> Resource[Any]:
    """Check a resource as a user wrote it or the API server returned it.

    Raises InvalidFieldError with all invalid fields; what fields must be together is checked when each is valid.
    """
    return _checked(body, admission=False)


def _checked(body: object, *, admission: bool) -> Resource[Any]:
    if not isinstance(body, dict):
        raise InvalidFieldError("resource", body, "write a mapping with apiVersion, kind, metadata and spec")
    _bound(body)
    api_version, word = str(body.get("apiVersion", "")), str(body.get("kind", ""))
    kind = _kinds.get((api_version, word))
    if kind is None:
        if word in {k for _, k in _kinds}:
            right = ", ".join(sorted(v for v, k in _kinds if k == word))
            raise InvalidFieldError("apiVersion", api_version, f"use {right} for kind {word}")
        raise InvalidFieldError("kind", word, "use one of " + ", ".join(sorted({k for _, k in _kinds})))
    found, misspelled = _unknown_parts(body)
    metadata = spec = None
    try:
        metadata = convert(body.get("metadata"), ObjectMeta, "metadata")
        check_all(
            partial(check_name, "metadata.name", metadata.name),
            partial(check_label, "metadata.namespace", metadata.namespace),
        )
    except InvalidFieldError as error:
        found += [] if "metadata" in misspelled else [error]
    try:
        spec = convert(body.get("spec"), kind.spec, "spec")
        check_all(partial(kind.check, spec), *([partial(kind.admit, spec)] if admission else []))
    except InvalidFieldError as error:
        found += [] if "spec" in misspelled else [error]
    if metadata is None or spec is None or found:
        raise together(found)
    return Resource(kind, metadata, spec, body)


def _unknown_parts(body: Mapping[object, object]) -> tuple[list[InvalidFieldError], set[str]]:
    """Return the errors of fields that no resource has, and the missing parts that they probably are."""
    found: list[InvalidFieldError] = []
    meant = set[str]()
    for name in sorted(set(body) - set(PARTS), key=str):
        close = difflib.get_close_matches(str(name), PARTS, n=1)
        fix = f"did you mean {close[0]}?" if close else "remove it: it is not a field of resources"
        found.append(InvalidFieldError(str(name) or "''", body[name], fix))
        meant.update(close)
    return found, meant - set(body)


def admit(body: object) -> Resource[Any]:
    """Check a resource that a user creates or changes: as ``parse``, and for what its workers would not start with.

    A stored resource is only parsed: one that an earlier version has accepted must stay readable. Raises
    InvalidFieldError.
    """
    return _checked(body, admission=True)


T = TypeVar("T")


def convert(value: object, wanted: type[T], path: str) -> T:
    """Convert plain data to a type; raise InvalidFieldError with the full path of each invalid field."""
    try:
        return msgspec.convert(value, wanted)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise together(list(islice(_errors(value, wanted, path), MOST_ERRORS))) from error


def _errors(value: object, wanted: Any, path: str) -> Iterator[InvalidFieldError]:
    """Yield the errors of a value's fields and items, of itself if those are valid."""
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        below = _errors_below(value, wanted, path)
        yield next(below, None) or _explain(str(error), value, wanted, path)
        yield from below
    except UnicodeEncodeError as error:
        yield InvalidFieldError(path, error.object, "it contains half a surrogate pair: remove it")


def _errors_below(value: object, wanted: Any, path: str) -> Iterator[InvalidFieldError]:
    """Yield the errors of a mapping's fields, or of a list's items."""
    if get_origin(wanted) is Annotated:
        yield from _errors_below(value, get_args(wanted)[0], path)
    elif get_origin(wanted) in {Union, UnionType}:
        for each in get_args(wanted):
            yield from _errors_below(value, each, path)
    elif isinstance(value, list) and get_origin(wanted) is list:
        for i, item in enumerate(value):
            yield from _errors(item, get_args(wanted)[0], f"{path}[{i}]")
    elif isinstance(value, dict) and isinstance(wanted, type) and issubclass(wanted, Struct):
        yield from _errors_of_struct(value, wanted, path)


def _errors_of_struct(value: Mapping[str, object], wanted: type[Struct], path: str) -> Iterator[InvalidFieldError]:
    known = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
    config = wanted.__struct_config__
    if config.tag_field and value.get(config.tag_field) != config.tag:
        return  # another type of a union
    meant = set[str]()
    for name, part in value.items():
        if name in known:
            yield from _errors(part, known[name].type, f"{path}.{name}")
        elif config.forbid_unknown_fields and name != config.tag_field:
            meant.update(difflib.get_close_matches(str(name), known, n=1))
            yield _explain(f"Object contains unknown field `{name}`", value, wanted, path)
    for name, field in known.items():
        if field.required and name not in value and name not in meant:  # a misspelled field is one error
            yield _explain(f"Object missing required field `{name}`", value, wanted, path)


def _explain(text: str, value: object, wanted: Any, path: str) -> InvalidFieldError:
    """Convert msgspec's ``reason - at `$.a.b[0]``` to field, value and remedy."""
    reason, _, at = text.partition(" - at `")
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", at)
    field, here = path, value
    for name, index in steps:
        field += f".{name}" if name else f"[{index}]"
        if isinstance(here, Mapping):
            here = here.get(name)
        elif isinstance(here, list) and index:
            here = here[int(index)]
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        name = unknown[1]
        known = _fields_at(wanted, [name for name, _ in steps])
        close = difflib.get_close_matches(name, known or _field_names(wanted), n=1)
        given = here.get(name) if isinstance(here, Mapping) else None
        fix = f"did you mean {close[0]}?" if close else "remove it: there is no such field"
        return InvalidFieldError(f"{field}.{name}", given, fix)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return InvalidFieldError(f"{field}.{missing[1]}", None, "it is required: add it")
    fix = _pattern_fix(reason, wanted) or one_line(reason[:1].lower() + reason[1:])
    if reason.startswith("Invalid enum value"):
        words = [word for part in _schemas_at(wanted, [name for name, _ in steps]) for word in part.get("enum", [])]
        fix = f"write one of {', '.join(map(str, words))}" if words else fix
    elif limit := OF_LIMIT.fullmatch(reason):
        schemas = _schemas_at(wanted, [name for name, _ in steps])
        fix = next(filter(None, (_limits(limit[1], schema) for schema in schemas)), fix)
    if "`str`" in reason and isinstance(here, int | float | bool):
        fix += " (put it in quotes)"
    return InvalidFieldError(field, here, fix)


def _pattern_fix(reason: str, wanted: Any) -> str:
    """Return the correction of a value that does not match its pattern, in words; empty if that is not the reason."""
    if " matching regex " not in reason:
        return ""
    fixes = ((info.extra or {}).get(FIX, "") for info in _metas(wanted) if info.pattern)
    return next(filter(None, fixes), "it does not have the required form: see `halimede explain`")


def _metas(wanted: Any) -> Iterator[Meta]:
    """Yield the constraints of a type and of its alternatives, items, keys and values."""
    for part in get_args(wanted):
        if isinstance(part, Meta):
            yield part
        else:
            yield from _metas(part)


def _limits(kind: str, schema: Mapping[str, Any]) -> str:
    """Return what to write for a value, text, list or mapping within limits; empty if the schema has none."""
    low, above, high = (next((schema[key] for key in keys if key in schema), None) for keys in LIMITS)
    number, count = {
        (True, False, True): (f"from {low} to {high}", f"{low} to {high}"),
        (True, False, False): (f"of {low} or more", f"{low} or more"),
        (False, True, True): (f"above {above}, and up to {high}", ""),
        (False, True, False): (f"above {above}", ""),
        (False, False, True): (f"of {high} or less", f"at most {high}"),
    }.get((low is not None, above is not None, high is not None), ("", ""))
    if kind in UNITS:
        return count and f"write {count} {UNITS[kind]}"
    return number and f"write a number {number}"


def _fields_at(wanted: Any, path: Iterable[str]) -> set[str]:
    """Return the field names of the object at a path below a type ("": an item of a list), of all its alternatives."""
    return {name for part in _schemas_at(wanted, path) for name in part.get("properties", {})}


def _schemas_at(wanted: Any, path: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the schemas of all types at a path below a type."""
    schema = msgspec.json.schema(wanted)

    def plain(parts: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        for part in parts:
            if "$ref" in part:
                yield schema["$defs"][part["$ref"].rpartition("/")[2]]
            else:
                yield from plain(part["anyOf"]) if "anyOf" in part else [part]

    here = list(plain([schema]))
    for name in path:
        found = [part.get("properties", {}).get(name) if name else part.get("items") for part in here]
        here = list(plain(part for part in found if isinstance(part, Mapping)))
    return here


def _field_names(wanted: Any) -> set[str]:
    """Return all field names that occur anywhere below a type, as users write them."""
    schema, parts = msgspec.json.schema(wanted), set[str]()
    for definition in schema.get("$defs", {}).values():
        parts.update(definition.get("properties", {}))
    return parts


def _bound(body: object) -> None:
    """Refuse bodies that YAML aliases have expanded, or that nest endlessly."""
    left = MAX_NODES_IN_BODY
    level: list[Any] = [body] if isinstance(body, NESTED) else []
    for _ in range(100):
        if not level:
            return
        following: list[Any] = []
        for item in level:
            left -= len(item)
            if left < 0:
                raise InvalidFieldError("resource", "…", f"use fewer than {MAX_NODES_IN_BODY} values")
            children = item.values() if isinstance(item, dict) else item
            following += [child for child in children if isinstance(child, NESTED)]
        level = following
    raise InvalidFieldError("resource", "…", "nest at most 100 levels deep")
