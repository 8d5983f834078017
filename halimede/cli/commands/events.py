"""``halimede events``: shows the events that GM has recorded, and new ones with ``--follow``; or occupancy events.

To follow, it requests page by page the events after the last one that was shown. So a restart of GM or the broker, or
many events at once, leave no gap, and no event is shown twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from rich.text import Text

from halimede import codec, topics
from halimede.answer_text import describe_occupancy
from halimede.cli import completion, tables
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.commands.results import Once, warn_if_unknown
from halimede.cli.follow import follow as follow_topic
from halimede.cli.options import Format
from halimede.cli.output import COLOURS, clean, console, dump, escape_json, plain, warn
from halimede.cli.runner import run
from halimede.health_checks.resource_fields import time_of
from halimede.messages import Event, OccupancyEvent

#: seconds between two requests for new events
POLL_S = 1.0
#: most events of one reply
PAGE = 500
#: events that are shown by default
LIMIT = 100


def events(
    about: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="Only events about this: KIND/NAME or node/NODE.",
            show_default=False,
            autocompletion=completion.events,
        ),
    ] = "",
    type_: Annotated[
        Literal["all", "Normal", "Warning"], typer.Option("--type", "-t", help="Only events of this type.")
    ] = "all",
    since: o.Since = "",
    namespace: o.Namespace = "default",
    output: o.OutputOption = Format.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=5000, help=f"How many events, the newest. Default: {LIMIT}.", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new events until Ctrl-C.")] = False,
    occupancy: Annotated[
        str,
        typer.Option(
            metavar="SERVICE",
            help="Follow who enters and leaves the pictures of this service, after the last event of each camera.",
            show_default=False,
            autocompletion=completion.services,
        ),
    ] = "",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show events. With -f, follow them, one JSON document a line; it reconnects when GM is back.

    \b
    Examples:
      halimede events --since 1h --type Warning
      halimede events --about ji/digits
      halimede events --about node/edge0 -f
      halimede events -f -o json | jq .reason
      halimede events --occupancy yard
    """
    if occupancy and (about or since or limit or type_ != "all"):
        fix = "give it without --about, --since, --type and --limit, which select events of the global manager"
        raise typer.BadParameter(fix, param_hint="--occupancy")

    async def command() -> None:
        if occupancy:
            await follow_occupancy(o.address(broker, credentials), occupancy, o.namespace_of(namespace), Format(output))
            return
        subject = o.about(about, o.namespace_of(namespace))
        choice = EventSelection(subject, "" if type_ == "all" else type_, o.time_of(since), limit or LIMIT)
        await show_events(o.address(broker, credentials), choice, Format(output), follow=follow)

    run(command)


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Selects events."""

    #: as in ``Event``, such as ``node/edge0``; empty: all
    about: str = ""
    #: ``Normal`` or ``Warning``; empty: both
    type: str = ""
    #: with its zone; None: all
    since: datetime | None = None
    #: most events, the newest
    limit: int = LIMIT

    @property
    def is_narrow(self) -> bool:
        """Whether the selection depends on the type or time of events, which GM does not select by."""
        return bool(self.type or self.since)

    def matches(self, event: Event) -> bool:
        """Whether an event is selected."""
        if self.type and event.type != self.type:
            return False
        return self.since is None or _time(event) >= self.since


async def show_events(broker: BrokerAddress, choice: EventSelection, form: Format, *, follow: bool) -> None:
    """Print the newest selected events, the oldest first, and with ``follow`` also new ones until Ctrl-C."""
    async with Client.to(broker) as client:
        collected = await page(client, choice, after=0, most=0 if choice.is_narrow else choice.limit)
        after = max((event.sequence for event in collected), default=0)
        if not after and follow:
            after = await _newest(client)
        shown = [event for event in collected if choice.matches(event)][-choice.limit :]
        if not follow:
            _table(shown, choice, form)
            return
        for event in shown:
            show_event(event, form)
        async for event in _follow(client, choice, after):
            show_event(event, form)


async def follow_occupancy(broker: BrokerAddress, service: str, namespace: str, form: Format) -> None:
    """Print the last occupancy event of each camera of a service, and new ones until Ctrl-C, each once.

    As JSON, an event is a line.
    """
    await warn_if_unknown(broker, service, namespace, "occupancy events")
    once = Once()
    async for _, event in follow_topic(broker, topics.OCCUPANCY.filter(ns=namespace, service=service)):
        if event is None or not once.is_new(event.id):
            continue
        if form is Format.TABLE:
            console().print(_occupancy_line(event))
        else:
            print(escape_json(codec.encode(topics.OCCUPANCY, event).decode()), flush=True)


def _occupancy_line(event: OccupancyEvent) -> Text:
    """Return the line of an occupancy event: time, type, and who is where."""
    moment = datetime.fromtimestamp(event.time_ns / 1e9, UTC).astimezone()
    line = Text(f"{moment:%H:%M:%S}  ", style="dim")
    line.append(f"{event.type:<8}", style="green" if event.type == "entered" else "default")
    return line.append(clean(f"  {describe_occupancy(event)}"), style="default not dim")


async def page(client: Client, choice: EventSelection, *, after: int, most: int) -> list[Event]:
    """Return the events after a sequence number, the oldest first, without a gap; at most the newest ``most``, 0: all.

    Events before ``choice.since`` may be missing.
    """
    collected: list[Event] = []
    before = 0
    while True:
        size = min(PAGE, most - len(collected)) if most else PAGE
        part = await client.events(after=after, before=before, about=choice.about, limit=size)
        collected = [*part, *collected]
        if len(part) < size or (most and len(collected) >= most):
            return collected
        if choice.since and _time(part[0]) < choice.since:
            return collected
        before = part[0].sequence


async def _follow(client: Client, choice: EventSelection, after: int) -> AsyncIterator[Event]:
    """Yield selected events after a sequence number as they happen, without end. It waits for a GM that is away.

    A GM with a new store has begun its sequence again: then its events are yielded from the first, after a warning.
    """
    is_away = False
    while True:
        await asyncio.sleep(POLL_S)
        try:
            new_events = await page(client, choice, after=after, most=0)
            if not new_events and await _newest(client) < after:
                warn("the global manager has a new store: showing its events from the first")
                after = 0
                continue
            is_away = False
        except UnreachableError as error:
            if not is_away:
                warn(f"{error}; continuing when it is back")
            is_away = True
            continue
        for event in new_events:
            after = max(after, event.sequence)
            if choice.matches(event):
                yield event


async def _newest(client: Client) -> int:
    """Return the sequence number of the newest event; 0: there is none."""
    return max((event.sequence for event in await client.events(limit=1)), default=0)


def show_event(event: Event, form: Format) -> None:
    """Print one event on a line: as text, or as JSON for all other forms."""
    if form is not Format.TABLE:
        print(json.dumps(plain(event), ensure_ascii=False), flush=True)
        return
    line = Text(f"{_time(event).astimezone():%H:%M:%S}  ", style="dim")
    line.append(f"{event.type:<9}", style=COLOURS.get(event.type, ""))
    line.append(clean(f"{event.reason:<18}  {event.about}  {event.message}"), style="default not dim")
    if event.count > 1:
        line.append(f" (x{event.count})")
    console().print(line)


def _table(shown: Sequence[Event], choice: EventSelection, form: Format) -> None:
    """Print events as a table, or as one document; warn if there is none for the table."""
    if form is not Format.TABLE:
        dump(plain(shown), form)
    elif shown:
        console().print(tables.events(shown))
    else:
        about = f" about {choice.about}" if choice.about else ""
        warn(f"no events{about}{' of that kind' if choice.is_narrow else ''}")


def _time(event: Event) -> datetime:
    return time_of(event.time) or datetime.fromtimestamp(0, UTC)
