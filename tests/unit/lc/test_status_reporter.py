"""What GM is told of a resource, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Histogram, NodeStatus, Output, TaskInfo, WorkerReport
from halimede.stats import histogram
from halimede.stats.totals import add_up
from services.lc.paths import NodePaths, Worker
from services.lc.planning.resource_state import LocalPhase, ResourceState
from services.lc.status_reporter import DueReports, NodeStatusReporter, compose
from services.lc.store import NodeStore
from services.lc.supervisor.supervisor import Supervisor
from tests.integration.lc_world import CLOUD, EDGE, HELMET, SMALL, FakeLauncher, World, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

RUNNING = WorkerReport(name=EDGE.name, role="edge", phase="Running")
STANDING = ResourceState(HELMET, "u1", 3, {EDGE: "edge"})
BOTH = ResourceState(HELMET, "u1", 3, {EDGE: "edge", CLOUD: "cloud"})


def counted(*milliseconds: float) -> Histogram:
    made = Histogram(buckets={})
    for value in milliseconds:
        histogram.record(made, value)
    return made


def test_counts_of_several_workers_add_up() -> None:
    total = add_up([
        TaskInfo(
            inference_number=30, hard_example_number=10, upload_cloud_ratio=0.3, degraded=1, start_time="2026-01-02",
            current_time="2026-01-03", edge_latency=counted(1, 2),
        ),
        TaskInfo(
            inference_number=10, hard_example_number=5, upload_cloud_ratio=0.5, lost=2, start_time="2026-01-01",
            current_time="2026-01-04", edge_latency=counted(2), offload_latency=counted(9),
        ),
    ])  # fmt: skip
    assert (total.inference_number, total.hard_example_number, total.degraded, total.lost) == (40, 15, 1, 2)
    assert total.upload_cloud_ratio == pytest.approx(0.35)
    assert (total.start_time, total.current_time) == ("2026-01-01", "2026-01-04")
    assert (total.edge_latency, total.offload_latency) == (counted(1, 2, 2), counted(9))


def test_a_worker_that_has_counted_nothing_yet_adds_up_too() -> None:
    assert add_up([TaskInfo()]).upload_cloud_ratio == 0


def test_the_worst_worker_is_the_phase() -> None:
    failed = WorkerReport(name=CLOUD.name, role="cloud", phase="Failed", reason="CrashLoop", message="exit code 1")
    status = compose(BOTH, {EDGE: RUNNING, CLOUD: failed}, {})
    assert (status.phase, status.reason, status.message) == ("Failed", "CrashLoop", "exit code 1")
    assert status.workers == [RUNNING, failed]
    assert (status.uid, status.observed_generation) == ("u1", 3)


def test_a_worker_without_process_is_pending() -> None:
    status = compose(STANDING, {}, {})
    assert (status.phase, status.reason) == ("Pending", "Starting")
    assert status.workers[0].phase == "Pending"


def test_an_update_that_failed_shows_while_the_old_worker_runs() -> None:
    lack = LocalPhase("Failed", "UnsupportedTemplate", "remove it")
    standing = ResourceState(HELMET, "u1", 4, {EDGE: "edge"}, {EDGE: lack})
    status = compose(standing, {EDGE: RUNNING}, {})
    assert (status.phase, status.reason) == ("Failed", "UnsupportedTemplate")
    assert status.workers == [RUNNING]


def test_a_running_worker_whose_code_was_removed_has_a_condition() -> None:
    standing = ResourceState(HELMET, "u1", 1, {EDGE: "edge"}, missing_code={EDGE: "/opt/rule.py"})
    [worker] = compose(standing, {EDGE: RUNNING}, {}).workers
    assert (worker.phase, worker.reason) == ("Running", "CodeMissing")
    assert "/opt/rule.py is missing" in worker.message
    silent = msgspec.structs.replace(RUNNING, reason="WorkerSilent", message="it hangs")
    assert compose(standing, {EDGE: silent}, {}).workers == [silent]


def test_a_cloud_worker_beside_an_edge_worker_adds_its_own_work_alone() -> None:
    cloud = TaskInfo(inference_number=99, served=7, batches=3)
    status = compose(BOTH, {}, {EDGE: TaskInfo(inference_number=10), CLOUD: cloud})
    total = status.output.task_info
    assert (total.inference_number, total.served, total.batches) == (10, 7, 3)


def test_counts_that_are_not_known_are_left_out_and_not_zero() -> None:
    assert compose(BOTH, {}, {CLOUD: TaskInfo(served=7)}).output == Output()


def test_long_messages_are_cut_to_what_a_body_may_hold() -> None:
    lack = LocalPhase("Failed", "r" * 999, "m" * 9999)
    status = compose(ResourceState(HELMET, "u1", 1, {EDGE: "edge"}, {EDGE: lack}), {}, {})
    assert (len(status.reason), len(status.message)) == (256, 4096)
    assert (len(status.workers[0].reason), len(status.workers[0].message)) == (256, 4096)


async def test_counts_leave_at_most_once_a_second_and_the_last_always(working_node: World) -> None:
    await asyncio.sleep(5)
    before = working_node.gm.reports[HELMET]
    for i in range(100):
        await working_node.gm.says(EDGE, task_info=TaskInfo(inference_number=100 + i))
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    assert 4 <= working_node.gm.reports[HELMET] - before <= 7
    output = working_node.gm.statuses[HELMET].output
    assert output.task_info.inference_number == 199


async def test_a_change_of_phase_leaves_at_once(working_node: World) -> None:
    await working_node.gm.says(EDGE, task_info=TaskInfo(inference_number=11))
    await asyncio.sleep(0.05)
    working_node.launcher.of(EDGE).end(1)
    await asyncio.sleep(0.05)
    assert working_node.gm.statuses[HELMET].reason == "Restarting"


async def test_every_connection_brings_a_sync_and_all_reports_again(working_node: World) -> None:
    working_node.broker.restart()
    await eventually(lambda: not working_node.bus.connected)
    gm, syncs = working_node.gm, len(working_node.gm.syncs)
    gm.statuses.clear()
    await eventually(lambda: set(gm.statuses) == {HELMET, SMALL} and len(gm.syncs) > syncs, 30)


async def test_a_farewell_is_owed_until_the_broker_has_taken_it(working_node: World) -> None:
    process = working_node.launcher.make_stubborn()
    await working_node.gm.delete(HELMET, "u1")
    await asyncio.sleep(1)
    assert HELMET in working_node.gm.statuses  # its worker still runs
    working_node.bus.cut()
    await asyncio.sleep(20)
    assert not process.alive
    assert HELMET in working_node.gm.statuses
    working_node.bus.heal()
    await working_node.gm.forgotten(HELMET)


async def test_an_insert_that_is_repeated_is_acknowledged_again_and_changes_nothing(working_node: World) -> None:
    process, before = working_node.launcher.of(EDGE), working_node.gm.reports[HELMET]
    await working_node.gm.insert(service())
    await eventually(lambda: working_node.gm.reports[HELMET] == before + 1)
    assert working_node.launcher.started == [process]


async def test_a_delete_of_another_uid_leaves_the_service_and_says_whose_it_is(working_node: World) -> None:
    before = working_node.gm.reports[HELMET]
    await working_node.gm.delete(HELMET, "u0")
    await eventually(lambda: working_node.gm.reports[HELMET] == before + 1)
    assert (working_node.gm.statuses[HELMET].uid, working_node.launcher.of(EDGE).signals) == ("u1", [])


async def test_workers_of_two_services_are_told_apart(working_node: World) -> None:
    other = Worker("default", "other-edge-edge0")
    await working_node.gm.insert(model(), service("other", uid="u2"))
    await eventually(lambda: len(working_node.launcher.alive) == 2)
    await working_node.gm.says(other, "failed", owner="other", reason="NoCamera")
    await working_node.gm.reaches(type(HELMET)(HELMET.plural, "default", "other"), "Failed", "NoCamera")
    assert isinstance(working_node.gm.statuses[HELMET], NodeStatus)
    assert working_node.gm.statuses[HELMET].phase == "Running"


@pytest.mark.parametrize("turns", range(4))
async def test_a_stop_that_comes_with_news_is_not_lost(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Python 3.11 asyncio.wait_for would swallow it, and the controller would ignore SIGTERM from then on."""
    with NodeStore(tmp_path / "store.db") as store:
        async with asyncio.TaskGroup() as tasks:
            folders = NodePaths(tmp_path, "edge0")
            supervisor = Supervisor(
                folders, FakeLauncher(), store, tasks, changed=print, missing=print, connected=bool, adopted=print
            )
            due = DueReports()
            reporter = NodeStatusReporter("edge0", MemoryBus("lc.edge0", MemoryBroker()), store, supervisor, due)
            # counts wait for their turn
            monkeypatch.setattr(reporter, "_send_due", lambda: asyncio.sleep(0, 60.0))
            task = tasks.create_task(reporter.run())
            await asyncio.sleep(1)
            due.add(HELMET)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()


async def test_nothing_is_remembered_of_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reporters: list[NodeStatusReporter] = []
    run = NodeStatusReporter.run

    def running(self: NodeStatusReporter) -> Coroutine[None, None, None]:
        reporters.append(self)
        return run(self)

    monkeypatch.setattr(NodeStatusReporter, "run", running)
    async with world(tmp_path) as node:
        await node.gm.insert(model())
        await node.gm.reaches(SMALL, "Ready")
        await node.gm.delete(SMALL, "uid-small")
        await eventually(lambda: SMALL not in node.gm.statuses)
        await asyncio.sleep(5)
        (reporter,) = reporters
        holders = {name: found for name, found in vars(reporter).items() if isinstance(found, dict | set)}
        assert [name for name, found in holders.items() if SMALL in found] == []
