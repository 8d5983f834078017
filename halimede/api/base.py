"""What all kinds of resources share: metadata, the registry of kinds, and parsing with errors that name the field.

A kind's file defines a ``Spec`` and registers it with ``register``. ``parse`` and ``admit`` make a ``Resource``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, TypedDict, TypeVar, Union, Unpack, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from halimede.api.schema import PrinterColumn, ValidationRule
from halimede.errors import InvalidFieldError, check_all, combine, one_line
from halimede.messages import ResourceBody
from halimede.names import FIX, Key, check_label, check_name

S = TypeVar("S", bound="Spec")

#: apiVersions of the kinds of both groups
SEDNA = "sedna.io/v1alpha1"
NEPTUNE = "neptune.io/v1alpha1"
#: most values in a resource, at all levels
MAX_VALUES_IN_BODY = 100_000
#: most errors that are explained of metadata or a spec: a hostile body must not cost more
MAX_EXPLAINED_ERRORS = 50
#: msgspec's text for a value that is outside of limits: the kind of the value
LIMIT_ERROR = re.compile(r"Expected `(\w+)`(?: of length)? [<>].*")
#: keywords of a schema for the least value, for a value below all, and for the greatest one
LIMIT_KEYWORDS = (
    ("minimum", "minLength", "minItems", "minProperties"),
    ("exclusiveMinimum",),
    ("maximum", "maxLength", "maxItems", "maxProperties"),
)
#: what is counted in texts, lists and mappings
COUNTED_UNITS = {"str": "characters", "array": "items", "object": "entries"}
#: types of values that contain values
CONTAINERS = (dict, list)
#: the order of a kind whose resources refer to other resources
LAST_ORDER = 9
#: the fields of a resource's document
RESOURCE_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")


class Spec(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every typed part of a resource: unknown fields are errors.

    ``rules`` are the checks between fields in CEL, for the API server; ``check`` of the kind has the same in Python.
    """

    rules: ClassVar[tuple[ValidationRule, ...]] = ()


