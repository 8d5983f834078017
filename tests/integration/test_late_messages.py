"""Messages that come late, twice or not at all: each of these was found by the model in ``tests/stateful``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from halimede.bus.ordering import SequenceNumber
from halimede.cli.client import Client
from halimede.messages import ApiReply, Delete, Held, Sync
from halimede.names import Key
from tests.integration import lc_world
from tests.integration.gm_world import MODELS, SERVICES, World, model, service, world
from tests.simulated import eventually
from tests.stateful.parts import Broker
from tests.waiting import patience

pytestmark = pytest.mark.simulated

HELMET = Key(SERVICES, "default", "helmet")
SMALL_ON_EDGE = {"node": "edge0", "ns": "default", "plural": MODELS, "name": "small"}


async def _gone(w: World, plural: str, name: str) -> bool:
    return (await w.ask("get", plural=plural, name=name)).error is not None


async def test_what_was_deleted_while_its_node_was_away_is_never_sent_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        edge.bus.cut()
        await w.apply(model("small"), model("big"), service())
        await w.reaches("Pending")
        await w.ask("delete", plural=SERVICES, name="helmet")
        await eventually(lambda: _gone(w, SERVICES, "helmet"))
        edge.bus.heal()
        await eventually(lambda: edge.sent("synced"))
        edge.report(HELMET)  # it holds nothing of that name: GM need not mend that
        await asyncio.sleep(60)
        assert [entry for entry in edge.log if entry[:2] == ("insert", "jointinferenceservices/helmet")] == []


async def test_a_deletion_ends_when_the_node_that_it_waits_for_says_it_holds_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        edge.deaf = 1_000_000
        await w.apply(model("small"), model("big"), service())
        await asyncio.sleep(2)
        await w.ask("delete", plural=MODELS, name="small")
        await asyncio.sleep(2)
        edge.sync()
        await eventually(lambda: _gone(w, MODELS, "small"))


async def test_an_insert_of_a_deleted_uid_that_comes_late_is_taken_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0") as edge:
        late = model("small")
        late["metadata"] |= {"namespace": "default", "uid": "gone", "generation": 1}
        cluster._database.lost = False  # this store knows all that ever was
        address = topics.INSERT.at(**SMALL_ON_EDGE)
        await w.operator.publish(address, late, properties=SequenceNumber(cluster.epoch, 1).properties)
        await eventually(lambda: edge.sent("insert"))
        await eventually(lambda: edge.sent("delete") and not edge.holds)


async def test_a_status_on_its_way_does_not_come_after_its_removal(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await w.apply(model("small"))
        await w.reaches("Unused", name="small", plural=MODELS)
        slow, send = asyncio.Event(), w.bus.send

        async def send_slowly(packet: Packet, timeout_s: float = 10.0) -> int:
            if packet.topic.startswith("default/sedna/status/") and packet.payload:
                await slow.wait()
            return await send(packet, timeout_s)

        w.bus.send = send_slowly  # type: ignore[method-assign]
        await w.apply(model("small", labels=["a"]))
        await asyncio.sleep(2)
        await w.ask("delete", plural=MODELS, name="small")
        await asyncio.sleep(0.5)
        slow.set()
        await eventually(lambda: _gone(w, MODELS, "small"))
        assert w.status("small", MODELS) is None


async def test_a_sync_that_was_overtaken_by_a_later_one_is_ignored(w: World) -> None:
    uid, generation, _ = w.edge.holds[HELMET]
    held = Held(plural=SERVICES, namespace="default", name="helmet", uid=uid, generation=generation)
    address = topics.SYNC.at(node="edge0")

    async def sync(number: int, holds: list[Held]) -> None:
        stamp = SequenceNumber(w.edge.epoch, number)
        await w.edge.bus.publish(address, Sync(epoch=w.edge.epoch, holds=holds), properties=stamp.properties)

    w.edge.holds.clear()
    await sync(2, [])
    w.edge.deaf = 1  # what GM sends of the service's first Model is lost
    await sync(1, [held])
    await eventually(lambda: HELMET in w.edge.holds, 20)


async def test_an_older_insert_does_not_bury_what_has_taken_its_place(tmp_path: Path) -> None:
    async with lc_world.world(tmp_path) as node:

        async def tell(number: int, body: dict[str, Any]) -> None:
            address = topics.INSERT.at(**SMALL_ON_EDGE)
            await node.gm.bus.publish(address, body, properties=SequenceNumber(1, number).properties)
            await asyncio.sleep(1)

        await tell(2, lc_world.model(uid="new"))
        await tell(1, lc_world.model(uid="old"))
        await tell(3, lc_world.model(uid="new"))
        node.bus.cut()
        node.bus.heal()
        await eventually(lambda: node.gm.syncs and node.gm.held() == {("small", "new", 1)})


async def test_an_older_message_is_known_as_such_after_a_restart_too(tmp_path: Path) -> None:
    node = lc_world.World(tmp_path)
    address = topics.DELETE.at(**SMALL_ON_EDGE)
    async with node.gm.running():
        async with node.lc(killed=True):
            insert = topics.INSERT.at(**SMALL_ON_EDGE)
            await node.gm.bus.publish(insert, lc_world.model(), properties=SequenceNumber(1, 5).properties)
            await node.gm.reaches(lc_world.SMALL, "Ready")
        async with node.lc():
            old = Delete(uid="uid-small", generation=0)
            await node.gm.bus.publish(address, old, properties=SequenceNumber(1, 4).properties)
            await asyncio.sleep(2)
            assert lc_world.SMALL in node.gm.statuses
            await node.gm.bus.publish(address, old, properties=SequenceNumber(1, 6).properties)
            await node.gm.forgotten(lc_world.SMALL)


async def test_what_was_dropped_while_a_sync_was_under_way_is_said_again(tmp_path: Path) -> None:
    async with lc_world.world(tmp_path, inserted=True) as node:
        await node.gm.synced()
        await asyncio.sleep(1)
        before = len(node.gm.syncs)
        node.bus.cut()
        node.bus.heal()
        await eventually(lambda: len(node.gm.syncs) > before)
        await asyncio.sleep(1)
        before = len(node.gm.syncs)
        await node.gm.delete(lc_world.SMALL, "uid-small")
        await node.gm.synced()
        await eventually(lambda: len(node.gm.syncs) > before, 3)
        assert "small" not in {name for name, _, _ in node.gm.held()}


async def test_a_request_that_a_client_repeats_can_be_told_from_a_new_one() -> None:
    broker, asked = Broker(0), []

    def cut(packet: Packet) -> None:
        if packet.topic.startswith("sedna/api/request/") and not asked:
            client.bus._link.abort("before the broker's word is there")  # type: ignore[attr-defined]

    async def answer(delivery: Any) -> None:
        asked.append(delivery.packet.correlation)
        if len(asked) > 1:
            await gm.reply(delivery, topics.API_REPLY, ApiReply(outcome="deleted"))

    broker.heard = cut
    client = Client(MemoryBus("operator", broker))
    async with MemoryBus("gm", broker) as gm:
        await gm.wait_connected(patience(10))
        await gm.subscribe(topics.API_REQUEST.filter(), answer)
        async with client:
            await client.delete(MODELS, "small")
            await client.delete(MODELS, "small")
    assert asked[0] == asked[1] != asked[2]


async def test_a_node_asks_again_for_a_model_that_gm_thinks_it_has(tmp_path: Path) -> None:
    async with lc_world.world(tmp_path) as node:

        async def answered(seconds: float) -> int:
            """Let time pass with a GM that answers each sync; return how many there were."""
            before = len(node.gm.syncs)
            for _ in range(int(seconds)):
                await node.gm.synced()
                await asyncio.sleep(1)
            return len(node.gm.syncs) - before

        await answered(30)
        assert await answered(60) == 0
        await node.gm.insert(lc_world.service())  # and never its Model
        assert await answered(15) == 1
        assert 3 <= await answered(585) <= 8  # less and less often
        await node.gm.insert(lc_world.model())
        await eventually(lambda: node.launcher.alive)
        await answered(2)
        assert await answered(100) <= 1  # the one of every five minutes
