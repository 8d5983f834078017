"""Schemas beyond types, for the API server: rules between fields, columns, patterns.

``parse`` and the CRDs both use the types of this package. What only the API server needs is declared with the fields,
so that a new kind is one new file. Nothing here is used when a resource is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from halimede.names import NAME_PATTERN

#: ``Meta(extra={KEYWORDS: {...}})``: keywords for the field's schema in the CRD only
KEYWORDS = "crd"
#: ``Meta(extra={SHAPE: Type})``: the type of a field that is kept as plain data
SHAPE = "shape"


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """A rule between fields, in CEL. ``field`` (``.name``) is the field of the error, if there is one."""

    rule: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of ``kubectl get``."""

    name: str
    path: str
    description: str
    type: Literal["string", "integer", "date"] = "string"
    #: only with ``-o wide``
    wide: bool = False


PHASE = PrinterColumn("Phase", ".status.phase", "The phase; the last condition has the reason.")
REASON = PrinterColumn("Reason", ".status.conditions[-1].reason", "The reason of the phase, in one word.")
MESSAGE = PrinterColumn("Message", ".status.conditions[-1].message", "Message about the phase.", wide=True)
AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "When it was created.", "date")


def pattern(text: str, *, optional: bool = False) -> dict[str, Any]:
    """Return the ``Meta(extra=...)`` for a pattern that ``check`` enforces with a better message.

    ``optional``: empty text, which means absent, matches too.
    """
    plain = portable(text)
    return {KEYWORDS: {"pattern": f"^({plain.removeprefix('^').removesuffix('$')})?$" if optional else plain}}


def portable(text: str) -> str:
    """Return a pattern in RE2's syntax: its ``$`` matches only the very end, and it has no look-ahead."""
    return text.replace(r"$(?!\n)", "$")


#: the name of another object of the namespace
ObjectName = Annotated[str, Meta(min_length=1, max_length=253, extra=pattern(NAME_PATTERN))]
#: the same, but empty text means none
OptionalName = Annotated[str, Meta(max_length=253, extra=pattern(NAME_PATTERN, optional=True))]
Path = Annotated[str, Meta(max_length=4096)]