class ObjectMeta(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The part of Kubernetes' metadata that halimede reads; other fields are kept unchanged in the body.

    Attributes:
        name, namespace: with the kind, what identifies the resource.
        uid: the life of the resource, empty until it is stored.
        generation: the version of its spec, 0: none yet.
        resource_version: changes with each write, also of the status.
        creation_timestamp, deletion_timestamp: RFC 3339 texts; None: not created or not being deleted.
        labels, annotations: texts of users and programs, by name.

    """

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
    """A checked resource: its kind, metadata and typed spec, and the body (the whole document) as the user wrote it."""

    kind: Kind
    metadata: ObjectMeta
    spec: S
    body: ResourceBody

    @property
    def key(self) -> Key:
        """Plural, namespace and name: what identifies a resource."""
        return Key(self.kind.plural, self.metadata.namespace, self.metadata.name)


@dataclass(frozen=True, slots=True)
class Kind:
    """A registered kind of resources.

    Attributes:
        api_version: its group and version, such as ``sedna.io/v1alpha1``.
        kind: its name in resources; ``plural`` and ``short_names``: its other names in commands and topics.
        spec: the type of its ``spec``.
        check: called with a spec; checks what types cannot express, and raises InvalidFieldError.
        admit: called with a spec that a user creates or changes; checks more, and raises InvalidFieldError.
        columns: the columns of ``kubectl get``.
        name_limit: most characters of a name, so that services and labels can be named after the resource; 0: any name.
        order: the position in which several manifests are applied: resources that others refer to come first.
        relative_url: whether ``spec.url`` may be relative to its manifest.
        versioned: whether its status remembers versions for a rollback.

    """

    api_version: str
    kind: str
    plural: str
    short_names: tuple[str, ...]
    spec: type[Spec]
    check: Callable[[Any], None] = lambda _: None
    admit: Callable[[Any], None] = lambda _: None
    columns: tuple[PrinterColumn, ...] = ()
    name_limit: int = 0
    order: int = LAST_ORDER
    relative_url: bool = False
    versioned: bool = False


class KindOptions(TypedDict, total=False):
    """The optional fields of ``Kind``, for ``register``."""

    check: Callable[[Any], None]
    admit: Callable[[Any], None]
    columns: tuple[PrinterColumn, ...]
    name_limit: int
    order: int
    relative_url: bool
    versioned: bool


#: all registered kinds by apiVersion and kind
_kinds: dict[tuple[str, str], Kind] = {}


def register(
    api_version: str, kind: str, plural: str, *short_names: str, **options: Unpack[KindOptions]
) -> Callable[[type[S]], type[S]]:
    """Return a decorator that registers a spec class as a kind. The parameters are the fields of ``Kind``.

    The decorator raises ValueError if the kind is registered already.
    """

    def add(spec: type[S]) -> type[S]:
        if (api_version, kind) in _kinds:
            raise ValueError(f"{api_version} {kind} is registered twice")
        _kinds[api_version, kind] = Kind(api_version, kind, plural, short_names, spec, **options)
        return spec

    return add


def kinds() -> tuple[Kind, ...]:
    """Return all registered kinds, in the order of their registration."""
    return tuple(_kinds.values())


def plurals() -> tuple[Kind, ...]:
    """Return one kind of each plural (that of sedna.io), in the order in which manifests are applied."""
    return tuple(sorted((kind for kind in kinds() if kind.api_version == SEDNA), key=lambda kind: kind.order))


def kind_of(name: str) -> Kind:
    """Return the kind for a kind, plural or short name of a user in any case (sedna.io before neptune.io).

    Raises InvalidFieldError with the valid names.
    """
    for kind in sorted(kinds(), key=lambda k: k.api_version != SEDNA):
        if name.lower() in {kind.kind.lower(), kind.plural, *kind.short_names}:
            return kind
    valid = ", ".join(sorted({valid for k in kinds() for valid in (k.plural, *k.short_names)}))
    raise InvalidFieldError("kind", name, f"use one of {valid}")


def parse(body: object) -> Resource[Any]:
    """Return the checked resource of a body that a user wrote or the API server returned: plain data of JSON or YAML.

    Raises InvalidFieldError with all invalid fields. Rules between fields are checked when each field is valid.
    """
    return _parse(body, admission=False)


def _parse(body: object, *, admission: bool) -> Resource[Any]:
    """Return the checked resource in ``body``. ``admission``: a user creates or changes it.

    Raises InvalidFieldError.
    """
    if not isinstance(body, dict):
        raise InvalidFieldError("resource", body, "write a mapping with apiVersion, kind, metadata and spec")
    _check_size(body)
    api_version, kind_name = str(body.get("apiVersion", "")), str(body.get("kind", ""))
    kind = _kinds.get((api_version, kind_name))
    if kind is None:
        if versions := ", ".join(sorted(v for v, k in _kinds if k == kind_name)):
            raise InvalidFieldError("apiVersion", api_version, f"use {versions} for kind {kind_name}")
        raise InvalidFieldError("kind", kind_name, "use one of " + ", ".join(sorted({k for _, k in _kinds})))
    errors, misspelled = _unknown_fields(body)
    metadata = spec = None
    try:
        metadata = convert(body.get("metadata"), ObjectMeta, "metadata")
        check_all(
            partial(check_name, "metadata.name", metadata.name),
            partial(check_label, "metadata.namespace", metadata.namespace),
        )
    except InvalidFieldError as error:
        errors += [] if "metadata" in misspelled else [error]
    try:
        spec = convert(body.get("spec"), kind.spec, "spec")
        check_all(partial(kind.check, spec), *([partial(kind.admit, spec)] if admission else []))
    except InvalidFieldError as error:
        errors += [] if "spec" in misspelled else [error]
    if metadata is None or spec is None or errors:
        raise combine(errors)
    return Resource(kind, metadata, spec, body)


def _unknown_fields(body: Mapping[object, object]) -> tuple[list[InvalidFieldError], set[str]]:
    """Return the errors of fields that no resource has, and the missing fields that they probably misspell."""
    errors: list[InvalidFieldError] = []
    misspelled = set[str]()
    for name in sorted(set(body) - set(RESOURCE_FIELDS), key=str):
        close = difflib.get_close_matches(str(name), RESOURCE_FIELDS, n=1)
        fix = f"did you mean {close[0]}?" if close else "remove it: it is not a field of resources"
        errors.append(InvalidFieldError(str(name) or "''", body[name], fix))
        misspelled.update(close)
    return errors, misspelled - set(body)


def admit(body: object) -> Resource[Any]:
    """Return a resource that a user creates or changes: checked as by ``parse``, and for what its workers would refuse.

    A stored resource is only parsed, so that what an earlier version has accepted stays readable. Raises
    InvalidFieldError.
    """
    return _parse(body, admission=True)


T = TypeVar("T")


def convert(value: object, target: type[T], path: str) -> T:
    """Return plain data as the type ``target``.

    Raises InvalidFieldError with the path of each invalid field below ``path``.
    """
    try:
        return msgspec.convert(value, target)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise combine(list(islice(_errors(value, target, path), MAX_EXPLAINED_ERRORS))) from error


def _errors(value: object, target: Any, path: str) -> Iterator[InvalidFieldError]:
    """Yield the errors of a value's fields and items; the value's own error if they are valid."""
    try:
        msgspec.convert(value, target)
    except msgspec.ValidationError as error:
        below = _errors_below(value, target, path)
        yield next(below, None) or _explain(str(error), value, target, path)
        yield from below
    except UnicodeEncodeError as error:
        yield InvalidFieldError(path, error.object, "it contains half a surrogate pair: remove it")


def _errors_below(value: object, target: Any, path: str) -> Iterator[InvalidFieldError]:
    """Yield the errors of a mapping's fields, or of a list's items."""
    if get_origin(target) is Annotated:
        yield from _errors_below(value, get_args(target)[0], path)
    elif get_origin(target) in {Union, UnionType}:
        for alternative in get_args(target):
            yield from _errors_below(value, alternative, path)
    elif isinstance(value, list) and get_origin(target) is list:
        for i, item in enumerate(value):
            yield from _errors(item, get_args(target)[0], f"{path}[{i}]")
    elif isinstance(value, dict) and isinstance(target, type) and issubclass(target, Struct):
        yield from _errors_of_struct(value, target, path)


def _errors_of_struct(value: Mapping[str, object], target: type[Struct], path: str) -> Iterator[InvalidFieldError]:
    """Yield the errors of the fields of an object, of unknown and of missing fields."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(target)}
    config = target.__struct_config__
    if config.tag_field and value.get(config.tag_field) != config.tag:
        return  # another type of a union
    misspelled = set[str]()
    for name, item in value.items():
        if name in fields:
            yield from _errors(item, fields[name].type, f"{path}.{name}")
        elif config.forbid_unknown_fields and name != config.tag_field:
            misspelled.update(difflib.get_close_matches(str(name), fields, n=1))
            yield _explain(f"Object contains unknown field `{name}`", value, target, path)
    for name, field in fields.items():
        if field.required and name not in value and name not in misspelled:  # a misspelled field is one error
            yield _explain(f"Object missing required field `{name}`", value, target, path)


def _explain(text: str, value: object, target: Any, path: str) -> InvalidFieldError:
    """Return msgspec's message ``reason - at `$.a.b[0]``` as an error with field, value and remedy."""
    reason, _, position = text.partition(" - at `")
    steps = re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", position)
    names = [name for name, _ in steps]
    field, part = path, value
    for name, index in steps:
        field += f".{name}" if name else f"[{index}]"
        if isinstance(part, Mapping):
            part = part.get(name)
        elif isinstance(part, list) and index:
            part = part[int(index)]
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL):
        name = unknown[1]
        close = difflib.get_close_matches(name, _fields_at(target, names) or _field_names(target), n=1)
        fix = f"did you mean {close[0]}?" if close else "remove it: there is no such field"
        return InvalidFieldError(f"{field}.{name}", part.get(name) if isinstance(part, Mapping) else None, fix)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return InvalidFieldError(f"{field}.{missing[1]}", None, "it is required: add it")
    fix = _pattern_fix(reason, target) or one_line(reason[:1].lower() + reason[1:])
    if reason.startswith("Invalid enum value"):
        choices = [str(choice) for schema in _schemas_at(target, names) for choice in schema.get("enum", [])]
        fix = f"write one of {', '.join(choices)}" if choices else fix
    elif limit := LIMIT_ERROR.fullmatch(reason):
        fix = next(filter(None, (_limits_fix(limit[1], schema) for schema in _schemas_at(target, names))), fix)
    if "`str`" in reason and isinstance(part, int | float | bool):
        fix += " (put it in quotes)"
    return InvalidFieldError(field, part, fix)


