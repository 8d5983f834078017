"""kill -9 of the broker, which comes back empty: all reconnect and resync, and no deleted task revives."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.control import Control
from tests.proxy import Proxy


async def restart(plane: Control) -> None:
    await plane.broker.kill()
    plane.statuses.clear()  # what the new broker does not have, nobody shall see
    await plane.broker.start()


@pytest.mark.slow
async def test_fault_01_an_empty_broker_is_filled_again_and_a_delete_in_the_gap_holds(plane: Control) -> None:
    async with Proxy(plane.broker.port) as proxy:
        plane.gm_process()
        lc = plane.lc_process(port=proxy.port)
        await plane.start_services("kept", "edited", "doomed")
        before = plane.workers("kept")

        # GM takes an edit and a delete that the node cannot hear, and then the broker dies with them
        proxy.freeze()
        await plane.apply(plane.service("edited", "--new"))
        await plane.delete("doomed")
        await plane.broker.kill()
        proxy.heal()
        await asyncio.sleep(1)
        assert plane.workers("doomed"), "nobody could tell the node yet"
        await restart(plane)

        async with plane.converging():
            await plane.running("kept")
            await plane.running("edited", generation=2)
            await plane.gone("doomed")
        assert plane.workers("kept") == before
        assert (await plane.node()).online

        # neither another empty broker nor a node that starts anew brings it back
        await restart(plane)
        lc.kill()
        plane.lc_process(port=proxy.port)
        await plane.running("kept", "edited")
        for _ in range(20):
            assert not plane.workers("doomed")
            await asyncio.sleep(0.1)
        assert "doomed" not in plane.statuses
        assert plane.workers("kept") == before


@pytest.mark.slow
async def test_fault_01_five_kills_in_a_row_leave_nothing_behind(plane: Control) -> None:
    async with plane.gm(), plane.lc():
        await plane.start_services("kept", "edited", "doomed")
        before = plane.workers("kept")
        await plane.delete("doomed")
        for _ in range(5):
            await restart(plane)
            await asyncio.sleep(0.3)
        async with plane.converging():
            await plane.running("kept", "edited")
            await plane.gone("doomed")
        assert plane.workers("kept") == before
