"""Faults 25, 26 and 39: a worker hangs under load: the others answer, status names it, its controller replaces it.

So does the next controller, where this one is killed at the same time.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.running import digits, running
from tests.faults.timeline import SERVICE, Timeline, under_load
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def hang(
    tmp_path: Path, worker: str, killed: str = "", nodes: str = "edge0,edge1,cloud0"
) -> tuple[Timeline, float]:
    """Stop a worker under load, and kill a controller; return what became of it, and when the worker was replaced."""
    async with running(tmp_path / "home", nodes) as system:
        async with under_load(system, digits()) as timeline:
            before = system.processes()
            timeline.fault()
            os.kill(before[worker].pid, signal.SIGSTOP)
            if killed:
                os.kill(before[killed].pid, signal.SIGKILL)
                await system.until("WorkerSilent", lambda: timeline.first("WorkerSilent") < float("inf"))
            old = before[worker]
            await system.until("a new worker", lambda: system.processes().get(worker, old).pid != old.pid)
            replaced_s = timeline.now()
            await system.until("Running again", lambda: system.phase == "Running")
            await system.until("status is well", lambda: timeline.is_well_since(replaced_s))
        print(timeline.row(worker, replaced=replaced_s))
        assert (timeline.unnamed(), system.metric("lost")) == (0, 0)
        assert timeline.named("WorkerSilent"), "`halimede status` ends non-zero as long as that is so, and says why"
        assert timeline.first("WorkerSilent") < patience(15)
        return timeline, replaced_s


@pytest.mark.parametrize("worker", [pytest.param("edge-edge0", id="25"), pytest.param("cloud-cloud0", id="26")])
async def test_fault_25_a_hung_worker_is_named_and_replaced_and_others_answer(tmp_path: Path, worker: str) -> None:
    timeline, replaced_s = await hang(tmp_path, f"worker:{SERVICE}-{worker}")
    assert timeline.named("Degraded"), "`halimede status` ends non-zero, as long as that is so"
    assert not any("clock" in run.text.lower() or "NTP" in run.text for run in timeline.runs)
    assert replaced_s < patience(25)
    assert timeline.slowest_s < patience(10)


@pytest.mark.parametrize(("role", "node"), [("edge", "edge0"), ("cloud", "cloud0")])
async def test_fault_39_the_next_controller_names_and_replaces_a_hung_worker(
    tmp_path: Path, role: str, node: str
) -> None:
    await hang(tmp_path, f"worker:{SERVICE}-{role}-{node}", killed=f"lc:{node}", nodes="edge0,cloud0")
