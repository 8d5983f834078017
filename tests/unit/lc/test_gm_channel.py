"""The channel to GM: presence, syncs, epochs. In simulated time."""

from __future__ import annotations

import asyncio

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBus
from halimede.messages import GmPresence
from services.lc import gm_channel
from services.lc.gm_channel import MIN_PERIOD_S, PERIOD_S
from tests.integration.lc_world import HELMET, SMALL, FakeGm, World, model, service
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


async def answered(node: World) -> int:
    """Let GM answer the syncs of a node; return how many there were."""
    await eventually(lambda: node.gm.syncs)
    await asyncio.sleep(5)
    await node.gm.synced()
    await asyncio.sleep(1)
    return len(node.gm.syncs)


async def test_birth_sync_and_will_carry_one_epoch_and_the_next_connection_a_higher_one(node: World) -> None:
    await eventually(lambda: node.gm.presences)
    first = node.gm.presences[-1]
    assert (await eventually(lambda: node.gm.syncs))[-1].epoch == first.epoch
    assert (first.node, first.online, first.cpus > 0, first.memory_bytes > 0) == ("edge0", True, True, True)
    node.bus.cut()
    await eventually(lambda: not node.gm.presences[-1].online)
    assert node.gm.presences[-1].epoch == first.epoch
    node.bus.heal()
    await eventually(lambda: node.gm.presences[-1].online)
    assert node.gm.presences[-1].epoch > first.epoch


async def test_an_answered_node_syncs_every_five_minutes(node: World) -> None:
    before = await answered(node)
    await asyncio.sleep(PERIOD_S - 20)
    assert len(node.gm.syncs) == before
    await asyncio.sleep(32)
    assert len(node.gm.syncs) == before + 1


async def test_a_sync_without_answer_is_sent_again_with_back_off(node: World) -> None:
    await eventually(lambda: node.gm.syncs)
    await asyncio.sleep(1)
    before = len(node.gm.syncs)
    await asyncio.sleep(14)
    assert len(node.gm.syncs) == before + 1
    await asyncio.sleep(600)
    assert before + 4 <= len(node.gm.syncs) <= before + 8


async def test_a_new_gm_is_told_what_the_node_holds_and_how_it_stands(working_node: World) -> None:
    new = FakeGm(MemoryBus("gm-2", working_node.broker), epoch=2)
    async with new.running():
        await eventually(lambda: new.syncs)
        assert new.held() == {("small", "uid-small", 1), ("helmet", "u1", 1)}
        await eventually(lambda: new.reports[HELMET] >= 2 and new.reports[SMALL] >= 2)


async def test_a_gm_that_comes_back_is_told_too(node: World) -> None:
    before = await answered(node)
    node.gm.bus.cut()  # type: ignore[attr-defined]
    await asyncio.sleep(2)
    node.gm.bus.heal()  # type: ignore[attr-defined]
    await eventually(lambda: len(node.gm.syncs) > before, 20)


async def test_each_connection_of_gm_gets_one_sync_and_its_repeated_birth_none(node: World) -> None:
    before = await answered(node)
    for connection in (2, 3):
        for _ in range(2):
            await birth(node, connection=connection)
            await asyncio.sleep(3)
        await node.gm.synced()
    assert len(node.gm.syncs) - before == 2


async def test_a_node_that_connects_again_syncs_once_and_at_once(node: World) -> None:
    """GM's retained birth comes before the connection is usable, and GM repeats that birth later."""
    await eventually(lambda: node.gm.syncs)
    await asyncio.sleep(20)
    node.bus.cut()
    await asyncio.sleep(1)
    before = len(node.gm.syncs)
    await birth(node, connection=2)
    node.bus.heal()
    await eventually(lambda: node.bus.connected)
    await asyncio.sleep(MIN_PERIOD_S / 2)
    assert len(node.gm.syncs) == before + 1
    await node.gm.synced()
    await asyncio.sleep(2)
    await birth(node, connection=2)
    await asyncio.sleep(5)
    assert len(node.gm.syncs) == before + 1


async def test_a_new_gm_gets_a_sync_also_if_another_message_of_it_comes_before_its_birth(node: World) -> None:
    await birth(node, connection=1)
    before = await answered(node)
    await node.gm.insert(model(), epoch=2)
    await birth(node, online=False)
    await birth(node, epoch=2, connection=1)
    await eventually(lambda: len(node.gm.syncs) > before, 5)


async def birth(node: World, epoch: int = 1, *, online: bool = True, **fields: int) -> None:
    """Publish that GM is there, or not."""
    await node.gm.bus.publish(topics.GM_PRESENCE.at(), GmPresence(epoch=epoch, online=online, **fields))


