"""``halimede logs``: shows the logs of workers, which it requests from their nodes over the bus.

Each log has its own task, so that a node that does not reply delays no other; lines are shown when they arrive. While
it follows a service, it looks up the workers again and again, because they may move to other nodes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from halimede import api
from halimede.api import matches, placements
from halimede.api.base import NEPTUNE
from halimede.api.neptune import to_sedna
from halimede.api.placement import Role
from halimede.cli import completion
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.output import clean, console, warn
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError, first_error
from halimede.health_checks.resource_fields import time_of
from halimede.messages import LogsRequest, NodeInfo, ResourceBody
from halimede.names import check_name

#: seconds between two requests for a log, and between two lookups of the workers
POLL_S, SEARCH_S = 0.5, 3.0
#: most bytes of one reply
PART_BYTES = 262_144
#: bytes to request first for each of the last lines: more than most lines have
BYTES_A_LINE = 1024
#: number of followed logs from which on logs of new workers are not followed
MOST_LOGS = 500
#: colours of workers' names
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
#: colours of the levels of log events; other levels are dim
LEVELS = {"warning": "yellow", "error": "red", "critical": "red"}
#: fields of a log line that are shown in their own place, or in the prefix
PLACED = frozenset({"event", "timestamp", "level", "worker", "service", "node", "namespace"})


def logs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="A service (all its workers) or one worker.",
            show_default=False,
            autocompletion=completion.services,
        ),
    ] = "",
    namespace: o.Namespace = "default",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines until Ctrl-C.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            metavar="LINES",
            min=-1,
            help="Show this many lines at first; -1: all. Default: 100, or all with --since.",
            show_default=False,
        ),
    ] = None,
    since: o.Since = "",
    role: Annotated[Literal["both", "edge", "cloud"], typer.Option(help="Only workers of this role.")] = "both",
    node: Annotated[
        str,
        typer.Option(
            "--node",
            "-l",
            metavar="NODE",
            help="All workers of this node. With NAME: that worker, even if GM does not know it.",
            show_default=False,
            autocompletion=completion.nodes,
        ),
    ] = "",
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show the logs of a service's workers on all nodes, also across restarts and log rotations.

    \b
    Examples:
      halimede logs digits -f
      halimede logs digits --role cloud --since 10m
      halimede logs -l edge0 -f --tail 5
      halimede logs digits-edge-edge0 --node edge0 --tail -1
    """
    if not name and not node:
        raise typer.BadParameter("give a service, a worker, or a node with -l NODE")

    async def command() -> int:
        for option, value in (("NAME", name), ("--node", node)):
            if value:
                check_name(option, value)
        only = "" if role == "both" else role
        lines = tail if tail is not None else (-1 if since else 100)
        choice = LogSelection(name, o.namespace_of(namespace), node, only, lines, o.time_of(since))
        return await show_logs(o.address(broker, credentials), choice, follow=follow)

    run(command)


@dataclass(frozen=True, slots=True)
class LogSelection:
    """Selects logs and their lines."""

    #: a service or a worker; empty: all
    name: str
    namespace: str
    #: only workers of this node; empty: of all
    node: str = ""
    #: only workers of this role; empty: of both
    role: Role | str = ""
    #: how many lines to show at first, the last ones; negative: all
    tail: int = 100
    #: only lines from this time on; None: all
    since: datetime | None = None

    @property
    def is_direct(self) -> bool:
        """Whether node and worker are named, so that no request to GM is needed."""
        return bool(self.node and self.name)


