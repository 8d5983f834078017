"""A GM hangs (SIGSTOP), one with another store starts in its place, and the first continues: it ends."""

from __future__ import annotations

from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.faults.control import control
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STARTED = "global manager started"


async def test_fault_38_a_gm_that_continues_beside_another_one_ends(tmp_path: Path) -> None:
    async with control(tmp_path) as plane:
        first = plane.gm_process()
        plane.lc_process()
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet")
        await plane.status_is_well()
        first.process.send_signal(SIGSTOP)
        second = plane.gm_process(store=tmp_path / "gm2")
        await eventually(lambda: second.says(STARTED), patience(60))
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet", generation=2)
        first.process.send_signal(SIGCONT)
        await eventually(lambda: first.process.poll() is not None, patience(60))
        assert first.process.returncode == 2
        assert first.says("another global manager")
        await plane.status_is_well()
        assert second.process.poll() is None
        assert not second.says("bus down"), "the first one has taken its connection"
        await plane.apply(*plane.models(), plane.service("other"))
        await plane.running("other")
