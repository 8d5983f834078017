"""The will of a connection long replaced comes late: its epoch tells, and the node stays online."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from halimede import topics
from halimede.messages import Presence
from tests.faults.control import CONVERGES, Control
from tests.faults.test_fault_11_stale_retained import kept
from tests.proxy import Proxy

TOPIC = topics.PRESENCE.at(node="edge0")


async def stays_online(plane: Control, epoch: int) -> None:
    """Insist that GM takes the node for present, and that the broker says so to whoever comes new."""

    async def settled() -> bool:
        node = await plane.node()
        last = msgspec.json.decode(await kept(plane, TOPIC.text), type=Presence)
        return (node.online, node.epoch) == (True, epoch) and (last.online, last.epoch) == (True, epoch)

    await plane.until(settled, CONVERGES)
    await asyncio.sleep(1)
    assert await settled()


@pytest.mark.slow
async def test_fault_22_the_broker_fires_the_old_will_when_the_node_is_back_before_it_was_missed(
    plane: Control,
) -> None:
    async with plane.gm(), Proxy(plane.broker.port) as proxy, plane.lc(plane.settings(proxy.port)) as lc:
        await plane.start_services("helmet")
        before, first = plane.workers(), plane.presences[-1]

        # the broker goes on holding the old connection for a good one: nothing of its end gets through
        proxy.strand()
        lc.renew()
        await plane.until(lambda: lc.stats.connects == 2)
        await plane.until(lambda: plane.presences[-1].online and plane.presences[-1].epoch > first.epoch)
        assert any((p.epoch, p.online) == (first.epoch, False) for p in plane.presences), "the old will was not fired"
        await stays_online(plane, plane.presences[-1].epoch)
        await plane.running("helmet")
        assert plane.workers() == before
