"""``halimede logs``: what workers wrote, asked of the nodes over the bus."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from halimede import api
from halimede.api import matches, placements
from halimede.api.base import NEPTUNE
from halimede.api.jointinference import PLURAL
from halimede.api.neptune import to_sedna
from halimede.api.placement import worker_name
from halimede.cli.broker import Broker
from halimede.cli.client import Client
from halimede.cli.output import clean, console, warn
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import LogsRequest, NodeInfo, ResourceBody

POLL_S = 0.5
PART_BYTES = 262_144
#: bytes to read for each line that was asked for, so that the last lines are there whatever their length
BYTES_A_LINE = 1024
COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
LEVELS = {"warning": "yellow", "error": "red", "critical": "red"}
#: fields of a log line that have their own place, or that the prefix says already
PLACED = frozenset({"event", "timestamp", "level", "worker", "service", "node", "namespace"})


@dataclass(slots=True)
class Log:
    """One worker's log as far as it has been read."""

    node: str
    worker: str
    offset: int = 0
    rest: str = field(default="", repr=False)
    problem: str = ""


async def logs(broker: Broker, name: str, namespace: str, node: str, *, follow: bool, tail: int) -> int:
    """Show the last ``tail`` lines (negative: all) of a worker or of all workers of a service, and what follows."""
    async with Client.to(broker) as client:
        found = [Log(node, name)] if node else await find(client, name, namespace)
        several = len(found) > 1
        for log in found:
            await _try(client, namespace, log, several=several, tail=tail)
        while follow:
            await asyncio.sleep(POLL_S)
            for log in found:
                await _try(client, namespace, log, several=several)
    return 1 if all(log.problem for log in found) else 0


async def find(client: Client, name: str, namespace: str) -> list[Log]:
    """Return the workers that a name stands for: those of a service, or the one worker that is called so."""
    nodes = await client.nodes()
    services, _ = await client.list(PLURAL, namespace)
    by_service = {str(body["metadata"]["name"]): workers(body, nodes) for body in services}
    if name in by_service:
        if not by_service[name]:
            raise HalimedeError(f"service {name} has no workers: no node matches it; see `halimede describe ji {name}`")
        return by_service[name]
    every = [log for found in by_service.values() for log in found]
    if chosen := [log for log in every if log.worker == name]:
        return chosen
    known = ", ".join(sorted([*by_service, *(log.worker for log in every)])) or "there are none"
    raise InvalidFieldError("name", name, f"use a service or worker of namespace {namespace}: {known}")


def workers(body: ResourceBody, nodes: Sequence[NodeInfo]) -> list[Log]:
    """Return the workers of a service, by the same rule by which GM sends and LC starts them."""
    resource = api.parse(body)
    if resource.kind.api_version == NEPTUNE:
        resource = api.parse(to_sedna(resource))
    return [
        Log(node.name, worker_name(resource.metadata.name, placement.role, node.name))
        for placement in placements(resource.spec)
        for node in sorted(nodes, key=lambda n: n.name)
        if matches(placement.pod, node.name, node.labels)
    ]


async def _try(client: Client, namespace: str, log: Log, *, several: bool, tail: int | None = None) -> None:
    """Print what is new of one log; what is in the way is said once, and does not stop the others."""
    try:
        lines = await _read(client, namespace, log, from_end=tail is not None and tail >= 0, lines=tail or 0)
        log.problem = ""
    except HalimedeError as error:
        if str(error) != log.problem:
            warn(f"{log.worker} on {log.node}: {error}")
        log.problem = str(error)
        return
    for line in lines:
        _print(log, line, several=several)


async def _read(client: Client, namespace: str, log: Log, *, from_end: bool, lines: int) -> list[str]:
    """Return the lines from where reading stopped to the end, or the last ``lines`` of the log."""
    found: list[str] = []
    offset = -max(1, lines) * BYTES_A_LINE if from_end else log.offset
    while True:
        request = LogsRequest(namespace=namespace, worker=log.worker, offset=offset, limit=PART_BYTES)
        reply = await client.logs(log.node, request)
        if reply.error:
            raise HalimedeError(reply.error)
        if reply.offset < log.offset:
            log.rest = ""  # rotated: it starts anew
        *whole, log.rest = (log.rest + reply.text).split("\n")
        found += whole
        log.offset = offset = reply.offset
        if not reply.text:
            break
    return found[max(0, len(found) - lines) :] if from_end else found


def _print(log: Log, line: str, *, several: bool) -> None:
    if not sys.stdout.isatty():
        print(f"{log.worker}  {line}" if several else line, flush=True)
        return
    shown = Text()
    if several:
        shown.append(f"{log.worker}  ", style=COLOURS[sum(log.worker.encode()) % len(COLOURS)])
    console().print(shown.append_text(pretty(line)))


def pretty(line: str) -> Text:
    """Return a log line for a terminal: structlog's JSON as time, event and fields; anything else as it is."""
    try:
        fields: Any = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or "event" not in fields:
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
