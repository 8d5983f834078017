"""Options and arguments that several commands share, and how they are read."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from halimede.api import Kind
    from halimede.cli.broker import Broker as BrokerAddress

KINDS = ("jointinferenceservices", "ji", "jis", "models", "model", "datasets", "dataset")


class Output(StrEnum):
    """Forms in which resources are shown."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Lines(StrEnum):
    """Forms in which a stream is shown."""

    TABLE = "table"
    JSON = "json"


def _complete(incomplete: str) -> list[str]:
    return [kind for kind in (*KINDS, "nodes", "events") if kind.startswith(incomplete)]


Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="HOST:PORT",
        help="The MQTT broker. Default: HALIMEDE_BROKER, else the system running here, else localhost:1883.",
        show_default=False,
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The namespace.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to show it.")]
LinesOption = Annotated[Lines, typer.Option("--output", "-o", help="A table, or one JSON document a line.")]
KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="ji, model, dataset, or any other kind; KIND/NAME works too.", autocompletion=_complete
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The resource's name.", show_default=False)]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--filename", "-f", metavar="FILE", help="A manifest, a folder of them, or - for standard input; repeatable."
    ),
]
MoreFiles = Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="More of them.", show_default=False)]


def address(option: str) -> BrokerAddress:
    """Return the broker that an option or the environment names."""
    from halimede.cli.broker import find

    return find(option)


def namespace_of(name: str, *, everywhere: bool = False) -> str:
    """Return a checked namespace; empty for all of them."""
    from halimede.names import check_label

    return "" if everywhere else check_label("--namespace", name)


def target(kind: str, name: str) -> tuple[Kind, str]:
    """Read ``KIND NAME`` or ``KIND/NAME``; the name is checked when there is one."""
    from halimede.api import kind_of
    from halimede.names import check_name

    word, slash, behind = kind.partition("/")
    if slash:
        if name:
            raise typer.BadParameter(f"give the name once: it is both {behind!r} and {name!r}")
        name = behind
        check_name("NAME", name)
    return kind_of(word), check_name("NAME", name) if name else ""


def about(what: str, namespace: str) -> str:
    """Return what an event is about as GM writes it, from that or from ``KIND/NAME``."""
    from halimede.names import Key

    word, _, name = what.partition("/")
    if not what or word == "node" or "/" in name:
        return what
    kind, called = target(what, "")
    return str(Key(kind.plural, namespace, called))