def _pattern_fix(reason: str, target: Any) -> str:
    """Return the correction of a value that does not match its pattern; empty for another reason."""
    if " matching regex " not in reason:
        return ""
    fixes = ((meta.extra or {}).get(FIX, "") for meta in _metas(target) if meta.pattern)
    return next(filter(None, fixes), "it does not have the required form: see `halimede explain`")


def _metas(target: Any) -> Iterator[Meta]:
    """Yield the constraints of a type and of its alternatives, items, keys and values."""
    for argument in get_args(target):
        if isinstance(argument, Meta):
            yield argument
        else:
            yield from _metas(argument)


def _limits_fix(kind: str, schema: Mapping[str, Any]) -> str:
    """Return what to write for a value, text, list or mapping within limits; empty if the schema has no limits.

    ``kind``: msgspec's word for the type of the value, such as ``int`` or ``array``.
    """
    low, above, high = (next((schema[key] for key in keys if key in schema), None) for keys in LIMIT_KEYWORDS)
    number, count = {
        (True, False, True): (f"from {low} to {high}", f"{low} to {high}"),
        (True, False, False): (f"of {low} or more", f"{low} or more"),
        (False, True, True): (f"above {above}, and up to {high}", ""),
        (False, True, False): (f"above {above}", ""),
        (False, False, True): (f"of {high} or less", f"at most {high}"),
    }.get((low is not None, above is not None, high is not None), ("", ""))
    if kind in COUNTED_UNITS:
        return count and f"write {count} {COUNTED_UNITS[kind]}"
    return number and f"write a number {number}"


