"""What an old epoch left behind, retained or late, is rejected: GM's presence and its orders, and a node's presence."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.messages import Delete, GmPresence, Presence
from tests.faults.control import Control
from tests.integration.gm_world import SERVICES
from tests.waiting import patience

NAMES = {"node": "edge0", "ns": "default", "plural": SERVICES}


async def kept(plane: Control, topic: str) -> bytes:
    """What the broker keeps on a topic, as a client sees it that has just come."""
    packets: list[Packet] = []

    async def look(packet: Packet) -> None:
        packets.append(packet)

    async with MqttBus("looks", plane.settings()) as bus:
        await bus.wait_connected(patience(10))
        await bus.listen(topic, 1, look, 10)
        await asyncio.sleep(0.3)
    return packets[0].payload if packets else b""


async def delete(plane: Control, uid: str, generation: int, epoch: int) -> None:
    """Order the node to delete the service, in the name of a GM of this epoch."""
    to, order = topics.DELETE.at(**NAMES, name="helmet"), Delete(uid=uid, generation=generation)
    await plane.operator.publish(to, order, properties={"epoch": str(epoch)})


@pytest.mark.slow
async def test_fault_11_an_old_gms_presence_and_orders_are_rejected(plane: Control) -> None:
    async with plane.lc():
        async with plane.gm():
            await plane.start_services("helmet")
        async with plane.gm():
            await plane.running("helmet")
            before = plane.workers()
            epoch = await plane.epoch()
            old = GmPresence(epoch=epoch - 1, online=True, store="0000000000000000")
            await plane.operator.publish(topics.GM_PRESENCE.at(), old)
            await delete(plane, (await plane.stored("helmet"))["metadata"]["uid"], 9, epoch - 1)
            insert, body = topics.INSERT.at(**NAMES, name="ghost"), plane.service("ghost")
            body["metadata"] |= {"namespace": "default", "uid": "u-ghost", "generation": 9}
            await plane.operator.publish(insert, body, properties={"epoch": str(epoch - 1)})
            await asyncio.sleep(2)
            assert plane.workers() == before

            # the same orders under the present epoch are followed: it was the epoch that they were rejected for
            await plane.operator.publish(insert, body, properties={"epoch": str(epoch)})
            await plane.until(lambda: plane.workers("ghost"))


@pytest.mark.slow
async def test_fault_11_a_node_that_comes_to_an_old_gms_retained_presence_waits_for_the_new_one(plane: Control) -> None:
    async with plane.gm(), plane.lc(killed=True):
        await plane.start_services("helmet")
    before = plane.workers()
    presence = msgspec.json.decode(await kept(plane, "sedna/gm/presence"), type=GmPresence)
    assert not presence.online
    old = msgspec.structs.replace(presence, epoch=presence.epoch - 1, online=True)
    await plane.operator.publish(topics.GM_PRESENCE.at(), old)

    async with plane.lc():
        await delete(plane, "a delete of that old GM", 1, old.epoch)
        await asyncio.sleep(1)
        assert plane.workers() == before
        async with plane.gm():
            await plane.apply(plane.service("another"))
            await plane.running("helmet", "another")
            assert plane.workers("helmet") == before


async def test_fault_11_an_old_presence_of_a_node_neither_takes_it_away_nor_stays(plane: Control) -> None:
    async with plane.gm(), plane.lc(), plane.lc(node="edge1"):
        await plane.until(lambda: len([p for p in plane.presences if p.online]) >= 2)
        birth = next(p for p in plane.presences if p.online and p.node == "edge0")
        topic = topics.PRESENCE.at(node="edge0")

        async def is_repeated() -> bool:
            payload = await kept(plane, topic.text)
            return bool(payload) and msgspec.json.decode(payload, type=Presence) == birth

        for stale in (
            msgspec.structs.replace(birth, epoch=birth.epoch - 1, online=False),
            msgspec.structs.replace(birth, epoch=birth.epoch - 1, labels={"old": "label"}),
        ):
            await plane.operator.publish(topic, stale)
            await plane.until(is_repeated)
            node = await plane.node()
            assert (node.online, node.labels) == (True, {})
        assert await plane.events("NodeOffline", "edge0") == []
