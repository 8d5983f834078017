"""The checks of ``doctor`` for the system: GM, nodes, services, cameras, clocks, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import halimede
from halimede import topics
from halimede.api.model import PLURAL as MODELS
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli import status_advice
from halimede.cli.broker_address import START_IT
from halimede.cli.cameras import statuses
from halimede.cli.client import Client
from halimede.cli.doctor import Check, ok, problem, warning
from halimede.cli.output import time_of
from halimede.cli.tables import dig, phase
from halimede.errors import HalimedeError
from halimede.messages import CameraStatus, DeadLetter, GmPresence, NodeInfo

#: seconds to wait for dead letters and for a second GM
LISTEN_S = 1.0
#: seconds that clocks may differ; and the age of a report that is acceptable, because reports are sent periodically
CLOCK_S, REPORT_S = 2.0, 60.0
SHOWN = 5
#: cameras that are named
SHOWN_CAMERAS = 10
CAMERA_REMEDIES = {
    "Gone": "restart the process that read it; if it is gone for good, publish an empty retained message on {topic}",
    "Forbidden": "set source.url to an address that its node allows: docs/security.md, Downloads",
    "Unauthorized": "check its user and password: docs/cameras.md, Secrets",
}
CAMERA_REMEDY = "check its address and its power; docs/cameras.md explains each reason"


async def examine(client: Client) -> AsyncGenerator[Check, None]:
    """Check the whole system; without a GM few checks are possible."""
    (letters, stores), cameras = await asyncio.gather(listen(client.bus), statuses(client.bus, LISTEN_S))
    loop = asyncio.get_running_loop()
    asked, began = datetime.now(UTC), loop.time()
    try:
        said = await client.version()
        took = loop.time() - began
        nodes = await client.nodes()
        found, _ = await client.services_by_kind()
        models, _ = await client.list(MODELS)
    except HalimedeError as error:
        yield problem("global manager", str(error), START_IT)
        yield dead_letters(letters)
        return
    said = said if isinstance(said, Mapping) else {}
    yield manager(said, stores)
    for task in status_advice.on_manager(said):
        yield problem("global manager", task.what, task.do)
    yield clock(str(said.get("time") or ""), asked, took)
    for check in [*on_nodes(nodes, str(said.get("version") or "")), *on_services(found, models)]:
        yield check
    for check in on_cameras(cameras):
        yield check
    bodies, now = list(chain.from_iterable(found.values())), datetime.now(UTC)
    yield worker_clocks(bodies, now)
    yield worker_reports(bodies, now)
    yield dead_letters(letters)


async def listen(bus: Bus) -> tuple[list[DeadLetter], set[str]]:
    """Return the dead letters of a second, and the stores of all GMs that are online."""
    letters: list[DeadLetter] = []
    stores: set[str] = set()

    async def letter(delivery: Delivery[DeadLetter]) -> None:
        if len(letters) < 100:
            letters.append(delivery.body)

    async def gm(delivery: Delivery[GmPresence]) -> None:
        if delivery.body.online and len(stores) < SHOWN:
            stores.add(delivery.body.store)

    await bus.subscribe(topics.DEAD_LETTER.filter(), letter)
    await bus.subscribe(topics.GM_PRESENCE.filter(), gm)
    await asyncio.sleep(LISTEN_S)
    await bus.unsubscribe(topics.DEAD_LETTER.filter())
    await bus.unsubscribe(topics.GM_PRESENCE.filter())
    return letters, stores


def manager(said: Mapping[str, Any], stores: set[str]) -> Check:
    """Check GM: there must be one, of this version."""
    name, theirs = "global manager", said.get("version")
    if len(stores) > 1:
        return problem(name, f"{len(stores)} are online", "stop all but one: one broker serves one global manager")
    if theirs != halimede.__version__:
        do = "install the same version on both"
        return warning(name, f"its version is {theirs}, this command's is {halimede.__version__}", do)
    return ok(name, f"one, version {theirs}, epoch {said.get('epoch')}")


def clock(theirs: str, asked: datetime, took_s: float) -> Check:
    """Compare GM's clock with this machine's; the tolerance includes half of the request's duration."""
    name = "clock"
    try:
        offset = (datetime.fromisoformat(theirs) - asked).total_seconds() - took_s / 2
    except (ValueError, TypeError):
        return warning(name, "the global manager does not send its time", "install the same version on both")
    if abs(offset) > CLOCK_S + took_s / 2:
        side = "ahead of" if offset > 0 else "behind"
        do = "synchronize the clocks with NTP: certificates, logs and events depend on them"
        return warning(name, f"the global manager's clock is {abs(offset):.1f} s {side} this machine's", do)
    return ok(name, f"the global manager's and this machine's agree within {abs(offset) + took_s / 2:.2f} s")


