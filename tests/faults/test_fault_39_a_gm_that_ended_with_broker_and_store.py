"""GM, its store and the broker end together, and the broker's disk still has GM's birth: a new GM starts."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.broker_with_disk import BrokerWithDisk
from tests.faults.control import Control
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_fault_39_the_birth_of_a_gm_that_ended_refuses_no_new_one(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(BrokerWithDisk(tmp_path / "broker", port=free_port()))
        plane = await stack.enter_async_context(Control(tmp_path, broker, stack))
        first = plane.gm_process()
        await plane.apply(*plane.models())
        saved = tmp_path / "broker" / "mosquitto.db"
        await eventually(lambda: saved.exists() and b"sedna/gm/presence" in saved.read_bytes(), patience(30))
        await broker.kill()
        first.kill()
        shutil.rmtree(plane.home / "gm")
        await broker.restart()
        plane.gm_process()
        await plane.apply(*plane.models())  # an answer of the new one
