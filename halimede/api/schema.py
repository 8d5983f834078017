"""Declarations for the API server next to the fields of specs: rules between fields, columns, patterns.

``parse`` and the CRDs both use the types of this package. What only the API server needs is declared here and with the
fields, so that a new kind is one new file. When a resource is parsed, only the lengths in the types below are checked.
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
    """A rule between fields for the API server.

    ``rule``: an expression in CEL on ``self``, true for valid objects. ``message``: the remedy. ``field``: the path of
    the error's field below ``self`` (``.name``), empty for the object itself.
    """

    rule: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of ``kubectl get``.

    ``name``: its title. ``path``: JSONPath of its value. ``description``: what the value means, for users. ``type``: of
    the value.
    """

    name: str
    path: str
    description: str
    type: Literal["string", "integer", "date"] = "string"
    #: whether it is shown with ``-o wide`` only
    wide: bool = False


#: columns of most kinds
PHASE = PrinterColumn("Phase", ".status.phase", "The phase; the last condition has the reason.")
REASON = PrinterColumn("Reason", ".status.conditions[-1].reason", "The reason of the phase, in one word.")
MESSAGE = PrinterColumn("Message", ".status.conditions[-1].message", "Message about the phase.", wide=True)
AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "When it was created.", "date")


def pattern(text: str, *, optional: bool = False) -> dict[str, Any]:
    """Return the ``extra`` of a Meta for a pattern in the CRD alone; the kind's ``check`` has a better message for it.

    ``optional``: empty text, which means absent, matches too.
    """
    plain = portable(text)
    return {KEYWORDS: {"pattern": f"^({plain.removeprefix('^').removesuffix('$')})?$" if optional else plain}}


def portable(text: str) -> str:
    """Return a pattern in RE2's syntax: its ``$`` matches only the very end, and it has no look-ahead."""
    return text.replace(r"$(?!\n)", "$")


#: the name of another object of the namespace, as Kubernetes allows it
ObjectName = Annotated[str, Meta(min_length=1, max_length=253, extra=pattern(NAME_PATTERN))]
#: the same, but empty text means none
OptionalName = Annotated[str, Meta(max_length=253, extra=pattern(NAME_PATTERN, optional=True))]
#: the path of a file or folder, on a node or in a container; empty: none
Path = Annotated[str, Meta(max_length=4096)]
