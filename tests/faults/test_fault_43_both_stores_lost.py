"""GM's and a node's stores are lost under load, and the resources are applied again: no worker restarts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.running import DIGITS, System, digits, running
from tests.faults.test_fault_28_stores_lost_while_running import overwritten, removed
from tests.faults.timeline import SERVICE, under_load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds of load after the resources were applied again
LOAD_S = 8.0


def workers(system: System) -> dict[str, psutil.Process]:
    return {name: process for name, process in system.processes().items() if name.startswith("worker:")}


@pytest.mark.parametrize("damage", [removed, overwritten], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("killed", [("gm",), ("gm", "lc:edge0")], ids="-".join)
async def test_fault_43_resources_that_are_applied_again_restart_no_worker(
    tmp_path: Path, killed: tuple[str, ...], damage: Callable[[Path], None]
) -> None:
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        async with under_load(system, digits()) as timeline:
            before, controllers = workers(system), system.processes()
            assert system.status
            generation = (await system.client.get("jointinferenceservices", SERVICE))["metadata"]["generation"]
            timeline.fault()
            for name in killed:
                os.kill(controllers[name].pid, signal.SIGSTOP)  # it writes nothing more
            damage(system.home / "gm" / "store.db")
            damage(system.home / "nodes" / "edge0" / "store.db")
            for name in killed:
                os.kill(controllers[name].pid, signal.SIGKILL)
            await system.until(
                "the advice", lambda: timeline.failed("node/edge0", "lost with its store", SERVICE) < float("inf")
            )
            await system.apply(DIGITS)
            applied_s = timeline.now()
            await system.until("Running", lambda: timeline.now() - applied_s > LOAD_S and system.phase == "Running")
            applied = (await system.client.get("jointinferenceservices", SERVICE))["metadata"]
            assert applied["generation"] > generation
            await asyncio.sleep(1)
            after = workers(system)
        print(timeline.row(f"{damage.__name__} {'-'.join(killed)}", applied=applied_s))
        assert (timeline.unnamed(), system.metric("lost")) == (0, 0)
        assert after == before
