"""``halimede explain``: shows the fields of a kind, as ``kubectl explain`` does for Kubernetes. It needs no broker."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from halimede.api import Kind, kind_of, kinds
from halimede.api.crd.fields import ResourceField, field_at
from halimede.cli import completion
from halimede.cli.runner import run
from halimede.errors import InvalidFieldError

#: columns of a text that is wrapped
WIDTH = 100


def explain(
    path: Annotated[
        str,
        typer.Argument(
            metavar="KIND[.FIELD]...",
            help="A kind, and the path of a field, such as ji.spec.edgeWorker.",
            autocompletion=completion.kinds,
        ),
    ],
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Show the fields of all levels.")] = False,
    api_version: Annotated[
        str, typer.Option("--api-version", metavar="GROUP/VERSION", help="The group, if several have the kind.")
    ] = "",
) -> None:
    """Explain the fields of a kind: types, limits, defaults and meanings.

    \b
    Examples:
      halimede explain ji
      halimede explain ji.spec.edgeWorker
      halimede explain model.spec.preprocess --recursive
      halimede explain ji --api-version neptune.io/v1alpha1
    """

    async def command() -> None:
        name, *field_path = path.split(".")
        kind = kind_with(name, api_version)
        try:
            field = field_at(kind, field_path)
        except InvalidFieldError as error:
            raise error.replace_prefix("", f"{name}.") from None
        print("\n".join(page(kind, field, recursive=recursive)))

    run(command)


def kind_with(name: str, api_version: str) -> Kind:
    """Return the kind of a name or short name, in the group ``api_version`` unless that is empty.

    Raises InvalidFieldError.
    """
    default = kind_of(name)
    if not api_version:
        return default
    groups = {kind.api_version: kind for kind in kinds() if kind.plural == default.plural}
    if api_version not in groups:
        raise InvalidFieldError("--api-version", api_version, f"use one of {', '.join(groups)}")
    return groups[api_version]


def page(kind: Kind, field: ResourceField, *, recursive: bool) -> Iterator[str]:
    """Yield the lines about a field: the kind, its type and meaning, then its fields (``recursive``: of all levels)."""
    short = f", short: {kind.short_names[0]}" if kind.short_names else ""
    yield f"KIND:   {kind.kind} ({kind.api_version}{short})"
    if field.path:
        yield f"FIELD:  {field.path}  {_facts(field)}"
    yield ""
    yield from textwrap.wrap(field.meaning, WIDTH)
    if field.rules:
        yield "\nRULES:"
        yield from (f"  {rule}" for rule in field.rules)
    if field.fields():
        yield "\nFIELDS:"
        depth = field.path.count(".") + bool(field.path)
        for nested in field.walk() if recursive else field.fields():
            indent = "  " * (nested.path.count(".") - depth + 1)
            yield f"{indent}{nested.path.rpartition('.')[2]}  {_facts(nested)}"
            if not recursive:
                yield from textwrap.wrap(nested.meaning, WIDTH, initial_indent="      ", subsequent_indent="      ")


def _facts(field: ResourceField) -> str:
    """Return type, limits and default of a field as one text; of a field that must be set, ``required``."""
    default = f"default {field.default}" if field.default not in {"", "required"} else field.default
    return "; ".join(filter(None, [f"<{field.type}>", field.limits, default]))
