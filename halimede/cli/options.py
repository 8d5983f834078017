"""Options and arguments that several commands share, and functions that check and convert their values.

The types (``Broker``, ``Namespace``, ...) are annotations of commands' parameters, which Typer reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from halimede.cli import completion
from halimede.errors import InvalidFieldError

if TYPE_CHECKING:
    from halimede.api import Kind
    from halimede.api.deferral import Costs
    from halimede.cli.broker_address import BrokerAddress


class Format(StrEnum):
    """Forms in which commands show resources; ``wide`` is a table with more columns."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


#: names for nodes in place of a kind
NODE_KINDS = frozenset({"nodes", "node", "no"})
#: names for cameras in place of a kind
CAMERA_KINDS = frozenset({"cameras", "camera", "cam"})
#: the help of the argument KIND: each kind by its short name, and what else `get` lists
KINDS = (
    "ji (JointInferenceService), mei (MultiEdgeInferenceService), im (InferenceModel), tm (TrainingModel), fl and il "
    "(Sedna's jobs that train), model, dataset; for get also nodes, cameras and events. KIND/NAME works too."
)
#: texts of a boolean in an option
SWITCHES = {"true": True, "false": False}
#: units of a duration, as arguments of ``timedelta``
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

# options and arguments of commands: each one's help says what it is
Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="HOST:PORT",
        help="The MQTT broker, or several in turn: a:1883,b:1883. Default: HALIMEDE_BROKER, else the system running "
        "here, else localhost:1883.",
        show_default=False,
    ),
]
Credentials = Annotated[
    str,
    typer.Option(
        "--credentials",
        metavar="DIR",
        help="The folder with this user's credentials: password, or ca.crt, tls.crt and tls.key. Default: "
        "HALIMEDE_CREDENTIALS, else those of the system running here.",
        show_default=False,
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The namespace of the resource.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
OutputOption = Annotated[Format, typer.Option("--output", "-o", help="The output format.")]
Since = Annotated[
    str,
    typer.Option("--since", metavar="TIME", help="Only since: 90s, 10m, 2h, 1d ago, or a time.", show_default=False),
]
ReportOption = Annotated[Literal["table", "json", "yaml"], typer.Option("--output", "-o", help="The output format.")]
LinesOption = Annotated[
    Literal["table", "json"], typer.Option("--output", "-o", help="A table, or one JSON document per line.")
]
KindArgument = Annotated[str, typer.Argument(metavar="KIND", help=KINDS, autocompletion=completion.kinds)]
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The resource's name.", show_default=False, autocompletion=completion.names),
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="The node.", autocompletion=completion.nodes)]
ServiceArgument = Annotated[
    str, typer.Argument(metavar="SERVICE", help="The service.", autocompletion=completion.services)
]
Camera = Annotated[str, typer.Option(metavar="NAME", help="The camera.", autocompletion=completion.cameras)]
WaitTimeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="With --wait: how long to wait.")
]
ReturnTimeout = Annotated[
    float,
    typer.Option(
        "--return-timeout",
        min=0,
        metavar="SECONDS",
        help="If no worker reads the camera any more: how long frames wait for one, before they count as without "
        "subscriber. Not with --qos 0, where the broker reports no subscribers.",
    ),
]
RecordingFolder = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of the recording.")]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--filename", "-f", metavar="FILE", help="A manifest, a folder of them, or - for standard input; repeatable."
    ),
]
MoreFiles = Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="More names.", show_default=False)]


def group(text: str) -> typer.Typer:
    """Return an empty group of subcommands; ``text`` is its help."""
    return typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich", help=text)


def address(option: str, credentials: str = "") -> BrokerAddress:
    """Return the broker to connect to; both options may be empty. Raises InvalidFieldError and HalimedeError."""
    from halimede.cli.broker_address import find

    return find(option, credentials=credentials)


def namespace_of(name: str, *, everywhere: bool = False) -> str:
    """Return a namespace, empty with ``everywhere``. Raises InvalidFieldError for an invalid name."""
    from halimede.names import check_label

    return "" if everywhere else check_label("--namespace", name)


def target(kind: str, name: str) -> tuple[Kind, str]:
    """Return the kind and the name of ``KIND NAME``, ``KIND/NAME`` or ``KIND`` (an empty name).

    Raises InvalidFieldError for an unknown kind or invalid name, and typer.BadParameter for two names.
    """
    from halimede.api import kind_of
    from halimede.names import check_name

    kind_name, slash, name_in_kind = kind.partition("/")
    if slash:
        if name:
            raise typer.BadParameter(f"give one name, not both {name_in_kind!r} and {name!r}")
        name = name_in_kind
        check_name("NAME", name)
    return kind_of(kind_name), check_name("NAME", name) if name else ""


def named_target(kind: str, name: str) -> tuple[Kind, str]:
    """Return what ``target`` returns. Raises typer.BadParameter without a name as well."""
    resource_kind, resource_name = target(kind, name)
    if not resource_name:
        raise typer.BadParameter("give a name: KIND NAME")
    return resource_kind, resource_name


def check_finite(numbers: Mapping[str, float | None]) -> None:
    """Raise typer.BadParameter for NaN and infinity, which Typer accepts; ``numbers`` are values by option."""
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{name}: give a number")


def read_costs(option: str, text: str) -> Costs:
    """Return the costs in a text such as ``miss=10,falseAlarm=1``. Raises InvalidFieldError on ``option``."""
    from halimede.api.base import convert
    from halimede.api.deferral import MOST_COST, Costs, check_costs

    fields: dict[str, float | str | bool] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or key in fields:
            fix = (
                "write each cost once, such as miss=10,falseAlarm=1,upload=0.2, and positive=CLASS for the one to find"
            )
            raise InvalidFieldError(option, text, fix)
        try:
            fields[key] = value if key == "positive" else SWITCHES[value] if key == "adaptive" else float(value)
        except ValueError as error:
            raise InvalidFieldError(f"{option}.{key}", value, f"give a number from 0 to {MOST_COST:g}") from error
        except KeyError as error:
            raise InvalidFieldError(f"{option}.{key}", value, f"write {' or '.join(SWITCHES)}") from error
    costs = convert(fields, Costs, option)
    check_costs(option, costs)
    return costs


def about(what: str, namespace: str) -> str:
    """Return what an event is about as GM writes it, ``<namespace>/<plural>/<name>`` or ``node/<node>``.

    ``what`` is that text, or ``KIND/NAME`` of a resource in ``namespace``; empty stays empty. Raises InvalidFieldError
    for an unknown kind.
    """
    from halimede.names import Key

    kind_name, _, name = what.partition("/")
    if not what or kind_name == "node" or "/" in name:
        return what
    kind, resource_name = target(what, "")
    return str(Key(kind.plural, namespace, resource_name))


def time_of(text: str, now: datetime | None = None, *, option: str = "--since") -> datetime | None:
    """Return the time of an option, with its zone: 90s, 10m, 2h or 1d ago, or an ISO time; None for an empty text.

    A time without a zone is in that of this machine. ``now`` None: the present time. Raises InvalidFieldError on
    ``option``.
    """
    if not text:
        return None
    try:
        if ago := re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII):
            return (now or datetime.now(UTC)) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        fix = "write a duration such as 90s, 10m, 2h or 1d, or a time such as 2026-01-31T12:00:00"
        raise InvalidFieldError(option, text, fix) from None
    return moment if moment.tzinfo else moment.astimezone()
