"""A worker that hangs under load: the others answer its frames, status names it, its controller replaces it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.running import digits, running
from tests.faults.timeline import BUSY_S, Timeline, under_load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def hang(tmp_path: Path, victim: str) -> Timeline:
    """Stop a worker by SIGSTOP while frames flow, until it has been replaced and all is answered."""
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
        assert timeline.first("WorkerSilent") < 15 + BUSY_S
        assert replaced_s < 25 + BUSY_S
        return timeline


async def test_fault_25_others_answer_for_a_hung_edge_worker_and_it_is_replaced(tmp_path: Path) -> None:
    timeline = await hang(tmp_path, "worker:digits-edge-edge0")
    assert timeline.slowest_s < 10 + BUSY_S


async def test_fault_26_a_hung_cloud_worker_is_named_and_replaced_and_the_edge_goes_on(tmp_path: Path) -> None:
    timeline = await hang(tmp_path, "worker:digits-cloud-cloud0")
    assert timeline.slowest_s < 10 + BUSY_S
