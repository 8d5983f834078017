"""Generation 3 arrives, then 2: 2 is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.lc_world import EDGE, HELMET, model, service, world
from tests.simulated import eventually


@pytest.mark.simulated
async def test_fault_07_older_generation(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service(generation=3, deadlineMs=3000))
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running", generation=3)
        process = node.launcher.of(EDGE)

        await node.gm.insert(service(generation=2, deadlineMs=2000))
        await node.gm.synced()
        await node.connect_again()

        assert node.gm.held() == {("small", "uid-small", 1), ("helmet", "u1", 3)}
        assert node.launcher.of(EDGE) is process
        assert process.start
        assert process.start.spec.env["DEADLINE_MS"] == "3000"
        assert node.gm.statuses[HELMET].observed_generation == 3
