"""A kind's CustomResourceDefinition: names, columns of ``kubectl get``, the status subresource, and the schema.

The schema is a structural OpenAPI v3 schema, made from msgspec types: a type at each level, no ``$ref``.

- A part of a pod template keeps unknown fields, at each level: rules can read the typed fields, and Kubernetes checks
  the rest.
- A union of tagged types becomes one object with all their fields; CEL rules allow each tag only its own fields.
- A union of a number and a list has no type, and rules cannot read it: GM alone checks it.
- Defaults are written only into specs, and only if they are values: empty text, lists and objects mean "absent". A
  union's members have no defaults, because the API server would add them to all members.
- Distributions are left out: a status in the API server has numbers for people.
"""

from __future__ import annotations

import inspect as python
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import NODEFAULT, inspect

from halimede.api.base import Kind, Spec, kinds
from halimede.api.podtemplate import Part
from halimede.api.schema import KEYWORDS, SHAPE, ValidationRule, portable
from halimede.messages import Histogram, Status

#: pattern of a Service's name, which is stricter than that of a resource
SERVICE_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
#: names for ``kubectl get`` of all kinds together
CATEGORIES = ["sedna", "halimede"]
#: a schema, or a part of one, as plain data
Schema = dict[str, Any]
#: keyword of a schema that keeps unknown fields
KEEP = {"x-kubernetes-preserve-unknown-fields": True}
MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1


def definitions() -> dict[str, dict[str, Any]]:
    """Return the manifest of each kind by the name of its file, such as ``sedna.io_models.yaml``."""
    bodies = [definition(kind) for kind in kinds()]
    return {f"{body['spec']['group']}_{body['spec']['names']['plural']}.yaml": body for body in bodies}


def definition(kind: Kind) -> dict[str, Any]:
    """Return a kind's CustomResourceDefinition."""
    group, version = kind.api_version.split("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}", "labels": {"app.kubernetes.io/part-of": "halimede"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": list(kind.short_names),
                "categories": list(CATEGORIES),
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": column.name, "type": column.type, "jsonPath": column.path}
                        | {"description": column.description}
                        | ({"priority": 1} if column.wide else {})
                        for column in kind.columns
                    ],
                    "schema": {"openAPIV3Schema": _resource(kind)},
                }
            ],
        },
    }


def _resource(kind: Kind) -> dict[str, Any]:
    """Return the schema of a whole resource."""
    return {
        "description": text(kind.spec),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": "Group and version of the resource.", "type": "string"},
            "kind": {"description": "Kind of the resource.", "type": "string"},
            "metadata": _metadata(kind),
            "spec": {"description": "The desired state.", **structure(kind.spec)},
            "status": {"description": "The observed state. Only GM writes it.", **structure(Status)},
        },
    }


def _metadata(kind: Kind) -> dict[str, Any]:
    """Return the schema of metadata: Kubernetes has its own, and allows a schema only to restrict the name."""
    if not kind.name_limit:
        return {"type": "object"}
    name = {
        "description": "The name, from which names of workers, a Service and labels are made.",
        "type": "string",
        "maxLength": kind.name_limit,
        "pattern": SERVICE_NAME,
    }
    return {"type": "object", "properties": {"name": name}}


def structure(kind: type) -> Schema:
    """Return the structural schema of a type. Raises TypeError for a type that such a schema cannot describe."""
    return _schema_of(inspect.type_info(kind))


def text(kind: type) -> str:
    """Return a type's docstring as one line for users: without indentation and markup."""
    return " ".join(python.cleandoc(kind.__doc__ or "").replace("``", "").split())


def _schema_of(info: inspect.Type) -> Schema:
    """Return the structural schema of a type as msgspec describes it."""
    match info:
        case inspect.Metadata():
            return _annotated_schema(info)
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            small = info.le is not None and info.le <= MAX_INT32
            maximum = None if info.le == MAX_INT64 else info.le
            return _keywords(type="integer", format="int32" if small else "int64", minimum=info.ge, maximum=maximum)
        case inspect.FloatType():
            return _keywords(type="number", minimum=info.ge, maximum=info.le)
        case inspect.StrType():
            pattern = portable(info.pattern) if info.pattern else None
            return _keywords(type="string", minLength=info.min_length, maxLength=info.max_length, pattern=pattern)
        case inspect.LiteralType():
            return {"type": "string", "enum": list(info.values)}
        case inspect.ListType():
            bounds = _keywords(minItems=info.min_length, maxItems=info.max_length)
            return {"type": "array", **bounds, "items": _schema_of(info.item_type)}
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object", **KEEP}
        case inspect.DictType():
            bounds = _keywords(maxProperties=info.max_length)
            return {"type": "object", **bounds, "additionalProperties": _schema_of(info.value_type)}
        case inspect.StructType():
            return _struct_schema(info)
        case inspect.UnionType():
            return _union_schema([kind for kind in info.types if not isinstance(kind, inspect.NoneType)])
        case _:
            raise TypeError(f"a structural schema cannot describe {info}")


