"""Delete and re-create under one name: a new uid is a new task, in whichever order the two arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.lc_world import EDGE, HELMET, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("order", ["delete first", "insert first", "no delete"])
async def test_fault_09_recreated_name(tmp_path: Path, order: str) -> None:
    async with world(tmp_path, inserted=True) as node:
        old = node.launcher.of(EDGE)
        if order == "delete first":
            await node.gm.delete(HELMET, "u1")
        await node.gm.insert(service(uid="u2"))
        if order == "insert first":
            await node.gm.delete(HELMET, "u1")
        await eventually(lambda: [p for p in node.launcher.alive if p is not old])

        new = node.launcher.of(EDGE)
        assert new.start
        assert new.start.spec.env["SERVICE_UID"] == "u2"
        assert old.signals[0] == "TERM"
        await node.gm.says(EDGE)
        assert (await node.gm.reaches(HELMET, "Running")).uid == "u2"


async def test_fault_09_the_old_uid_does_not_come_back(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        await node.gm.insert(service(uid="u2"))
        await eventually(lambda: node.gm.statuses[HELMET].uid == "u2")
        process = node.launcher.of(EDGE)
        await node.gm.insert(service(uid="u1", generation=9))
        await node.gm.delete(HELMET, "u1", 9)
        await node.connect_again()
        assert ("helmet", "u2", 1) in node.gm.held()
        assert node.launcher.of(EDGE) is process


async def test_fault_09_counts_of_the_old_uid_are_not_those_of_the_new(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        assert node.gm.statuses[HELMET].output
        await node.gm.insert(service(uid="u2"))
        await eventually(lambda: node.gm.statuses[HELMET].uid == "u2")
        status = node.gm.statuses[HELMET]
        assert status.output is None or status.output.task_info is None