async def test_an_older_gm_is_not_followed_even_by_a_controller_that_was_restarted(stopped_node: World) -> None:
    async with stopped_node.lc():
        await stopped_node.gm.insert(model(), epoch=5)
        await stopped_node.gm.reaches(SMALL, "Ready")
    async with stopped_node.lc():
        await stopped_node.gm.insert(service(), epoch=4)
        await stopped_node.gm.delete(SMALL, "uid-small", epoch=4)
        await stopped_node.gm.insert(service("newer", uid="u2"), epoch=5)
        await eventually(lambda: len(stopped_node.gm.statuses) == 2)
        await stopped_node.connect_again()
        assert stopped_node.gm.held() == {("small", "uid-small", 1), ("newer", "u2", 1)}


async def test_an_epoch_that_no_clock_explains_is_not_followed(node: World) -> None:
    await node.gm.insert(service("absurd", uid="u9"), epoch=2**48)
    await node.gm.insert(model(), epoch=5)
    await node.gm.reaches(SMALL, "Ready")
    await birth(node, epoch=2**48)
    await node.gm.insert(service(), epoch=5)
    await eventually(lambda: len(node.gm.statuses) == 2)
    await node.connect_again()
    assert (node.gm.held(), node.gm.syncs[-1].gm_epoch) == ({("small", "uid-small", 1), ("helmet", "u1", 1)}, 5)


async def test_a_store_in_trouble_is_named_in_the_presence_until_it_is_well(working_node: World) -> None:
    await asyncio.sleep(30)
    assert {presence.trouble for presence in working_node.gm.presences} == {""}
    store = working_node.config.folders.store
    for part in store.parent.glob(f"{store.name}*"):
        part.unlink()
    await eventually(lambda: "corrupt-1" in working_node.gm.presences[-1].trouble, 10)
    assert working_node.gm.presences[-1].epoch == working_node.gm.presences[0].epoch
    store.with_name(f"{store.name}.corrupt-1").unlink()
    await eventually(lambda: working_node.gm.presences[-1].trouble == "", 10)


async def test_what_a_connection_is_refused_is_published_as_it_changes(node: World) -> None:
    await eventually(lambda: node.gm.presences)
    for refused in ({"halimede/blobs": "not authorised"}, {}):
        node.bus.refused = refused
        await eventually(lambda refused=refused: node.gm.presences[-1].refused == list(refused), 20)  # type: ignore[misc]
    assert node.gm.presences[-1].epoch == node.gm.presences[0].epoch
    await asyncio.sleep(20)  # the birth is published once more
    count = len(node.gm.presences)
    await asyncio.sleep(30)
    assert len(node.gm.presences) == count


async def test_what_was_deleted_while_the_node_was_away_is_removed_after_its_sync(working_node: World) -> None:
    working_node.bus.cut()
    await asyncio.sleep(10)
    assert len(working_node.launcher.alive) == 1
    before = len(working_node.gm.syncs)
    working_node.bus.heal()
    await eventually(lambda: len(working_node.gm.syncs) > before, 20)
    assert ("helmet", "u1", 1) in working_node.gm.held()
    await working_node.loses()
    assert working_node.launcher.alive == []


@pytest.mark.parametrize("turns", range(4))
async def test_a_stop_that_comes_with_a_wake_up_is_not_lost(turns: int) -> None:
    event = asyncio.Event()

    async def run() -> None:
        while True:
            event.clear()
            await gm_channel._is_set_within(event, 300)

    task = asyncio.create_task(run())
    await asyncio.sleep(1)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_a_birth_that_arrives_does_not_say_that_it_was_refused(node: World) -> None:
    topic = topics.PRESENCE.at(node="edge0").text
    node.bus.refused |= {topic: "not authorized", "halimede/v1/other": "not authorized"}
    await eventually(lambda: node.gm.presences[-1].refused, 10)  # the birth is published once more
    assert node.gm.presences[-1].refused == ["halimede/v1/other"]


async def test_after_both_stores_are_lost_a_deleted_service_stops_and_the_others_run_on(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        await stopped_node.gm.insert(model(), service(), service("other", uid="u2"))
        await eventually(lambda: len(stopped_node.launcher.alive) == 2)
    store = stopped_node.config.folders.store
    for part in store.parent.glob(f"{store.name}*"):
        part.write_bytes(b"a damaged store" * 1000)
    alive = list(stopped_node.launcher.alive)
    stopped_node.launcher.find = lambda _: [process for process in alive if process.alive]  # type: ignore[method-assign]
    before = len(stopped_node.gm.syncs)
    async with stopped_node.lc():
        await eventually(lambda: len(stopped_node.gm.syncs) > before)
        versions = {(held.name, held.generation) for held in stopped_node.gm.syncs[-1].holds}
        assert versions == {("helmet", 0), ("other", 0)}
        await stopped_node.gm.synced(unknown=2)
        await stopped_node.gm.delete(HELMET, "u1")
        await eventually(lambda: len(stopped_node.launcher.alive) == 1)
        await eventually(lambda: [held.name for held in stopped_node.gm.syncs[-1].holds] == ["other"])
        assert [process.record.worker.name for process in stopped_node.launcher.alive] == ["other-edge-edge0"]
