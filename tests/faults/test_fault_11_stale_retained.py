"""What an old epoch left behind, retained or late, is rejected: GM's presence and its orders, and a node's presence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.messages import Delete, GmPresence, Presence
from tests.faults.control import SERVICES, Control, control
from tests.waiting import patience

NAMES = {"node": "edge0", "ns": "default", "plural": SERVICES}


async def kept(plane: Control, topic: str) -> bytes:
    """What the broker keeps on a topic, as a client sees it that has just come."""
    seen: list[bytes] = []

    async def look(packet: Packet) -> None:
        seen.append(packet.payload)

    async with MqttBus("looks", plane.settings()) as bus:
        await bus.wait_connected(patience(10))
        await bus.listen(topic, 1, look, 10)
        await asyncio.sleep(0.3)
    return seen[0] if seen else b""


@pytest.mark.slow
async def test_fault_11_an_old_gms_presence_and_orders_are_rejected(tmp_path: Path) -> None:
    async with control(tmp_path) as plane, plane.lc():
        async with plane.gm():
            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
        async with plane.gm():
            await plane.running("helmet")
            before = plane.workers()
            epoch = (await plane.ask("version")).value["epoch"]
            uid = (await plane.ask("get", plural=SERVICES, namespace="default", name="helmet")).object["metadata"][
                "uid"
            ]

            old = GmPresence(epoch=epoch - 1, online=True, store="0000000000000000")
            await plane.operator.publish(topics.GM_PRESENCE.at(), old)
            stale = {"epoch": str(epoch - 1)}
            await plane.operator.publish(
                topics.DELETE.at(**NAMES, name="helmet"), Delete(uid=uid, generation=9), properties=stale
            )
            body = plane.service("ghost")
            body["metadata"] |= {"namespace": "default", "uid": "u-ghost", "generation": 9}
            await plane.operator.publish(topics.INSERT.at(**NAMES, name="ghost"), body, properties=stale)
            await asyncio.sleep(2)
            assert plane.workers() == before

            # the same orders under the present epoch are followed: it was the epoch that they were rejected for
            await plane.operator.publish(
                topics.INSERT.at(**NAMES, name="ghost"), body, properties={"epoch": str(epoch)}
            )
            await plane.until(lambda: plane.workers("ghost"))


@pytest.mark.slow
async def test_fault_11_a_node_that_comes_to_an_old_gms_retained_presence_waits_for_the_new_one(tmp_path: Path) -> None:
    async with control(tmp_path) as plane:
        async with plane.gm(), plane.lc(killed=True):
            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
        before = plane.workers()
        presence = msgspec.json.decode(await kept(plane, "sedna/gm/presence"), type=GmPresence)
        assert not presence.online
        old = msgspec.structs.replace(presence, epoch=presence.epoch - 1, online=True)
        await plane.operator.publish(topics.GM_PRESENCE.at(), old)

        async with plane.lc():
            uid = "a delete of that old GM"
            await plane.operator.publish(
                topics.DELETE.at(**NAMES, name="helmet"), Delete(uid=uid, generation=1),
                properties={"epoch": str(old.epoch)},
            )  # fmt: skip
            await asyncio.sleep(1)
            assert plane.workers() == before
            async with plane.gm():
                await plane.apply(plane.service("another"))
                await plane.running("helmet", "another")
                assert plane.workers("helmet") == before


async def test_fault_11_an_old_presence_of_a_node_neither_takes_it_away_nor_stays(tmp_path: Path) -> None:
    async with control(tmp_path) as plane, plane.gm(), plane.lc(), plane.lc(node="edge1"):
        await plane.until(lambda: len([p for p in plane.presences if p.online]) >= 2)
        birth = next(p for p in plane.presences if p.online and p.node == "edge0")
        topic = topics.PRESENCE.at(node="edge0")
        for stale in (
            msgspec.structs.replace(birth, epoch=birth.epoch - 1, online=False),
            msgspec.structs.replace(birth, epoch=birth.epoch - 1, labels={"old": "label"}),
        ):
            await plane.operator.publish(topic, stale)
            await asyncio.sleep(1)
            node = await plane.node()
            assert (node.online, node.labels) == (True, {})
            assert msgspec.json.decode(await kept(plane, topic.text), type=Presence) == birth
        assert await plane.events("NodeOffline", "edge0") == []