def _annotated_schema(info: inspect.Metadata) -> Schema:
    """Return the schema of an annotated type, with description, and keywords for the CRD alone."""
    extra = info.extra or {}
    schema = structure(extra[SHAPE]) if SHAPE in extra else _schema_of(info.type)
    own = info.extra_json_schema or {}
    # the field's own keywords come first, and replace those of its type
    return {**own, **schema, **own, **extra.get(KEYWORDS, {})}


def _struct_schema(info: inspect.StructType) -> Schema:
    """Return the schema of a Struct; of a Spec with defaults and rules."""
    fields = [field for field in info.fields if not _is_distribution(field.type)]
    properties = {field.encode_name: _schema_of(field.type) for field in fields}
    if issubclass(info.cls, Spec):
        for field in fields:
            if _is_value(field.default):
                properties[field.encode_name]["default"] = field.default
    required = [field.encode_name for field in fields if field.required]
    keep = KEEP if issubclass(info.cls, Part) else {}
    return _object_schema(properties, required, getattr(info.cls, "rules", ()), keep)


def _union_schema(kinds: Sequence[inspect.Type]) -> Schema:
    """Return the schema of a union of types (``kinds``, without None).

    One type has its own schema. A number or a list has a schema that allows anything. Tagged types become one object.
    Raises TypeError for other types.
    """
    if len(kinds) == 1:
        return _schema_of(kinds[0])
    if any(isinstance(kind, inspect.FloatType) for kind in kinds):
        return dict(KEEP)
    members = [kind for kind in kinds if isinstance(kind, inspect.StructType) and isinstance(kind.tag, str)]
    if len(members) != len(kinds):
        raise TypeError(f"a structural schema cannot tell apart {kinds}: tag them")
    tag = members[0].tag_field or ""
    meanings = " ".join(f"{member.tag}: {text(member.cls)}" for member in members)
    choice = {"description": meanings, "type": "string", "enum": [member.tag for member in members]}
    properties: dict[str, Schema] = {}
    owners: dict[str, list[str]] = {}
    for member in members:
        for field in member.fields:
            schema = _schema_of(field.type)
            if properties.setdefault(field.encode_name, schema) != schema:
                raise TypeError(f"{field.encode_name} is of two types in {kinds}")
            owners.setdefault(field.encode_name, []).append(str(member.tag))
    for name, tags in owners.items():
        description = properties[name].get("description", "")
        properties[name]["description"] = f"{description} Only of {tag} {' and '.join(tags)}.".strip()
    rules = [rule for member in members for rule in _member_rules(tag, member)]
    rules += [_owner_rule(tag, name, tags) for name, tags in owners.items() if "type" in properties[name]]
    return _object_schema({tag: choice, **properties}, [tag], rules, {})


def _member_rules(tag: str, member: inspect.StructType) -> Iterator[ValidationRule]:
    """Yield the rules of one member of a union, for objects with its tag."""
    required = [field.encode_name for field in member.fields if field.required]
    has_other_tag = f"self.{tag} != '{member.tag}'"
    if required:
        present = " && ".join(f"has(self.{name})" for name in required)
        yield ValidationRule(f"{has_other_tag} || ({present})", f"{tag} {member.tag} needs {' and '.join(required)}")
    for rule in getattr(member.cls, "rules", ()):
        yield ValidationRule(f"{has_other_tag} || ({rule.rule})", rule.message, rule.field)


def _owner_rule(tag: str, name: str, tags: Sequence[str]) -> ValidationRule:
    """Return the rule that only objects with some tags have a field."""
    has_owner = " || ".join(f"self.{tag} == '{owner}'" for owner in tags)
    return ValidationRule(
        f"!has(self.{name}) || {has_owner}", f"remove it: only {tag} {' and '.join(tags)} has it", f".{name}"
    )


def _object_schema(
    properties: dict[str, Schema], required: list[str], rules: Iterable[ValidationRule], keep: Schema
) -> Schema:
    """Return the schema of an object. ``keep``: ``KEEP`` if it may have unknown fields, else empty."""
    checks = [_keywords(rule=rule.rule, message=rule.message, fieldPath=rule.field or None) for rule in rules]
    schema: Schema = {"type": "object", **keep}
    if required:
        schema["required"] = required
    schema["properties"] = properties
    if checks:
        schema["x-kubernetes-validations"] = checks
    return schema


def _is_distribution(info: inspect.Type) -> bool:
    """Whether a type is a histogram, or a union with one."""
    match info:
        case inspect.Metadata():
            return _is_distribution(info.type)
        case inspect.UnionType():
            return any(map(_is_distribution, info.types))
        case _:
            return isinstance(info, inspect.StructType) and info.cls is Histogram


def _is_value(default: object) -> bool:
    """Whether a default is a value that the API server may fill in."""
    return default is not NODEFAULT and default is not None and not (isinstance(default, str) and not default)


def _keywords(**values: Any) -> Schema:
    """Return the keywords of a schema that have a value."""
    return {name: value for name, value in values.items() if value is not None}
