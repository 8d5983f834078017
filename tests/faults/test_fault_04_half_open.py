"""Packets vanish and nobody says so: a half-open connection is found within 1.5 times the keepalive, then mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.errors import DisconnectedError
from halimede.frames import new_frame, pack
from halimede.messages import Result
from halimede.worker.bootstrap import serve
from halimede.worker.main import connect_to
from tests.faults.control import PATIENCE, Control
from tests.inbox import Inbox
from tests.proxy import Proxy
from tests.unit.worker import world as workers
from tests.waiting import patience

KEEPALIVE = 4
#: a publish that no acknowledgement is waited for
SPOKEN = Packet("default/sedna/frames/cam0", b"x" * 100, qos=0)


async def found(proxy: Proxy, *buses: MqttBus, busy: Callable[[], Awaitable[Any]] | None = None) -> None:
    """Fall silent; insist that each bus says so in time, whether it is idle or speaks all the while; heal."""
    loop = asyncio.get_running_loop()
    proxy.freeze()
    began, stalled = loop.time(), 0.0
    while any(bus.connected for bus in buses):
        # a busy machine keeps this loop waiting, and with it the buses
        assert loop.time() - began - stalled <= 1.5 * KEEPALIVE, "a dead connection is taken for a good one"
        if busy:
            await busy()
        slept = loop.time()
        await asyncio.sleep(0.02)
        stalled += loop.time() - slept - 0.02
    assert loop.time() - began > KEEPALIVE / 3, "the network was silent, not the broker gone"
    for bus in buses:
        with pytest.raises(DisconnectedError):
            await bus.wait_connected(0.1)
    proxy.heal()
    for bus in buses:
        await bus.wait_connected(patience(PATIENCE))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["gm", "lc"])
async def test_fault_04_gm_and_lc_find_it_and_go_on_after_it(plane: Control, who: str) -> None:
    async with Proxy(plane.broker.port) as proxy:
        slow, plain = plane.settings(proxy.port, keepalive_s=KEEPALIVE), plane.settings()
        async with plane.gm(slow if who == "gm" else plain) as gm, plane.lc(slow if who == "lc" else plain) as lc:
            await plane.start_services("helmet")
            before = plane.workers()
            await found(proxy, gm if who == "gm" else lc)
            await plane.apply(plane.service("another"))
            await plane.running("helmet", "another")
            assert plane.workers("helmet") == before
            assert (await plane.node()).online


@pytest.mark.slow
@pytest.mark.usefixtures("each_client")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "speaking"])
async def test_fault_04_a_connection_that_goes_on_sending_is_found_as_soon(plane: Control, busy: bool) -> None:
    async with (
        Proxy(plane.broker.port) as proxy,
        MqttBus("lonely", plane.settings(proxy.port, keepalive_s=KEEPALIVE)) as bus,
    ):
        await bus.wait_connected(patience(PATIENCE))

        async def speak() -> None:
            await bus.send(SPOKEN, 1)

        await found(proxy, bus, busy=speak if busy else None)


@asynccontextmanager
async def edge_worker(plane: Control, proxy: Proxy, buses: list[MqttBus]) -> AsyncIterator[None]:
    """A real edge worker in this process, both of whose connections go through the proxy."""
    connect = connect_to(replace(plane.settings(proxy.port), keepalive_s=KEEPALIVE))

    def noting(*args: Any, **options: Any) -> Any:
        bus = connect(*args, **options)
        buses.append(bus)  # type: ignore[arg-type]
        return bus

    settings = workers.World(plane.folder).settings("edge", "e0", hem_name="EdgeOnly", hem_parameters={})
    stop = asyncio.Event()
    running = asyncio.create_task(serve(settings, noting, stop, workers.Small))
    try:
        await plane.until(lambda: len(buses) == 2 and all(bus.stats.connects for bus in buses))
        yield
    finally:
        stop.set()
        await running


@pytest.mark.slow
@pytest.mark.usefixtures("each_client")
async def test_fault_04_a_worker_finds_it_on_both_its_connections_and_answers_again(plane: Control) -> None:
    buses: list[MqttBus] = []
    answered = Inbox[Result]()
    async with Proxy(plane.broker.port) as proxy, edge_worker(plane, proxy, buses):
        await plane.operator.subscribe(topics.RESULT.filter(), answered)

        async def ask() -> None:
            """Publish frames until one of them is answered: those that nobody was there for are nobody's."""
            sent: set[str] = set()
            while not sent & set(answered.read(lambda result: result.id)):
                frame = new_frame(np.full((4, 4), 10, np.uint8))
                sent.add(frame.id.hex())
                await plane.operator.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), pack(frame))
                await asyncio.sleep(0.1)

        await asyncio.wait_for(ask(), patience(PATIENCE))
        await found(proxy, *buses)
        await asyncio.wait_for(ask(), patience(PATIENCE))
