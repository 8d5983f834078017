"""Two clients with one client id: it is noticed, said where operators look, and they do not chase each other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.bus.reconnect import LONGEST, PAUSE
from halimede.messages import DeadLetter
from tests.faults.control import PATIENCE, Child, Control, control
from tests.proxy import Proxy
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds: until the first of two is settled, and for how long connections are counted
SETTLED, COUNTED = 6.0, 20.0


async def connections(*proxies: Proxy) -> list[int]:
    """Count the connections that clients make in the next seconds."""
    before = [proxy.accepted for proxy in proxies]
    await asyncio.sleep(COUNTED)
    return [proxy.accepted - was for proxy, was in zip(proxies, before, strict=True)]


async def alarmed(plane: Control, first: Child, second: Child) -> None:
    async def event() -> bool:
        found = await plane.events("DuplicateNode", "node/edge0")
        return bool(found) and found[0].type == "Warning" and "--node" in found[0].message

    await plane.until(event)
    for child in (first, second):
        await plane.until(lambda child=child: child.says("node name used twice"))


async def test_fault_23_a_second_lc_of_a_node_gives_way_and_gm_raises_an_event(tmp_path: Path) -> None:
    async with control(tmp_path) as plane, plane.gm(), Proxy(plane.broker.port) as a, Proxy(plane.broker.port) as b:
        first = plane.lc_process(port=a.port)
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet")
        await asyncio.sleep(SETTLED)
        before = plane.workers()

        second = plane.lc_process(home=tmp_path / "other", port=b.port)
        await plane.until(lambda: b.accepted)
        made = await connections(a, b)
        await alarmed(plane, first, second)
        assert max(made) <= 4, f"they chase each other: {made} connections in {COUNTED:g} s"
        # the one that was there goes on with what it runs; the other has started nothing of its own
        assert plane.workers() == before
        await plane.until(lambda: plane.phase("helmet") == "Running")
        assert (await plane.node()).online

        # once the first one is gone the second takes the node over by itself
        assert await first.stop() == 0
        await plane.until(lambda: not plane.workers() or plane.workers() != before)
        await plane.running("helmet", within_s=LONGEST * PAUSE[1])
        assert (await plane.node()).online


async def test_fault_23_of_two_that_come_at_once_one_stays(tmp_path: Path) -> None:
    async with control(tmp_path) as plane, plane.gm(), Proxy(plane.broker.port) as a, Proxy(plane.broker.port) as b:
        first = plane.lc_process(port=a.port)
        second = plane.lc_process(home=tmp_path / "other", port=b.port)
        await plane.until(lambda: a.accepted and b.accepted)
        made = await connections(a, b)
        assert max(made) <= 5, f"they chase each other: {made} connections in {COUNTED:g} s"
        await alarmed(plane, first, second)


async def test_fault_23_other_clients_notice_it_by_brief_connections_and_say_so(tmp_path: Path) -> None:
    letters: list[DeadLetter] = []

    async def letter(delivery: Delivery[DeadLetter]) -> None:
        letters.append(delivery.body)

    async with control(tmp_path) as plane, Proxy(plane.broker.port) as a, Proxy(plane.broker.port) as b:
        await plane.operator.subscribe(topics.DEAD_LETTER.filter(), letter)
        with capture_logs() as lines:
            async with MqttBus("worker.default.w", plane.settings(a.port)) as first:
                await first.wait_connected(patience(PATIENCE))
                await asyncio.sleep(SETTLED)
                async with MqttBus("worker.default.w", plane.settings(b.port)) as second:
                    made = await connections(a, b)
                    assert max(made) <= 8, f"they chase each other: {made} connections in {COUNTED:g} s"
                    assert (first.connected, second.connected) == (True, False), "the one that was there stays"
                    assert "another client uses the same client id" in [line["event"] for line in lines]
                    # it says so as soon as it has a connection again
                    await plane.until(lambda: letters, 60)
        assert "another client uses the same client id" in letters[0].reason
