"""A disk that is full under GM and LC at once: statuses go on, edits are refused, and `halimede status` says why."""

from __future__ import annotations

import os
from pathlib import Path

import aiohttp
import pytest

from tests.faults.control import Child, Control, control
from tests.small_disk import fill, small_disk

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system"),
    pytest.mark.slow,
    pytest.mark.timeout(240),
]


async def ready(child: Child) -> tuple[int, str]:
    """Ask a process whether it is ready, as a kubelet does."""
    url = "http://" + child.log.read_text().rpartition('"http": "http://')[2].partition('"')[0]
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
        return answer.status, await answer.text()


async def test_fault_27_manager_and_node_go_on_from_memory_and_are_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with control(tmp_path) as plane:
            gm = plane.gm_process(store=disk / "gm")
            lc = plane.lc_process(home=disk)
            await plane.apply(*plane.models(), plane.service("helmet"))
            await plane.running("helmet")
            await plane.status_is_well()
            assert (await ready(gm))[0] == 200

            fill(disk / "ballast")
            await plane.status_names(
                f"gm: the store {disk}", f"node/edge0: its store {disk}", "cannot be written", "full"
            )
            doctor = await plane.halimede("doctor")
            assert doctor.returncode != 0
            assert doctor.stdout.count("cannot be written") == 2
            status, text = await ready(gm)
            assert (status, "cannot be written" in text) == (503, True)
            status, text = await ready(lc)
            assert (status, "the store cannot be used" in text) == (503, True)
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
            assert ((await ready(gm))[0], (await ready(lc))[0]) == (200, 200)
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
    assert (await plane.ask("get", plural="jointinferenceservices", name="another")).error is not None
