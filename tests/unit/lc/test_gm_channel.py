"""The channel to GM: presence, syncs, epochs. In simulated time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBus
from halimede.messages import GmPresence
from services.lc.gm_channel import MIN_PERIOD_S, PERIOD_S, _is_set_within
from tests.integration.lc_world import HELMET, SMALL, FakeGm, World, model, service, world
from tests.simulated import eventually, simulated


@simulated
async def test_birth_and_will_carry_one_epoch_and_the_next_connection_a_higher_one(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.presences)
        first = node.gm.presences[-1]
        assert (first.node, first.online) == ("edge0", True)
        assert first.cpus > 0
        assert first.memory_bytes > 0
        node.bus.cut()
        await eventually(lambda: not node.gm.presences[-1].online)
        assert node.gm.presences[-1].epoch == first.epoch
        node.bus.heal()
        await eventually(lambda: node.gm.presences[-1].online)
        assert node.gm.presences[-1].epoch > first.epoch


@simulated
async def test_a_sync_says_what_is_held_and_the_epoch_of_the_presence(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.syncs)
        assert node.gm.syncs[-1].holds == []
        assert node.gm.syncs[-1].epoch == node.gm.presences[-1].epoch


@simulated
async def test_an_answered_node_syncs_every_five_minutes(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.syncs)
        await asyncio.sleep(5)
        await node.gm.synced()
        before = len(node.gm.syncs)
        await asyncio.sleep(PERIOD_S - 20)
        assert len(node.gm.syncs) == before
        await asyncio.sleep(32)
        assert len(node.gm.syncs) == before + 1


@simulated
async def test_a_sync_without_answer_is_sent_again_with_back_off(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.syncs)
        await asyncio.sleep(1)
        before = len(node.gm.syncs)
        await asyncio.sleep(14)
        assert len(node.gm.syncs) == before + 1
        await asyncio.sleep(600)
        assert before + 4 <= len(node.gm.syncs) <= before + 8


@simulated
async def test_a_new_gm_is_told_what_the_node_holds_and_how_it_stands(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        new = FakeGm(MemoryBus("gm-2", node.broker), epoch=2)
        async with new.running():
            await eventually(lambda: new.syncs)
            assert new.held() == {("small", "uid-small", 1), ("helmet", "u1", 1)}
            await eventually(lambda: new.reports[HELMET] >= 2 and new.reports[SMALL] >= 2)


@simulated
async def test_a_gm_that_comes_back_is_told_too(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.syncs)
        await node.gm.synced()
        await asyncio.sleep(2)
        before = len(node.gm.syncs)
        node.gm.bus.cut()
        await asyncio.sleep(2)
        node.gm.bus.heal()
        await eventually(lambda: len(node.gm.syncs) > before, 20)


@simulated
async def test_each_connection_of_gm_gets_one_sync_and_its_repeated_birth_none(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.syncs)
        await asyncio.sleep(5)
        await node.gm.synced()
        before = len(node.gm.syncs)
        for connection in (2, 3):
            for _ in range(2):
                birth = GmPresence(epoch=1, online=True, connection=connection)
                await node.gm.bus.publish(topics.GM_PRESENCE.at(), birth)
                await asyncio.sleep(3)
            await node.gm.synced()
        assert len(node.gm.syncs) - before == 2


@simulated
async def test_a_node_that_connects_again_syncs_once_and_at_once(tmp_path: Path) -> None:
    """GM's retained birth comes before the connection is usable, and GM repeats that birth later."""
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.syncs)
        await asyncio.sleep(20)
        node.bus.cut()
        await asyncio.sleep(1)
        before = len(node.gm.syncs)
        birth = GmPresence(epoch=1, online=True, connection=2)
        await node.gm.bus.publish(topics.GM_PRESENCE.at(), birth)
        node.bus.heal()
        await eventually(lambda: node.bus.connected)
        await asyncio.sleep(MIN_PERIOD_S / 2)
        assert len(node.gm.syncs) == before + 1
        await node.gm.synced()
        await asyncio.sleep(2)
        await node.gm.bus.publish(topics.GM_PRESENCE.at(), birth)
        await asyncio.sleep(5)
        assert len(node.gm.syncs) == before + 1


