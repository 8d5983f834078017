"""Attack 24: an epoch of 2**48, in a node's name or in GM's. Nobody follows it, so the real GM is followed on."""

from __future__ import annotations

import shutil
import time

import pytest

from halimede import topics
from halimede.bus.ordering import SequenceNumber
from halimede.messages import Delete, GmPresence, Presence, Sync, Synced
from tests.faults.control import Control

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ABSURD = 2**48
#: a clock that is years ahead is still one
YEARS_AHEAD = 9 * 365 * 86_400


async def test_attack_24_a_node_that_claims_such_an_epoch_is_not_believed(plane: Control) -> None:
    async with plane.gm(), plane.lc():
        await plane.start_services("helmet")
        epoch, node = await plane.epoch(), await plane.node()
        stamp = SequenceNumber(ABSURD, 1).properties
        for claimed in (Sync(epoch=node.epoch, gm_epoch=ABSURD), Sync(epoch=ABSURD, gm_epoch=epoch)):
            await plane.operator.publish(topics.SYNC.at(node="edge0"), claimed, properties=stamp)
            await plane.operator.publish(topics.SYNC.at(node="edge0"), claimed)
        presence = Presence(node="edge0", epoch=ABSURD, online=False)
        await plane.operator.publish(topics.PRESENCE.at(node="edge0"), presence)
        await plane.until(lambda: plane.events("DeadLetter"))
        letters = [event.message for event in await plane.events("DeadLetter")]
        assert any("no clock explains it" in letter for letter in letters)
        assert await plane.epoch() == epoch
        assert (await plane.node()).epoch < ABSURD
        assert not await plane.events("EpochRaised")
        await plane.status_is_well()


async def test_attack_24_a_node_does_not_follow_such_a_manager(plane: Control) -> None:
    lc = plane.lc_process()
    gm = plane.gm_process()
    await plane.start_services("helmet")
    stamp = SequenceNumber(ABSURD, 1).properties
    at = {"node": "edge0", "ns": "default", "plural": "models", "name": "small"}
    await plane.operator.publish(topics.GM_PRESENCE.at(), GmPresence(epoch=ABSURD, online=True, store="0" * 16))
    await plane.operator.publish(topics.DELETE.at(**at), Delete(uid="u", generation=1), properties=stamp)
    synced = Synced(epoch=ABSURD, count=0)
    await plane.operator.publish(topics.SYNCED.at(node="edge0"), synced, properties=stamp)
    await plane.until(lambda: lc.says("no clock explains it"))
    # the real one is followed on, and so is one whose store is gone
    await plane.apply(plane.service("another"))
    await plane.running("another")
    assert await gm.stop() == 0
    shutil.rmtree(plane.home / "gm")
    plane.gm_process()
    await plane.start_services("helmet", "another", "third")
    assert await plane.epoch() < ABSURD


async def test_attack_24_a_clock_that_is_years_ahead_is_followed_back(plane: Control) -> None:
    """What a clock may explain, a GM without its store overtakes."""
    async with plane.lc(), plane.gm():
        ahead = int(time.time()) + YEARS_AHEAD
        presence = GmPresence(epoch=ahead, online=True, store="0" * 16)
        await plane.operator.publish(topics.GM_PRESENCE.at(), presence)
        await plane.until(lambda: plane.events("EpochRaised"))
        assert await plane.epoch() == ahead + 1
        await plane.start_services("helmet")
