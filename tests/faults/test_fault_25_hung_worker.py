"""Faults 25 and 26: a worker hangs under load: the others answer, status names it, its controller replaces it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.running import digits, running
from tests.faults.timeline import under_load
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("worker", [pytest.param("edge-edge0", id="25"), pytest.param("cloud-cloud0", id="26")])
async def test_fault_25_a_hung_worker_is_named_and_replaced_and_others_answer(tmp_path: Path, worker: str) -> None:
    victim = f"worker:digits-{worker}"
    async with running(tmp_path / "home") as system:
        async with under_load(system, digits()) as timeline:
            before = system.processes()[victim]
            timeline.fault()
            os.kill(before.pid, signal.SIGSTOP)
            await system.until("a new worker", lambda: system.processes().get(victim, before).pid != before.pid)
            replaced_s = timeline.now()
            await system.until("Running again", lambda: system.phase == "Running")
        print(timeline.row(victim, replaced=replaced_s))
        assert (timeline.unnamed(), system.metric("lost")) == (0, 0)
        assert timeline.named("Degraded"), "`halimede status` ends non-zero, as long as that is so"
        assert timeline.named("WorkerSilent"), "and says why"
        assert not any("clock" in run.text.lower() or "NTP" in run.text for run in timeline.runs)
        assert timeline.first("WorkerSilent") < patience(15)
        assert replaced_s < patience(25)
        assert timeline.slowest_s < patience(10)
