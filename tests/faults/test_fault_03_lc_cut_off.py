"""An LC is cut off from its broker: its tasks keep running, and what was said meanwhile is made good on heal."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.control import Control
from tests.proxy import Proxy

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["cut", "freeze"])
async def test_fault_03_tasks_keep_running_and_edits_and_deletes_reconcile_on_heal(plane: Control, how: str) -> None:
    async with (
        plane.gm(),
        Proxy(plane.broker.port) as proxy,
        plane.lc(plane.settings(proxy.port, keepalive_s=2)) as bus,
    ):
        await plane.start_services("kept", "edited", "doomed")
        before = plane.workers()

        getattr(proxy, how)()
        await plane.until(lambda: not bus.connected)
        await plane.until(lambda: plane.phase("kept") != "Running")
        assert not (await plane.node()).online
        await plane.apply(plane.service("edited", "--new"), plane.service("added"))
        await plane.delete("doomed")
        await asyncio.sleep(3)
        assert plane.workers() == before, "with nobody to tell it otherwise, the node goes on"

        proxy.heal()
        async with plane.converging():
            await plane.running("kept", "added")
            await plane.running("edited", generation=2)
            await plane.gone("doomed")
        assert plane.workers("kept").items() <= before.items()
        assert not plane.workers("edited").items() & before.items()

        async def is_online() -> bool:
            return (await plane.node()).online

        await plane.until(is_online)  # on a busy machine its keepalive of 2 s may end a connection again