def worker_clocks(bodies: Iterable[Mapping[str, Any]], now: datetime) -> Check:
    """Compare the times of workers' last reports with this clock: only a time in the future proves a wrong clock."""
    ahead = {f"{node.get('node')} (+{-age:.0f} s)" for _, node, age in _reports(bodies, now) if age < -CLOCK_S}
    if ahead:
        return warning("node clocks", f"ahead of this clock: {_some(sorted(ahead))}", "synchronize the clocks with NTP")
    return ok("node clocks", "no worker's time is ahead of this machine's")


def worker_reports(bodies: Iterable[Mapping[str, Any]], now: datetime) -> Check:
    """Check the age of the last reports of running workers."""
    silent = {
        f"{dig(body, 'metadata', 'name')} on {node.get('node')} for {age:.0f} s"
        for body, node, age in _reports(bodies, now)
        if age > REPORT_S and node.get("online") and node.get("phase") == "Running"
    }
    if silent:
        do = "see `halimede logs NAME`: they hang or have no connection; LC restarts a worker that ends"
        return warning("reports", f"no report: {_some(sorted(silent))}", do)
    return ok("reports", f"every running worker has reported within {REPORT_S:g} s")


def _reports(
    bodies: Iterable[Mapping[str, Any]], now: datetime
) -> Iterable[tuple[Mapping[str, Any], Mapping[str, Any], float]]:
    """Yield service, node and age in seconds of each node's last report."""
    for body in bodies:
        for node in dig(body, "status", "nodes") or []:
            told = time_of(dig(node, "taskInfo", "currentTime"))
            if told is not None:
                yield body, node, (now - told).total_seconds()


def on_nodes(nodes: Sequence[NodeInfo], version: str) -> list[Check]:
    """Check the nodes."""
    tasks = status_advice.on_nodes(nodes, version)
    if not nodes:
        return [problem("nodes", task.what, task.do) for task in tasks]
    drained = sorted(node.name for node in nodes if node.drained)
    note = f", drained: {_some(drained)}" if drained else ""
    fine = f"{sum(node.online for node in nodes)} of {len(nodes)} online{note}"
    return [warning("nodes", f"{task.about}: {task.what}", task.do) for task in tasks] or [ok("nodes", fine)]


def on_services(found: Mapping[str, Sequence[Mapping[str, Any]]], models: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Check services, by the short name of their kind, and models."""
    checks = []
    for kind, bodies in (*found.items(), ("model", models)):
        failed = {f"{kind}/{dig(body, 'metadata', 'name')}" for body in bodies if phase(body) == "Failed"}
        for task in status_advice.on_resources(kind, bodies):
            make = problem if task.about in failed else warning
            checks.append(make("models" if kind == "model" else "services", f"{task.about}: {task.what}", task.do))
    number = sum(map(len, found.values()))
    return checks or [ok("services", f"{number} services and {len(models)} models, without problems")]


def dead_letters(letters: Sequence[DeadLetter]) -> Check:
    """Check for messages that could not be read."""
    if not letters:
        return ok("dead letters", f"none in {LISTEN_S:g} s")
    first = letters[0]
    found = f"{len(letters)} in {LISTEN_S:g} s; the first: {first.topic}: {first.reason}"
    return warning("dead letters", found, "find the client that publishes there (`halimede events --type Warning`)")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def on_cameras(found: Iterable[tuple[str, CameraStatus]]) -> list[Check]:
    """Check cameras; without a camera process there is no check."""
    every = list(found)
    bad = [(topic, status) for topic, status in every if status.state in {"stalled", "failed", "gone"}]
    if not bad:
        running = sum(status.state == "running" for _, status in every)
        return [ok("cameras", f"{running} of {len(every)} run, none has failed")] if every else []
    return [
        warning(
            "cameras",
            f"{status.camera} ({status.source}): {status.state}: {status.reason}: {status.error}",
            CAMERA_REMEDIES.get(status.reason, CAMERA_REMEDY).format(topic=topic),
        )
        for topic, status in bad[:SHOWN_CAMERAS]
    ]
