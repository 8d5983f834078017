"""``halimede top``: the system as it works, live; read from retained topics, so it goes on while GM is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live

from halimede import topics
from halimede.api.placement import SERVICES
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.top_rates import TopState
from halimede.cli.output import Format, console, dump
from halimede.cli.views.top_screen import screen
from halimede.errors import HalimedeError, first_error
from halimede.messages import GmPresence, Load, Peer, Presence, StatusDocument

#: seconds between two questions to GM, which knows what topics do not tell (drained nodes, workers)
ASK_S = 2.0
#: status documents come at most once a second: less than this is no measurement
LEAST_MEASURE_S = 3.0


async def top(broker: BrokerAddress, seconds: float, sort: str, form: Format, *, once: bool) -> None:
    """Show everything, again and again until cancelled, or once after one measurement."""
    state = TopState()
    async with Client.to(broker, patience_s=0.0) as client:
        await listen(client.bus, state)
        with first_error():
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(_ask(client, state), name="top: nodes")
                await _show(client.bus, broker, state, seconds=seconds, sort=sort, form=form, once=once)
                asking.cancel()


async def listen(bus: Bus, state: TopState) -> None:
    """Keep ``state`` up to date from topics."""
    loop = asyncio.get_running_loop()

    async def status(delivery: Delivery[StatusDocument]) -> None:
        state.take(loop.time(), delivery.body, delivery.names["plural"])

    async def no_status(names: Mapping[str, str]) -> None:
        state.services.pop((names["plural"], names["ns"], names["name"]), None)

    async def load(delivery: Delivery[Load]) -> None:
        names = delivery.names
        state.loads[names["ns"], names["service"], names["worker"]] = delivery.body

    async def no_load(names: Mapping[str, str]) -> None:
        state.loads.pop((names["ns"], names["service"], names["worker"]), None)

    async def peer(delivery: Delivery[Peer]) -> None:
        names = delivery.names
        state.peers[names["ns"], names["service"], names["worker"]] = delivery.body

    async def no_peer(names: Mapping[str, str]) -> None:
        state.peers.pop((names["ns"], names["service"], names["worker"]), None)

    async def presence(delivery: Delivery[Presence]) -> None:
        state.presences[delivery.names["node"]] = delivery.body

    async def no_presence(names: Mapping[str, str]) -> None:
        state.presences.pop(names["node"], None)
        state.infos.pop(names["node"], None)

    async def gm(delivery: Delivery[GmPresence]) -> None:
        state.gm = delivery.body

    for plural in SERVICES:
        await bus.subscribe(topics.STATUS.filter(plural=plural), status, cleared=no_status)
    await bus.subscribe(topics.LOAD.filter(), load, cleared=no_load)
    await bus.subscribe(topics.PEER.filter(), peer, cleared=no_peer)
    await bus.subscribe(topics.PRESENCE.filter(), presence, cleared=no_presence)
    await bus.subscribe(topics.GM_PRESENCE.filter(), gm)


async def _ask(client: Client, state: TopState) -> None:
    while True:
        with contextlib.suppress(HalimedeError):  # GM is away: the screen says so
            state.infos = {node.name: node for node in await client.nodes()}
        await asyncio.sleep(ASK_S)


async def _show(
    bus: Bus, broker: BrokerAddress, state: TopState, *, seconds: float, sort: str, form: Format, once: bool
) -> None:
    loop = asyncio.get_running_loop()

    def view() -> dict[str, Any]:
        return {"broker": {"address": str(broker), "connected": bus.connected}, **state.view(loop.time(), sort)}

    if once:
        await asyncio.sleep(max(seconds, LEAST_MEASURE_S))
        if form is Format.TABLE:
            out = console() if not sys.stdout.isatty() else Console(highlight=False)
            out.print(screen(view(), out.width, rows=0))
        else:
            dump(view(), form)
        return
    if form is not Format.TABLE or not sys.stdout.isatty():
        await _lines(view, seconds, form)
        return
    out = Console(highlight=False)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(view(), out.width, rows=out.height), refresh=True)
            await asyncio.sleep(seconds)


async def _lines(view: Any, seconds: float, form: Format) -> None:
    """For pipes: one document a line, or one table after the other."""
    while True:
        await asyncio.sleep(seconds)
        if form is Format.JSON:
            print(json.dumps(view(), ensure_ascii=False), flush=True)
        elif form is Format.YAML:
            print("---", flush=True)
            dump(view(), form)
        else:
            console().print(screen(view(), console().width, rows=0), end="\n\n")