@dataclass(slots=True)
class Log:
    """The state of reading one worker's log."""

    #: the names of the worker and of its node
    node: str
    worker: str
    #: ``edge`` or ``cloud``; empty: unknown
    role: str = ""
    #: where the next read begins, in bytes
    offset: int = 0
    #: the beginning of a line whose end has not been read
    unfinished_line: str = field(default="", repr=False)
    #: why the last read failed; empty: it did not
    problem: str = ""
    #: the next read continues at ``offset``: a read has succeeded, or the worker is new
    started: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Node and worker, which identify the log."""
        return self.node, self.worker


async def show_logs(broker: BrokerAddress, choice: LogSelection, *, follow: bool) -> int:
    """Print the selected logs, and with ``follow`` new lines until Ctrl-C. Returns 1 if no log could be read."""
    async with Client.to(broker) as client:
        selected = await find(client, choice)
        with_names = len(selected) > 1 or (follow and not choice.is_direct)
        texts = await asyncio.gather(*(_new(client, choice, log) for log in selected))
        for log, lines in zip(selected, texts, strict=True):
            for line in lines:
                show_line(log.worker, line, several=with_names)
        if follow:
            await _follow(client, choice, selected)
    return 1 if all(log.problem for log in selected) else 0


async def find(client: Client, choice: LogSelection) -> list[Log]:
    """Return the selected logs. Raises InvalidFieldError for an unknown name, and HalimedeError if there is none."""
    if choice.is_direct:
        return [Log(choice.node, choice.name)]
    nodes = await client.nodes()
    by_service: dict[str, list[Log]] = {}
    for body in await client.services(choice.namespace):
        by_service.setdefault(str(body["metadata"]["name"]), []).extend(workers(body, nodes))
    all_logs = [log for service_logs in by_service.values() for log in service_logs]
    if choice.name in by_service:
        chosen, about = by_service[choice.name], f"service {choice.name}"
    elif choice.name:
        chosen, about = [log for log in all_logs if log.worker == choice.name], f"worker {choice.name}"
        if not chosen:
            existing = ", ".join(sorted([*by_service, *(log.worker for log in all_logs)])) or "none exist"
            fix = f"use a service or worker of namespace {choice.namespace}: {existing}"
            raise InvalidFieldError("name", choice.name, fix)
    else:
        chosen, about = all_logs, f"namespace {choice.namespace}"
        if choice.node and choice.node not in {node.name for node in nodes}:
            existing = ", ".join(sorted(node.name for node in nodes)) or "none exist"
            raise InvalidFieldError("--node", choice.node, f"use a node: {existing}")
    chosen = [log for log in chosen if choice.node in {"", log.node} and choice.role in {"", log.role}]
    if not chosen:
        where = "".join((f" of role {choice.role}" if choice.role else "", f" on {choice.node}" if choice.node else ""))
        raise HalimedeError(f"{about} has no workers{where}: see `halimede status` and `halimede nodes`")
    return chosen


def workers(body: ResourceBody, nodes: Sequence[NodeInfo]) -> list[Log]:
    """Return the logs of a service's workers on these nodes, as GM places them."""
    resource = api.parse(body)
    if resource.kind.api_version == NEPTUNE:
        resource = api.parse(to_sedna(resource))
    return [
        Log(node.name, placement.on(resource.metadata.name, node.name), placement.role)
        for placement in placements(resource.spec)
        for node in sorted(nodes, key=lambda n: n.name)
        if matches(placement.pod, node.name, node.labels, drained=node.drained)
    ]


async def _follow(client: Client, choice: LogSelection, selected: Sequence[Log]) -> None:
    """Print new lines of the selected logs, and logs of new workers, until it is cancelled."""
    followed = {log.key: log for log in selected}
    with first_error():
        async with asyncio.TaskGroup() as group:

            def start(log: Log) -> None:
                group.create_task(_follow_one(client, choice, log), name=f"log of {log.worker}")

            for log in selected:
                start(log)
            while True:
                await asyncio.sleep(SEARCH_S)
                if choice.is_direct:
                    continue
                for log in await _search_again(client, choice):
                    if log.key not in followed and len(followed) < MOST_LOGS:
                        followed[log.key] = log
                        log.started = True  # the worker is new: show its log from the start
                        start(log)


async def _search_again(client: Client, choice: LogSelection) -> list[Log]:
    """Return the logs that are selected now; nothing if that is unknown."""
    try:
        return await find(client, choice)
    except HalimedeError:  # GM is restarting, or the service is missing for now: follow the known logs
        return []


