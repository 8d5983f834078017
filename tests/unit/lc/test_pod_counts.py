"""What pods have counted on a node: it stays whoever is replaced or restarted, and goes with the service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Histogram, ModelInUse, TaskInfo, WorkerInfo
from halimede.names import Key
from halimede.stats import histogram
from services.lc.paths import NodePaths, Worker
from services.lc.planning.plan import Plan
from services.lc.planning.resource_state import ResourceState
from services.lc.pods import workers
from services.lc.pods.store import PodRecord
from services.lc.pods.workers import MAX_REMEMBERED, Pod, PodCounts, PodWorkers
from services.lc.store import NodeStore
from tests.integration.lc_world import HELMET, SERVICES, World, service
from tests.simulated import eventually
from tests.unit.lc.pods_world import CLOUD, PODS, counted, counts, holding, named, says, world

pytestmark = pytest.mark.simulated


async def test_the_counts_of_a_replaced_pod_stay(pods_node: World) -> None:
    await counts(pods_node, PODS[0], number=10, total=10)
    await says(pods_node, PODS[0], "completed", number=12)
    await counts(pods_node, PODS[1], "starting", total=12)
    await counts(pods_node, PODS[1], number=5, total=17)
    assert named(pods_node.gm.statuses[HELMET]) == {PODS[1].name: "Running"}
    info = pods_node.gm.statuses[HELMET].output.task_info  # type: ignore[union-attr]
    assert info.queued == 1  # of the one that runs


@pytest.mark.parametrize(("kind", "shown"), [("multiedgeinferenceservice", 4), ("jointinferenceservice", None)])
def test_a_pod_tells_its_model_and_where_several_have_one_role_its_own_counts(kind: str, shown: int | None) -> None:
    info = WorkerInfo(
        name="pod", namespace="default", owner_name="crossing", owner_kind=kind, status="running", role="edge",
        task_info=TaskInfo(inference_number=4), model=ModelInUse(digest="a" * 64, version="v1"),
    )  # fmt: skip
    report = Pod(info, "edge", 0.0).report()
    assert (report.task_info.inference_number if report.task_info else None) == shown
    assert report.model == info.model


async def test_a_pod_that_was_silent_is_not_counted_twice(stopped_pods_node: World) -> None:
    """However many others came and went meanwhile, and over a restart of the controller."""
    async with holding(stopped_pods_node):
        await says(stopped_pods_node, PODS[0], number=100)
        await stopped_pods_node.gm.reaches(HELMET, "Running")
        await asyncio.sleep(40)
        await stopped_pods_node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        for pod in PODS[1 : MAX_REMEMBERED + 10]:
            await says(stopped_pods_node, pod, number=1)
            await says(stopped_pods_node, pod, "completed", number=1)
        others = MAX_REMEMBERED + 9
        await eventually(lambda: counted(stopped_pods_node) == 100 + others)
        await asyncio.sleep(10)
        await counts(stopped_pods_node, PODS[0], number=101, total=101 + others)
        await asyncio.sleep(40)
    async with stopped_pods_node.lc():
        await stopped_pods_node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        for pod in PODS[MAX_REMEMBERED + 10 : 2 * MAX_REMEMBERED + 20]:
            await says(stopped_pods_node, pod, "completed", number=1)
            others += 1
        await asyncio.sleep(10)
        await counts(stopped_pods_node, PODS[0], number=102, total=102 + others)


def gone(counts: PodCounts, number: int, status: Any, now: float) -> list[Worker]:
    """Let pods speak once and go."""
    first = len(counts.pods)
    pods = [Worker("default", f"pod-{n}") for n in range(first, first + number)]
    for pod in pods:
        info = WorkerInfo(name=pod.name, namespace="default", owner_name="helmet", status=status)
        assert counts.update(pod, "edge", info, now)
        counts.end(pod)
    return pods


def test_names_are_given_up_in_the_end() -> None:
    counts = PodCounts()
    silent = gone(counts, MAX_REMEMBERED + 3, "running", now=0)
    assert counts.surplus(workers.RETURNS_S) == []
    assert counts.surplus(workers.RETURNS_S + 1) == silent[:3]
    completed = gone(counts, MAX_REMEMBERED + 2, "completed", now=5)
    assert counts.surplus(10) == completed[:2]  # not those that spoke before them, and may again


def test_a_flood_of_silent_pods_takes_a_bounded_place() -> None:
    counts = PodCounts()
    silent = gone(counts, workers.MAX_ENDED_PODS, "running", now=0)
    completed = gone(counts, 5, "completed", now=1)
    assert counts.surplus(2) == completed
    gone(counts, 5, "running", now=2)
    assert counts.surplus(2) == [*completed, *silent[:5]]


@pytest.mark.parametrize("killed", [False, True])
async def test_a_restart_of_the_controller_loses_nothing(stopped_pods_node: World, killed: bool) -> None:
    async with holding(stopped_pods_node, killed=killed):
        for n, pod in enumerate(PODS[: MAX_REMEMBERED + 8]):
            await says(stopped_pods_node, pod, number=n + 1)
            await says(stopped_pods_node, pod, "completed")
        await says(stopped_pods_node, PODS[MAX_REMEMBERED + 8], number=1000)
        total = sum(range(MAX_REMEMBERED + 9)) + 1000
        await eventually(lambda: counted(stopped_pods_node) == total)
        await asyncio.sleep(6)
    async with stopped_pods_node.lc():
        status = await stopped_pods_node.gm.reaches(HELMET, "Running")
        assert named(status) == {PODS[MAX_REMEMBERED + 8].name: "Running"}
        assert counted(stopped_pods_node) == total
        await counts(stopped_pods_node, PODS[MAX_REMEMBERED + 8], number=1001, total=total + 1)
    with NodeStore(stopped_pods_node.config.folders.store) as store:
        assert (len(store.pods.loaded), len(store.pods.loaded_sums)) == (MAX_REMEMBERED + 1, 1)


async def test_a_last_word_is_on_disk_soon(tmp_path: Path) -> None:
    async with world(tmp_path) as node, holding(node, killed=True):
        await says(node, PODS[0], number=7)
        await counts(node, PODS[0], "completed", total=7)
        await asyncio.sleep(1.5)
    with NodeStore(node.config.folders.store) as store:
        ((_, worker, record),) = store.pods.loaded
        assert (worker, record.has_ended) == (PODS[0], True)
        assert record.info.task_info.inference_number == 7


async def test_roles_are_added_up_as_on_any_node(pods_node: World) -> None:
    latency = Histogram(buckets={})
    histogram.record(latency, 5.0)
    work = TaskInfo(inference_number=99, served=7, batches=2, compute_latency=latency)
    await counts(pods_node, CLOUD, role="cloud", task_info=work, total=99)
    await says(pods_node, PODS[0])
    await eventually(lambda: counted(pods_node) is None)  # not known, which is not the same as zero
    await counts(pods_node, PODS[0], number=4, total=4)
    info = pods_node.gm.statuses[HELMET].output.task_info  # type: ignore[union-attr]
    assert (info.served, info.batches, info.compute_latency) == (7, 2, latency)


async def test_a_service_that_leaves_and_comes_back_goes_on_counting(stopped_pods_node: World) -> None:
    """Its pod has moved to another node and back."""
    async with holding(stopped_pods_node):
        await counts(stopped_pods_node, PODS[0], number=10, total=10)
        await stopped_pods_node.loses(generation=0)
    async with stopped_pods_node.lc():
        await stopped_pods_node.gm.insert(service())
        await stopped_pods_node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        assert counted(stopped_pods_node) == 10
        await counts(stopped_pods_node, PODS[1], number=5, total=15)


async def test_services_that_left_long_ago_are_forgotten(tmp_path: Path) -> None:
    async with world(tmp_path) as node, holding(node):
        for n in range(workers.MAX_DEPARTED + 2):
            await node.gm.insert(service(f"s{n}", uid=f"u-{n}"))
            await says(node, PODS[0], number=1, owner=f"s{n}", owner_uid=f"u-{n}")
            key = Key(SERVICES, "default", f"s{n}")
            await eventually(lambda key=key: key in node.gm.statuses and node.gm.statuses[key].workers)
            await node.loses(key, f"u-{n}", generation=0)
        await asyncio.sleep(10)
    with NodeStore(node.config.folders.store) as store:
        assert {owner[1] for owner, _, _ in store.pods.loaded} == {f"u-{n}" for n in range(2, workers.MAX_DEPARTED + 2)}


async def test_what_a_pod_said_last_is_told_before_its_service_is_forgotten(pods_node: World) -> None:
    await counts(pods_node, PODS[0], number=10, total=10)
    await says(pods_node, PODS[0], number=12)
    await pods_node.loses(generation=0)
    told = [status for _, key, status in pods_node.gm.history if key == HELMET and status is not None]
    assert told[-1].output.task_info.inference_number == 12


async def test_a_forgotten_service_leaves_no_counts(tmp_path: Path) -> None:
    async with world(tmp_path) as node, holding(node):
        await counts(node, PODS[0], number=10, total=10)
        await asyncio.sleep(6)  # until it is on disk
        await node.loses()
        await says(node, PODS[0], number=11)
        await asyncio.sleep(10)
        await node.gm.insert(service(uid="u2"))
        await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        await counts(node, PODS[1], number=1, owner_uid="u2", total=1)
        await asyncio.sleep(10)
    with NodeStore(node.config.folders.store) as store:
        assert [(owner[1], worker) for owner, worker, _ in store.pods.loaded] == [("u2", PODS[1])]


async def test_what_a_full_disk_keeps_is_forgotten_later(tmp_path: Path) -> None:
    info = WorkerInfo(name=PODS[0].name, namespace="default", owner_name="helmet", role="edge", status="running")
    with NodeStore(tmp_path / "store") as store:
        store.pods.write([((HELMET, "u1"), PODS[0], PodRecord(info))])
    with NodeStore(tmp_path / "store") as store:
        pods = PodWorkers(NodePaths(tmp_path, "edge0"), MemoryBus("lc.edge0", MemoryBroker()), store, lambda _: None)
        pods.adopt()
        plan = Plan((), (), {}, {HELMET: ResourceState(HELMET, "u2", 1)})
        for refuse in (True, False):
            store._db.execute(f"PRAGMA query_only = {int(refuse)}")  # SQLite says no, as on a full disk
            pods.carry_out(plan)
            assert store._db.execute("SELECT count(*) FROM pods").fetchone() == (int(refuse),)


async def test_an_edit_keeps_the_counts_and_another_uid_of_the_name_begins_anew(pods_node: World) -> None:
    await counts(pods_node, PODS[0], number=10, total=10)
    await pods_node.gm.insert(service(generation=2))
    await pods_node.gm.reaches(HELMET, "Running", generation=2)
    assert counted(pods_node) == 10
    await pods_node.gm.insert(service(uid="u2"))
    await eventually(lambda: pods_node.gm.statuses[HELMET].uid == "u2")
    assert counted(pods_node) is None


async def test_more_pods_than_a_report_has_room_for_are_not_taken(pods_node: World) -> None:
    for n in range(workers.MAX_LIVE + 20):
        await says(pods_node, Worker("default", f"flood-{n}"), number=1)
    await eventually(lambda: counted(pods_node) == workers.MAX_LIVE)
    await asyncio.sleep(2)
    assert len(pods_node.gm.statuses[HELMET].workers) == workers.MAX_LIVE


def life(number: int, start: str = "2026-01-01T00:00:00Z", at: int = 0) -> dict[str, Any]:
    """Return what a pod says that has counted ``number`` samples since ``start``, ``at`` seconds after midnight."""
    time = f"2026-01-02T00:{at // 60:02}:{at % 60:02}Z"
    return {"task_info": TaskInfo(inference_number=number, served=number, start_time=start, current_time=time)}


SECOND_START, THIRD_START = "2026-01-02T00:00:09Z", "2026-01-02T00:00:30Z"


@pytest.mark.parametrize("killed", [False, True])
async def test_counts_never_fall_when_the_folder_of_a_pod_is_made_anew_under_its_name(
    stopped_pods_node: World, killed: bool
) -> None:
    """As edgecore does after a power cut: the pod is the same one, and its emptyDir is empty."""
    async with holding(stopped_pods_node, killed=killed):
        await counts(stopped_pods_node, PODS[0], **life(1176, at=1), total=1176)
        await says(stopped_pods_node, PODS[0], **life(0, SECOND_START, at=10))
        await counts(stopped_pods_node, PODS[0], **life(4, SECOND_START, at=11), total=1180)
        await counts(stopped_pods_node, PODS[0], **life(2, THIRD_START, at=31), total=1182)
        await asyncio.sleep(6)
    async with stopped_pods_node.lc():
        await stopped_pods_node.gm.reaches(HELMET, "Running")
        assert counted(stopped_pods_node) == 1182
        for late in (life(1176, at=1), life(4, SECOND_START, at=11)):  # the broker delivers them again
            await says(stopped_pods_node, PODS[0], **late)
        await counts(stopped_pods_node, PODS[0], **life(5, THIRD_START, at=60), total=1185)
        await asyncio.sleep(3)
        assert counted(stopped_pods_node) == 1185
        assert named(stopped_pods_node.gm.statuses[HELMET]) == {PODS[0].name: "Running"}


async def test_an_older_copy_of_the_counts_that_a_power_cut_leaves_counts_on_from_there(pods_node: World) -> None:
    await counts(pods_node, PODS[0], **life(100, at=1), total=100)
    await says(pods_node, PODS[0], **life(95, at=20))
    await asyncio.sleep(3)
    assert counted(pods_node) == 100
    await counts(pods_node, PODS[0], **life(97, at=30), total=102)


async def test_counts_without_a_start_that_fall_are_those_of_another_life(pods_node: World) -> None:
    await counts(pods_node, PODS[0], number=50, total=50)
    await counts(pods_node, PODS[0], number=1, total=51)


async def test_a_report_that_the_broker_delivers_again_counts_nothing_twice(pods_node: World) -> None:
    await says(pods_node, PODS[0], **life(10, at=1))
    await counts(pods_node, PODS[0], **life(12, at=2), total=12)
    for again in (life(10, at=1), life(12, at=2), life(3, SECOND_START, at=10), life(12, at=2), life(10, at=1)):
        await says(pods_node, PODS[0], **again)
    await counts(pods_node, PODS[0], **life(4, SECOND_START, at=11), total=16)


async def test_counts_that_grow_are_taken_while_the_clock_of_the_machine_is_behind(pods_node: World) -> None:
    """As after a power cut: the counts are those before it, and the time is not known yet."""
    await counts(pods_node, PODS[0], **life(100, at=3000), total=100)
    await counts(pods_node, PODS[0], **life(104, at=10), total=104)
    await counts(pods_node, PODS[0], **life(109, at=20), total=109)
