"""Attack 24: an epoch of 2**48, in a node's name or in GM's. Nobody follows it, so the real GM is followed on."""

from __future__ import annotations

import pytest

from halimede import topics
from halimede.bus.ordering import SequenceNumber
from halimede.messages import Presence, Sync
from tests.faults.control import Control

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ABSURD = 2**48


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
