"""A worker hangs and its LC dies: the next LC names the worker and replaces it, and no frame is unnamed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.running import digits, running
from tests.faults.timeline import SERVICE, under_load
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds within which the next controller names the worker
NAMED_S = patience(15)


@pytest.mark.parametrize(("role", "node"), [("edge", "edge0"), ("cloud", "cloud0")])
async def test_fault_39_the_next_controller_names_and_replaces_a_hung_worker(
    tmp_path: Path, role: str, node: str
) -> None:
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        async with under_load(system, digits()) as timeline:
            before = system.processes()
            worker, controller = before[f"worker:{SERVICE}-{role}-{node}"], before[f"lc:{node}"]
            timeline.fault()
            os.kill(worker.pid, signal.SIGSTOP)
            os.kill(controller.pid, signal.SIGKILL)
            await system.until("WorkerSilent", lambda: timeline.first("WorkerSilent") < float("inf"))
            await system.until("a new worker", lambda: not worker.is_running())
            replaced_s = timeline.now()
            await system.until("Running again", lambda: system.phase == "Running")
            await system.until("status is well", lambda: timeline.is_well_since(replaced_s))
        print(timeline.row(role, replaced=replaced_s))
        assert (timeline.unnamed(), system.metric("lost")) == (0, 0)
        assert timeline.named("WorkerSilent"), "`halimede status` ends non-zero as long as that is so, and says why"
        assert timeline.first("WorkerSilent") < NAMED_S
