"""Two clients with one client id: it is noticed, said where operators look, and they do not chase each other."""

from __future__ import annotations

import asyncio

import pytest

from halimede.bus.reconnect import PAUSE, PROVEN_MULTIPLE
from tests.faults.control import Child, Control
from tests.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds: until the first of two is settled, and for how long connections are counted
SETTLED, COUNTED = 6.0, 20.0


async def keep_calm(most: int, *proxies: Proxy) -> None:
    """Insist that clients make no more connections than that by each proxy in the next seconds."""
    before = [proxy.accepted for proxy in proxies]
    await asyncio.sleep(COUNTED)
    connections = [proxy.accepted - count for proxy, count in zip(proxies, before, strict=True)]
    assert max(connections) <= most, f"they chase each other: {connections} connections in {COUNTED:g} s"


async def alarmed(plane: Control, first: Child, second: Child) -> None:
    async def event() -> bool:
        found = await plane.events("DuplicateNode", "node/edge0")
        return bool(found) and found[0].type == "Warning" and "--node" in found[0].message

    await plane.until(event)
    for child in (first, second):
        await plane.until(lambda child=child: child.says("node name used twice"))


async def test_fault_23_a_second_lc_of_a_node_gives_way_and_gm_raises_an_event(plane: Control) -> None:
    async with plane.gm(), Proxy(plane.broker.port) as a, Proxy(plane.broker.port) as b:
        first = plane.lc_process(port=a.port)
        await plane.start_services("helmet")
        await asyncio.sleep(SETTLED)
        before = plane.workers()

        second = plane.lc_process(home=plane.folder / "other", port=b.port)
        await plane.until(lambda: b.accepted)
        await keep_calm(4, a, b)
        await alarmed(plane, first, second)
        # the one that was there goes on with what it runs; the other has started nothing of its own
        assert plane.workers() == before
        await plane.until(lambda: plane.phase("helmet") == "Running")
        assert (await plane.node()).online

        # once the first one is gone the second takes the node over by itself
        assert await first.stop() == 0
        await plane.until(lambda: not plane.workers() or plane.workers() != before)
        await plane.running("helmet", within_s=PROVEN_MULTIPLE * PAUSE[1])
        assert (await plane.node()).online


async def test_fault_23_of_two_that_come_at_once_one_stays(plane: Control) -> None:
    async with plane.gm(), Proxy(plane.broker.port) as a, Proxy(plane.broker.port) as b:
        first = plane.lc_process(port=a.port)
        second = plane.lc_process(home=plane.folder / "other", port=b.port)
        await plane.until(lambda: a.accepted and b.accepted)
        await keep_calm(5, a, b)
        await alarmed(plane, first, second)
