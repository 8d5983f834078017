"""``halimede results``: shows final answers as they arrive, each frame once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from halimede import codec, topics
from halimede.answer_text import describe_answer
from halimede.api.placement import SERVICES
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, NoBrokerError, UnreachableError
from halimede.cli.drawings import make_folder
from halimede.cli.follow import follow
from halimede.cli.options import Format
from halimede.cli.output import clean, clean_cell, console, escape_json, warn
from halimede.cli.runner import run
from halimede.messages import HardSample, Result
from halimede.offload.errors import OffloadReason
from halimede.topic import Filter

if TYPE_CHECKING:
    from halimede.cli.preview_drawer import PreviewDrawer

#: most ids that are remembered, so that a repeated result is shown once
REMEMBERED = 100_000
#: characters of the column LABEL: enough for two boxes with their scores
LABEL_WIDTH = 30
#: the titles of the table
HEADER = f"{'CAMERA':<12} {'SEQ':>7}  {'LABEL':<{LABEL_WIDTH}} {'SCORE':>6}  {'BY':<5} {'MS':>8}  {'FILE':<20}  NOTE"


def results(
    service: o.ServiceArgument,
    namespace: o.Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new results until Ctrl-C (or --limit).")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop after N results. Without -f: 10.", show_default=False)
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", metavar="DIR", help="Draw the hard samples that workers publish into a new folder."),
    ] = None,
    output: o.LinesOption = "table",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show final answers as they arrive. An answer that is repeated after a lost connection is shown once.

    It ends when the service is deleted. Results have no pictures: --draw draws the small pictures of hard samples, at
    most one a second of each worker. `halimede publish --draw` draws the answers to all frames that it sends.

    \b
    Examples:
      halimede results -f digits
      halimede results digits --limit 1 -o json
      halimede results -f digits --draw hard/
      halimede results -f digits -o json | jq .label
    """

    async def command() -> None:
        most = limit or (0 if follow else 10)
        address, names = o.address(broker, credentials), (service, o.namespace_of(namespace))
        await show_results(address, *names, most, Format(output), draw)

    run(command)


class Once:
    """Remembers the last ``size`` ids."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, id_: str) -> bool:
        """Remember an id; return whether it was not among the remembered ones."""
        if id_ in self._ids:
            return False
        self._ids[id_] = None
        if len(self._ids) > self._size:
            self._ids.popitem(last=False)
        return True


async def show_results(
    broker: BrokerAddress, service: str, namespace: str, limit: int, form: Format, draw: Path | None = None
) -> None:
    """Print the results of a service until ``limit`` (0: no limit), Ctrl-C or the end of the service.

    ``draw``: a folder for the small pictures of hard samples; None: none. Raises HalimedeError.
    """
    filters: list[Filter[Any]] = [
        *(topic.filter(ns=namespace, service=service) for topic in (topics.RESULT, topics.MULTI_RESULT)),
        *(topics.STATUS.filter(ns=namespace, plural=plural, name=service) for plural in SERVICES),
    ]
    drawer = _drawer(draw, service)
    if drawer:
        filters.append(topics.HARD_SAMPLE.filter(ns=namespace, service=service))
    await warn_if_unknown(broker, service, namespace, "results")
    out, shown = console(), 0
    if form is not Format.JSON:
        out.print(Text(HEADER, style="bold"))
    try:
        async for result in _results(broker, filters, drawer):
            if form is Format.JSON:
                print(escape_json(codec.encode(topics.RESULT, result).decode()), flush=True)
            else:
                out.print(line(result))
            shown += 1
            if shown == limit:
                return
    finally:
        if drawer:
            drawer.report()


def _drawer(folder: Path | None, service: str) -> PreviewDrawer | None:
    """Return the drawer of hard samples; None without a folder. Raises HalimedeError."""
    if folder is None:
        return None
    make_folder("--draw", folder)
    from halimede.cli.preview_drawer import PreviewDrawer

    return PreviewDrawer(folder, service)


async def _results(
    broker: BrokerAddress, filters: Sequence[Filter[Any]], drawer: PreviewDrawer | None
) -> AsyncIterator[Result]:
    """Yield each result once, until the service is deleted; draw hard samples meanwhile."""
    # services of several kinds may have the name: kinds (in the plural) of those that have a status
    once, living = Once(), set[str]()
    async for names, body in follow(broker, *filters):
        if plural := names.get("plural"):
            if body is not None:
                living.add(plural)
            elif living == {plural}:  # the last one: GM clears the status of a resource that is gone
                warn(f"service {names['name']} in namespace {names['ns']} was deleted: no more results")
                return
            else:
                living.discard(plural)
        elif drawer and isinstance(body, HardSample):
            await drawer.draw(body)
        elif isinstance(body, Result) and once.is_new(body.id):
            yield body


def line(result: Result) -> Text:
    """Return one result as a line of the table."""
    best = max((box.score for box in result.prediction.boxes or ()), default=result.score)
    score = "-" if best is None else f"{best:.3f}"
    label = Text(clean_cell(describe_answer(result.prediction) if result.label is None else result.label))
    label.truncate(LABEL_WIDTH, overflow="ellipsis", pad=True)
    shown = Text.assemble(f"{clean(result.camera):<12} {result.sequence:>7}  ", label, f" {score:>6}  ")
    shown.append(f"{result.by:<5}", style="cyan" if result.by in {"cloud", "joint"} else "")
    shown.append(f" {result.total_ms:>8.2f}  {clean_cell(result.file) or '-':<20}  ")
    return shown.append(", ".join(_notes(result)), style="yellow" if result.degraded else "")


def _notes(result: Result) -> Iterator[str]:
    """Yield what the last column shows: whether the sample was hard, and why the edge answered."""
    if result.degraded:
        yield f"degraded: {clean(result.reason)}"
    elif result.hard and result.reason == OffloadReason.BUDGET:
        yield "hard, kept by the budget"
    elif result.hard:
        edge_label = result.edge.label if result.edge else None
        yield "hard" if edge_label in {None, result.label} else f"hard, the edge answered {clean(str(edge_label))}"


async def warn_if_unknown(
    broker: BrokerAddress, service: str, namespace: str, messages: Literal["results", "occupancy events"]
) -> None:
    """Warn if no message would arrive, because there is no such service, or for occupancy events it has no occupancy.

    GM may be offline: the messages need no GM. Raises NoBrokerError and ApiRefusedError.
    """
    try:
        async with Client.to(broker, patience_s=0.0) as client:
            specs = {body["metadata"]["name"]: body["spec"] for body in await client.services(namespace)}
        if service not in specs:
            warn(f"there is no service {service} in namespace {namespace} yet: waiting for its {messages}")
        elif messages != "results" and (specs[service].get("edgeWorker") or {}).get("occupancy") is None:
            warn(f"service {service} has no spec.edgeWorker.occupancy yet: waiting for its {messages}")
    except NoBrokerError:
        raise
    except UnreachableError:
        return