def _fields_at(target: Any, path: Iterable[str]) -> set[str]:
    """Return the field names of the object at a path below a type ("": an item of a list), of all its alternatives."""
    return {name for schema in _schemas_at(target, path) for name in schema.get("properties", {})}


def _schemas_at(target: Any, path: Iterable[str]) -> list[Mapping[str, Any]]:
    """Return the schemas of all types at a path below a type."""
    whole = msgspec.json.schema(target)

    def resolve(references: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        for schema in references:
            if "$ref" in schema:
                yield whole["$defs"][schema["$ref"].rpartition("/")[2]]
            else:
                yield from resolve(schema["anyOf"]) if "anyOf" in schema else [schema]

    schemas = list(resolve([whole]))
    for name in path:
        below = [schema.get("properties", {}).get(name) if name else schema.get("items") for schema in schemas]
        schemas = list(resolve(schema for schema in below if isinstance(schema, Mapping)))
    return schemas


def _field_names(target: Any) -> set[str]:
    """Return all field names that occur anywhere below a type, as users write them."""
    definitions = msgspec.json.schema(target).get("$defs", {}).values()
    return {name for definition in definitions for name in definition.get("properties", {})}


def _check_size(body: object) -> None:
    """Refuse bodies with too many values, as YAML aliases make them, or with more than 100 levels.

    Raises InvalidFieldError.
    """
    count = 0
    level: list[Any] = [body] if isinstance(body, CONTAINERS) else []
    for _ in range(100):
        if not level:
            return
        next_level: list[Any] = []
        for container in level:
            count += len(container)
            if count > MAX_VALUES_IN_BODY:
                raise InvalidFieldError("resource", "…", f"use fewer than {MAX_VALUES_IN_BODY} values")
            children = container.values() if isinstance(container, dict) else container
            next_level += [child for child in children if isinstance(child, CONTAINERS)]
        level = next_level
    raise InvalidFieldError("resource", "…", "nest at most 100 levels deep")
