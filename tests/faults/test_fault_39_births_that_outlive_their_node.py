"""Broker and node end together, and the broker has its retained messages on a disk: the node is shown as offline."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.broker_with_disk import BrokerWithDisk
from tests.faults.control import Control
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds in which a node confirms that it is online, and in which GM is connected again after the broker's restart
NAMED_S = 15.0 + 15.0


async def test_fault_39_a_node_that_ended_with_the_broker_is_offline(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BrokerWithDisk(tmp_path / "broker", port=free_port()))
        plane = await stack.enter_async_context(Control(tmp_path, broker, stack))
        plane.gm_process()
        dead = plane.lc_process()
        plane.lc_process("edge1", home=tmp_path / "home1")
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet")
        await plane.status_is_well()
        await eventually(lambda: b"node/edge1" in (tmp_path / "broker" / "mosquitto.db").read_bytes(), patience(30))
        await broker.kill()
        dead.kill()
        await broker.restart()
        shown = ""

        async def named() -> bool:
            nonlocal shown
            ended = await plane.halimede("status")
            shown = ended.stdout
            return ended.returncode == 1 and "node/edge0: it is offline" in " ".join(shown.split())

        try:
            await eventually(named, patience(NAMED_S), 0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}: {shown}") from error
        assert {name: (await plane.node(name)).online for name in ("edge0", "edge1")} == {"edge0": False, "edge1": True}