async def _follow_one(client: Client, choice: LogSelection, log: Log) -> None:
    """Print new lines of one log, until it is cancelled."""
    while True:
        for line in await _new(client, choice, log):
            show_line(log.worker, line, several=not choice.is_direct)
        await asyncio.sleep(POLL_S)


async def _new(client: Client, choice: LogSelection, log: Log) -> list[str]:
    """Return new lines of one log, the first time those that ``choice`` selects; warn once of the same error."""
    first = not log.started
    try:
        if first and choice.tail >= 0:
            lines = await _read_last(client, choice.namespace, log, choice.tail)
        else:
            lines = await _read(client, choice.namespace, log, log.offset)
    except HalimedeError as error:
        if str(error) != log.problem:
            warn(f"{log.worker} on {log.node}: {error}")
        log.problem = str(error)
        return []
    log.problem, log.started = "", True
    return list(lines_since(lines, choice.since)) if first and choice.since else lines


async def _read_last(client: Client, namespace: str, log: Log, count: int) -> list[str]:
    """Return the last ``count`` complete lines of a log, or all lines; advance ``log``. Raises like ``_read``."""
    size = max(1, count) * BYTES_A_LINE
    while True:
        lines = await _read(client, namespace, log, -size)
        # the first line may lack its beginning, unless this is the whole log
        if len(lines) > count or log.offset <= size:
            return lines[max(0, len(lines) - count) :]
        size *= 4


async def _read(client: Client, namespace: str, log: Log, offset: int) -> list[str]:
    """Return the complete lines of a log from an offset on (negative: from its end); advance ``log``.

    Raises HalimedeError if the node does not answer or has no such log.
    """
    collected: list[str] = []
    if offset < 0:
        log.unfinished_line = ""
    while True:
        request = LogsRequest(namespace=namespace, worker=log.worker, offset=offset, limit=PART_BYTES)
        reply = await client.logs(log.node, request)
        if reply.error:
            raise HalimedeError(reply.error)
        if reply.offset < log.offset:
            log.unfinished_line = ""  # the log was rotated: read it from the start
        *complete, log.unfinished_line = (log.unfinished_line + reply.text).split("\n")
        collected += complete
        log.offset = offset = reply.offset
        if not reply.text:
            break
    return collected


def show_line(worker: str, line: str, *, several: bool) -> None:
    """Print a line of a log, with its worker's name if there are several workers; in colour on a terminal."""
    if not sys.stdout.isatty():
        print(f"{worker}  {line}" if several else line, flush=True)
        return
    shown = Text()
    if several:
        shown.append(f"{worker}  ", style=COLOURS[zlib.crc32(worker.encode()) % len(COLOURS)])
    console().print(shown.append_text(pretty(line)))


def pretty(line: str) -> Text:
    """Return a line of a log for a terminal: a log event in JSON as time, level, event and fields, another as it is."""
    fields = _fields(line)
    if "event" not in fields:
        return Text(clean(line))
    time = str(fields.get("timestamp", ""))[11:19]
    level = str(fields.get("level", ""))
    shown = Text(f"{time} ", style="dim")
    shown.append(f"{level:<8}", style=LEVELS.get(level, "dim"))
    shown.append(clean(str(fields["event"])), style="bold")
    for name, value in fields.items():
        if name not in PLACED:
            shown.append(clean(f"  {name}={value}"), style="dim")
    return shown


def lines_since(lines: Iterable[str], start: datetime) -> Iterator[str]:
    """Yield the lines from a time on. A line without a time belongs to the line before it."""
    recent = False
    for line in lines:
        if (time := time_of(_fields(line).get("timestamp"))) is not None:
            recent = time >= start
        if recent:
            yield line


def _fields(line: str) -> Mapping[str, Any]:
    """Return the fields of a log event in JSON; empty for another line."""
    try:
        fields: Any = json.loads(line) if line.startswith("{") else None
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else {}
