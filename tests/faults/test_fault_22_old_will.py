"""The will of a connection long replaced comes late: its epoch tells, and the node stays online."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from halimede import codec, topics
from halimede.bus import Announcement, Packet
from halimede.bus.mqtt import MqttBus
from halimede.messages import Presence
from tests.faults.control import CONVERGES, PATIENCE, Control
from tests.faults.test_fault_11_stale_retained import kept
from tests.proxy import Proxy
from tests.waiting import patience

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


@pytest.mark.slow
async def test_fault_22_an_old_will_that_comes_after_the_new_birth_changes_nothing(plane: Control) -> None:
    """As of a cluster of brokers, one of which finds out late that the old connection is gone."""
    async with plane.gm(), plane.lc() as lc:
        await plane.start_services("helmet")
        first = plane.presences[-1]
        old_will = msgspec.structs.replace(first, online=False, labels={})
        packet = Packet(TOPIC.text, codec.encode(topics.PRESENCE, old_will), retain=True)
        async with Proxy(plane.broker.port) as proxy:
            holds_it = MqttBus("other-broker", plane.settings(proxy.port), lambda: Announcement(will=packet))
            async with holds_it:
                await holds_it.wait_connected(patience(PATIENCE))
                lc.renew()
                await plane.until(lambda: plane.presences[-1].online and plane.presences[-1].epoch > first.epoch)
                epoch = plane.presences[-1].epoch
                count = len(plane.presences)
                offline = len(await plane.events("NodeOffline", "edge0"))
                proxy.cut()
                await plane.until(lambda: any(not p.online for p in plane.presences[count:]))
                await stays_online(plane, epoch)
        assert len(await plane.events("NodeOffline", "edge0")) == offline
        await plane.running("helmet")
