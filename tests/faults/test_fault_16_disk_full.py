"""A node whose disk is full, for models and for its store: what runs goes on, and the node says what is missing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from halimede.messages import Status
from tests.faults.control import Child, Control, control
from tests.small_disk import MIB, ROOM, fill, small_disk

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system"),
    pytest.mark.slow,
    pytest.mark.timeout(240),
]
#: seconds: a node looks every 15 at what somebody has to mend
PATIENCE = 60.0


class Node:
    """A real local controller on a small disk, with a service on it."""

    def __init__(self, plane: Control, disk: Path, lc: Child) -> None:
        self.plane, self.disk, self.lc = plane, disk, lc
        self.before = plane.workers()

    async def change(self, name: str, size: int) -> None:
        """Let one of the two models be another file of this size."""
        path = self.plane.folder / f"{name}-{size}.onnx"
        path.write_bytes(os.urandom(size))
        bodies = {body["metadata"]["name"]: body for body in self.plane.models()}
        bodies[name]["spec"]["url"] = str(path)
        await self.plane.apply(bodies[name])

    @property
    def status(self) -> Status:
        return self.plane.statuses["helmet"]

    async def is_degraded(self) -> None:
        """The service says what is missing, and goes on."""

        def told() -> bool:
            shown = [c for c in self.status.conditions if c.type == "Degraded" and c.status == "True"]
            return any("the disk is full: free some space" in condition.message for condition in shown)

        await self.plane.until(told, PATIENCE)
        assert self.status.phase == "Degraded"
        assert self.lc.says('"DiskFull"')
        self.goes_on()

    async def heals(self) -> None:
        def well() -> bool:
            return self.status.phase == "Running" and set(self.plane.workers()) == set(self.before)

        await self.plane.until(well, PATIENCE)

    def goes_on(self) -> None:
        """The controller lives, and so do the workers that it had, with the model that they had."""
        assert self.lc.process.poll() is None, self.lc.log.read_text()
        assert self.plane.workers() == self.before
        assert not self.lc.says("Traceback"), self.lc.log.read_text()


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[Node]:
    with small_disk(folder / "disk") as disk:
        async with control(folder) as plane, plane.gm():
            lc = plane.lc_process(home=disk)
            await plane.start_services("helmet")
            running = Node(plane, disk, lc)
            yield running
            assert await running.lc.stop() == 0


async def test_fault_16_a_model_for_which_there_is_no_room(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        await n.change("big", ROOM + MIB)
        await n.is_degraded()
        assert shutil.disk_usage(n.disk).free > ROOM / 2, "what could not be finished is in the way"
        await n.change("big", MIB)
        await n.heals()
        assert n.lc.process.poll() is None


async def test_fault_16_not_even_the_store_can_be_written(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        fill(n.disk / "ballast")
        await n.change("big", MIB)
        await n.is_degraded()
        await asyncio.gather(*(n.change("small", 1000 + i) for i in range(3)))
        await n.plane.until(lambda: n.lc.says("the store is full"), PATIENCE)
        n.goes_on()
        (n.disk / "ballast").unlink()
        await n.heals()
        assert n.lc.process.poll() is None
        await n.plane.delete("helmet")
        await n.plane.gone("helmet")
        await n.plane.until(lambda: n.lc.says("store writable again"), PATIENCE)


async def test_fault_16_a_node_that_starts_on_a_full_disk_takes_over_what_runs(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.lc.kill()
        fill(n.disk / "ballast")
        n.lc = n.plane.lc_process(home=n.disk)
        await n.plane.until(lambda: n.lc.log.read_text().count("worker adopted") == 2, PATIENCE)
        await n.change("big", MIB)
        await n.is_degraded()
        (n.disk / "ballast").unlink()
        await n.heals()