@simulated
async def test_a_new_gm_gets_a_sync_also_if_another_message_of_it_comes_before_its_birth(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.bus.publish(topics.GM_PRESENCE.at(), GmPresence(epoch=1, online=True, connection=1))
        await asyncio.sleep(5)
        await node.gm.synced()
        await asyncio.sleep(1)
        before = len(node.gm.syncs)
        await node.gm.insert(model(), epoch=2)
        for presence in (GmPresence(epoch=1, online=False), GmPresence(epoch=2, online=True, connection=1)):
            await node.gm.bus.publish(topics.GM_PRESENCE.at(), presence)
        await eventually(lambda: len(node.gm.syncs) > before, 5)


@simulated
async def test_an_older_gm_is_not_followed_even_by_a_controller_that_was_restarted(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc():
            await node.gm.insert(model(), epoch=5)
            await node.gm.reaches(SMALL, "Ready")
        async with node.lc():
            await node.gm.insert(service(), epoch=4)
            await node.gm.delete(SMALL, "uid-small", epoch=4)
            await node.gm.insert(service("newer", uid="u2"), epoch=5)
            await eventually(lambda: len(node.gm.statuses) == 2)
            node.bus.cut()
            node.bus.heal()
            before = len(node.gm.syncs)
            await eventually(lambda: len(node.gm.syncs) > before)
            assert node.gm.held() == {("small", "uid-small", 1), ("newer", "u2", 1)}


@simulated
async def test_an_epoch_that_no_clock_explains_is_not_followed(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(service("absurd", uid="u9"), epoch=2**48)
        await node.gm.insert(model(), epoch=5)
        await node.gm.reaches(SMALL, "Ready")
        await node.gm.bus.publish(topics.GM_PRESENCE.at(), GmPresence(epoch=2**48, online=True))
        await node.gm.insert(service(), epoch=5)
        await eventually(lambda: len(node.gm.statuses) == 2)
        node.bus.cut()
        node.bus.heal()
        before = len(node.gm.syncs)
        await eventually(lambda: len(node.gm.syncs) > before)
        assert node.gm.held() == {("small", "uid-small", 1), ("helmet", "u1", 1)}
        assert node.gm.syncs[-1].gm_epoch == 5


@simulated
async def test_a_store_in_trouble_is_named_in_the_presence_until_it_is_well(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        await asyncio.sleep(30)
        assert {presence.trouble for presence in node.gm.presences} == {""}
        store = node.config.folders.store
        for part in store.parent.glob(f"{store.name}*"):
            part.unlink()
        await eventually(lambda: "corrupt-1" in node.gm.presences[-1].trouble, 10)
        assert node.gm.presences[-1].epoch == node.gm.presences[0].epoch
        store.with_name(f"{store.name}.corrupt-1").unlink()
        await eventually(lambda: node.gm.presences[-1].trouble == "", 10)


@simulated
async def test_what_a_connection_is_refused_is_published_as_it_changes(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await eventually(lambda: node.gm.presences)
        for refused in ({"halimede/blobs": "not authorised"}, {}):
            node.bus.refused = refused
            await eventually(lambda refused=refused: node.gm.presences[-1].refused == list(refused), 20)  # type: ignore[misc]
        assert node.gm.presences[-1].epoch == node.gm.presences[0].epoch
        await asyncio.sleep(20)  # the birth is published once more
        count = len(node.gm.presences)
        await asyncio.sleep(30)
        assert len(node.gm.presences) == count


@simulated
async def test_what_was_deleted_while_the_node_was_away_is_removed_after_its_sync(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        node.bus.cut()
        await asyncio.sleep(10)
        assert len(node.launcher.alive) == 1
        before = len(node.gm.syncs)
        node.bus.heal()
        await eventually(lambda: len(node.gm.syncs) > before, 20)
        assert ("helmet", "u1", 1) in node.gm.held()
        await node.gm.delete(HELMET, "u1")
        await node.gm.forgotten(HELMET)
        assert node.launcher.alive == []


@pytest.mark.parametrize("turns", range(4))
@simulated
async def test_a_stop_that_comes_with_a_wake_up_is_not_lost(turns: int) -> None:
    event = asyncio.Event()

    async def run() -> None:
        while True:
            event.clear()
            await _is_set_within(event, 300)

    task = asyncio.create_task(run())
    await asyncio.sleep(1)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


@simulated
async def test_a_birth_that_arrives_does_not_say_that_it_was_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        topic = topics.PRESENCE.at(node="edge0").text
        node.bus.refused |= {topic: "not authorized", "halimede/v1/other": "not authorized"}
        await eventually(lambda: node.gm.presences[-1].refused, 10)  # the birth is published once more
        assert node.gm.presences[-1].refused == ["halimede/v1/other"]


@simulated
async def test_after_both_stores_are_lost_a_deleted_service_stops_and_the_others_run_on(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc(killed=True):
            await node.gm.insert(model(), service(), service("other", uid="u2"))
            await eventually(lambda: len(node.launcher.alive) == 2)
        store = node.config.folders.store
        for part in store.parent.glob(f"{store.name}*"):
            part.write_bytes(b"a damaged store" * 1000)
        alive = list(node.launcher.alive)
        node.launcher.find = lambda _: [process for process in alive if process.alive]  # type: ignore[method-assign]
        before = len(node.gm.syncs)
        async with node.lc():
            await eventually(lambda: len(node.gm.syncs) > before)
            assert {(held.name, held.generation) for held in node.gm.syncs[-1].holds} == {("helmet", 0), ("other", 0)}
            await node.gm.synced(unknown=2)
            await node.gm.delete(HELMET, "u1")
            await eventually(lambda: len(node.launcher.alive) == 1)
            await eventually(lambda: [held.name for held in node.gm.syncs[-1].holds] == ["other"])
            assert [process.record.worker.name for process in node.launcher.alive] == ["other-edge-edge0"]
