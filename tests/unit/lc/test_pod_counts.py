"""What pods have counted on a node: it stays whoever is replaced or restarted, and goes with the service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede import histogram
from halimede.messages import Histogram, TaskInfo
from services.lc.folders import Worker
from services.lc.podcounts import KEPT, MAX_LIVE
from services.lc.store import Store
from tests.integration.lc_world import HELMET, service
from tests.simulated import eventually, simulated
from tests.unit.lc.pods_world import CLOUD, PODS, counted, model, named, ready, says, world


@simulated
async def test_the_counts_of_a_replaced_pod_stay(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], number=10)
        await eventually(lambda: counted(node) == 10)
        await says(node, PODS[0], "completed", number=12)
        await says(node, PODS[1], "starting")
        await eventually(lambda: counted(node) == 12)
        await says(node, PODS[1], number=5)
        await eventually(lambda: counted(node) == 17)
        assert named(node.gm.statuses[HELMET]) == {PODS[1].name: "Running"}
        info = node.gm.statuses[HELMET].output.task_info  # type: ignore[union-attr]
        assert info
        assert info.queued == 1  # of the one that runs


@simulated
@pytest.mark.parametrize("killed", [False, True])
async def test_a_restart_of_the_controller_loses_nothing(killed: bool, tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        async with node.lc(killed=killed):
            await node.gm.insert(model(), service())
            await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
            for n, pod in enumerate(PODS[: KEPT + 8]):
                await says(node, pod, number=n + 1)
                await says(node, pod, "completed")
            await says(node, PODS[KEPT + 8], number=1000)
            total = sum(range(KEPT + 9)) + 1000
            await eventually(lambda: counted(node) == total)
            await asyncio.sleep(6)
        async with node.lc():
            status = await node.gm.reaches(HELMET, "Running")
            assert named(status) == {PODS[KEPT + 8].name: "Running"}
            assert counted(node) == total
            await says(node, PODS[KEPT + 8], number=1001)
            await eventually(lambda: counted(node) == total + 1)
        with Store(node.config.folders.store) as store:
            assert len(store.pods.found) == KEPT + 1
            assert len(store.pods.found_retired) == 1


@simulated
async def test_a_last_word_is_on_disk_soon(tmp_path: Path) -> None:
    async with world(tmp_path) as node, node.lc(killed=True):
        await node.gm.insert(model(), service())
        await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        await says(node, PODS[0], number=7)
        await says(node, PODS[0], "completed")
        await eventually(lambda: counted(node) == 7)
        await asyncio.sleep(1.5)
    with Store(node.config.folders.store) as store:
        ((_, worker, record),) = store.pods.found
        assert (worker, record.gone) == (PODS[0], True)
        assert record.info.task_info
        assert record.info.task_info.inference_number == 7


@simulated
async def test_roles_are_added_up_as_on_any_node(tmp_path: Path) -> None:
    latency = Histogram(buckets={})
    histogram.record(latency, 5.0)
    async with ready(tmp_path) as node:
        work = TaskInfo(inference_number=99, served=7, batches=2, compute_latency=latency)
        await says(node, CLOUD, role="cloud", task_info=work)
        await eventually(lambda: counted(node) == 99)
        await says(node, PODS[0])
        await eventually(lambda: counted(node) is None)  # not known, which is not the same as zero
        await says(node, PODS[0], number=4)
        await eventually(lambda: counted(node) == 4)
        info = node.gm.statuses[HELMET].output.task_info  # type: ignore[union-attr]
        assert info
        assert (info.served, info.batches, info.compute_latency) == (7, 2, latency)


@simulated
async def test_a_forgotten_service_leaves_no_counts(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], number=10)
        await eventually(lambda: counted(node) == 10)
        await asyncio.sleep(6)  # until it is on disk
        await node.gm.delete(HELMET, "u1")
        await node.gm.forgotten(HELMET)
        await says(node, PODS[0], number=11)
        await asyncio.sleep(10)
        await node.gm.insert(service(uid="u2"))
        await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        await says(node, PODS[1], number=1, owner_uid="u2")
        await eventually(lambda: counted(node) == 1)
        await asyncio.sleep(10)
    with Store(node.config.folders.store) as store:
        assert [(owner[1], worker) for owner, worker, _ in store.pods.found] == [("u2", PODS[1])]


@simulated
async def test_a_name_that_is_given_to_another_uid_begins_anew(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], number=10)
        await eventually(lambda: counted(node) == 10)
        await node.gm.insert(service(uid="u2"))
        await eventually(lambda: node.gm.statuses[HELMET].uid == "u2")
        assert counted(node) is None


@simulated
async def test_an_edit_keeps_the_counts(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], number=10)
        await node.gm.insert(service(generation=2))
        await node.gm.reaches(HELMET, "Running", generation=2)
        assert counted(node) == 10


@simulated
async def test_more_pods_than_a_report_has_room_for_are_not_taken(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        for n in range(MAX_LIVE + 20):
            await says(node, Worker("default", f"flood-{n}"), number=1)
        await eventually(lambda: counted(node) == MAX_LIVE)
        await asyncio.sleep(2)
        assert len(node.gm.statuses[HELMET].workers) == MAX_LIVE
