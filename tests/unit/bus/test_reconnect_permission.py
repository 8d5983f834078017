"""A client that may not go by its id any more does not connect: it would take another's connection away."""

from __future__ import annotations

import asyncio

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.reconnect import LAST_BACKOFF
from halimede.errors import DisconnectedError
from tests.simulated import eventually
from tests.worlds import connected

pytestmark = pytest.mark.simulated


async def test_one_that_lost_its_connection_and_may_not_connect_leaves_the_id_to_another() -> None:
    broker, may = MemoryBroker(), True
    old = MemoryBus("gm", broker)
    old.obstacle = lambda: "" if may else "another one leads"
    async with connected(old):
        may = False
        async with connected(MemoryBus("gm", broker)) as new:
            await asyncio.sleep(60)
            assert (old.connected, new.connected, new.stats.connects) == (False, True, 1)
            with pytest.raises(DisconnectedError, match="another one leads"):
                await old.wait_connected(1)
        may = True
        await eventually(lambda: old.connected, 2 * LAST_BACKOFF)
