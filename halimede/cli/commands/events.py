"""``halimede events``: the events that GM has recorded, and new ones with ``--follow``.

To follow, it requests page by page the events after the last one that was shown. So neither a restart of GM or broker
nor a burst of events leaves a gap, and no event is shown twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from halimede.cli import completion, tables
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client, UnreachableError
from halimede.cli.options import Format
from halimede.cli.output import COLOURS, clean, console, dump, plain, warn
from halimede.cli.runner import run
from halimede.health_checks.resource_fields import time_of
from halimede.messages import Event

POLL_S = 1.0
#: events in one reply
PAGE = 500


class EventType(StrEnum):
    """Types of events."""

    ALL = "all"
    NORMAL = "Normal"
    WARNING = "Warning"


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
    type_: Annotated[EventType, typer.Option("--type", "-t", help="Only events of this type.")] = EventType.ALL,
    since: o.Since = "",
    namespace: o.Namespace = "default",
    output: o.OutputOption = Format.TABLE,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="How many events, the newest.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new events until Ctrl-C.")] = False,
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
    """

    async def command() -> None:
        subject = o.about(about, o.namespace_of(namespace))
        event_type = "" if type_ is EventType.ALL else type_.value
        choice = EventSelection(subject, event_type, o.time_of(since), limit)
        await show_events(o.address(broker, credentials), choice, Format(output), follow=follow)

    run(command)


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Selects events: about one object (or all), of one type (or both), from a time on, the newest ``limit``."""

    about: str = ""
    type: str = ""
    since: datetime | None = None
    limit: int = 100

    @property
    def is_narrow(self) -> bool:
        """Whether the selection depends on the content of events."""
        return bool(self.type or self.since)

    def matches(self, event: Event) -> bool:
        """Whether an event is selected."""
        if self.type and event.type != self.type:
            return False
        return self.since is None or _time(event) >= self.since


async def show_events(broker: BrokerAddress, choice: EventSelection, form: Format, *, follow: bool) -> None:
    """Show the newest selected events, oldest first, and with ``follow`` also new ones."""
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


async def page(client: Client, choice: EventSelection, *, after: int, most: int) -> list[Event]:
    """Return the events after a sequence, oldest first, without a gap; only the newest ``most`` unless that is 0."""
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
    return max((event.sequence for event in await client.events(limit=1)), default=0)


def show_event(event: Event, form: Format) -> None:
    """Print one event on a line."""
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
    if form is not Format.TABLE:
        dump(plain(shown), form)
    elif shown:
        console().print(tables.events(shown))
    else:
        about = f" about {choice.about}" if choice.about else ""
        warn(f"no events{about}{' of that kind' if choice.is_narrow else ''}")


def _time(event: Event) -> datetime:
    return time_of(event.time) or datetime.fromtimestamp(0, UTC)
