"""A broker has its retained messages on a disk, and ends together with a node, or with GM and GM's store.

The node is shown as offline, and the birth of the GM that ended refuses no new one.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from services.broker import MosquittoProcess
from tests.faults.control import Control
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds in which a node confirms that it is online, and in which GM is connected again after the broker's restart
NAMED_S = 15.0 + 15.0


class BrokerWithDisk(MosquittoProcess):
    """Mosquitto whose retained messages outlive it, as those of most brokers."""

    def _configuration(self, port: int) -> list[str]:
        disk = ["persistence true", f"persistence_location {self._folder}/", "autosave_on_changes true"]
        return [*super()._configuration(port), *disk, "autosave_interval 1"]

    async def saves(self, text: bytes) -> None:
        """Wait until a text is on the disk."""
        saved = self._folder / "mosquitto.db"
        await eventually(lambda: saved.exists() and text in saved.read_bytes(), patience(30))


@asynccontextmanager
async def on_disk(folder: Path) -> AsyncIterator[tuple[Control, BrokerWithDisk]]:
    """A control plane on a broker with a disk."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BrokerWithDisk(folder / "broker", port=free_port()))
        yield await Control(folder, broker, stack).start(), broker


async def test_fault_39_a_node_that_ended_with_the_broker_is_offline(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as (plane, broker):
        plane.gm_process()
        dead = plane.lc_process()
        plane.lc_process("edge1", home=tmp_path / "home1")
        await plane.start_services("helmet")
        await plane.status_is_well()
        await broker.saves(b"node/edge1")
        await broker.kill()
        dead.kill()
        await broker.restart()
        is_named = "node/edge0: it is offline"
        await plane.status(1, lambda text: is_named in " ".join(text.split()), patience(NAMED_S))
        assert {name: (await plane.node(name)).online for name in ("edge0", "edge1")} == {"edge0": False, "edge1": True}


async def test_fault_39_the_birth_of_a_gm_that_ended_refuses_no_new_one(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as (plane, broker):
        first = plane.gm_process()
        await plane.apply(*plane.models())
        await broker.saves(b"sedna/gm/presence")
        await broker.kill()
        first.kill()
        shutil.rmtree(plane.home / "gm")
        await broker.restart()
        plane.gm_process()
        await plane.apply(*plane.models())  # an answer of the new one
