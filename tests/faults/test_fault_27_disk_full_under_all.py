"""A disk that is full under GM and LC at once: statuses go on, edits are refused, and `halimede status` says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.control import Control, control, readiness
from tests.small_disk import fill, small_disk

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system"),
    pytest.mark.slow,
    pytest.mark.timeout(240),
]


async def test_fault_27_manager_and_node_go_on_from_memory_and_are_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with control(tmp_path) as plane:
            gm = plane.gm_process(store=disk / "gm")
            lc = plane.lc_process(home=disk)
            await plane.start_services("helmet")
            await plane.status_is_well()
            assert (await readiness(gm.http))[0] == 200

            fill(disk / "ballast")
            await plane.status_names(
                f"gm: the store {disk}", f"node/edge0: its store {disk}", "cannot be written", "full"
            )
            doctor = await plane.halimede("doctor")
            assert doctor.returncode != 0
            assert doctor.stdout.count("cannot be written") == 2
            for child, problem in ((gm, "cannot be written"), (lc, "the store cannot be used")):
                status, checks = await readiness(child.http)
                assert (status, problem in str(checks)) == (503, True)
            await refused(plane)
            # what nodes say still becomes statuses
            lc.kill()
            await plane.until(lambda: plane.phase("helmet") in {"Degraded", "Failed"})
            lc = plane.lc_process(home=disk)
            await plane.until(lambda: plane.phase("helmet") == "Running")
            assert gm.process.poll() is None

            # a start finds the disk full: no crash loop
            gm.kill()
            gm = plane.gm_process(store=disk / "gm")
            await plane.status_names("gm", "cannot be written")
            await plane.running("helmet")

            (disk / "ballast").unlink()
            await plane.status_is_well()
            assert [(await readiness(child.http))[0] for child in (gm, lc)] == [200, 200]
            await plane.apply(plane.service("another"))
            await plane.running("another")
            assert await gm.stop() == 0
            assert not gm.says("Traceback"), gm.log.read_text()
            gm = plane.gm_process(store=disk / "gm")
            await plane.running("helmet", "another")
            await plane.status_is_well()
            assert (await gm.stop(), await lc.stop()) == (0, 0)


async def refused(plane: Control) -> None:
    reply = await plane.ask("apply", object=plane.service("another"))
    assert reply.error is not None
    assert "cannot be written" in reply.error.message
    assert "free space" in reply.error.message
    assert not await plane.stored("another")
