"""Workers that end, crash, refuse to stop or outlive their controller, in simulated time."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from services.lc.paths import Worker
from services.lc.store import NodeStore
from services.lc.supervisor.process import StartError
from tests.integration.lc_world import EDGE, HELMET, World, model, service
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


def gaps(node: World) -> list[float]:
    return [round(b - a, 2) for a, b in itertools.pairwise(node.launcher.times)]


@pytest.mark.parametrize("code", [1, 3])
async def test_a_worker_that_crashes_is_started_again_later_and_later(node: World, code: int) -> None:
    node.launcher.exits = code
    await node.gm.insert(model(), service())
    await asyncio.sleep(400)
    assert gaps(node)[:10] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.parametrize(("ran_s", "pause_s"), [(29.8, 4.0), (30.2, 0.5)])
async def test_a_run_of_thirty_seconds_is_a_stable_one(working_node: World, ran_s: float, pause_s: float) -> None:
    for number in range(1, 5):
        process = working_node.launcher.of(EDGE)
        await asyncio.sleep(ran_s if number == 4 else 0.1)
        process.end(1)
        await eventually(lambda number=number: len(working_node.launcher.started) == number + 1, 10)
    assert gaps(working_node)[-1] == pytest.approx(ran_s + pause_s, abs=0.1)


async def test_three_quick_failures_are_a_crash_loop_that_shows_code_and_last_words(node: World) -> None:
    node.launcher.exits = 1
    node.launcher.lines[EDGE] = "ModuleNotFoundError: No module named 'cv2'"
    await node.gm.insert(model(), service())
    restarting = await node.gm.reaches(HELMET, "Pending", "Restarting")
    assert "exit code 1" in restarting.message
    looping = await node.gm.reaches(HELMET, "Failed", "CrashLoopBackOff")
    assert looping.message == "exit code 1: ModuleNotFoundError: No module named 'cv2'"
    assert looping.workers[0].restarts == 2
    node.launcher.exits = None
    await eventually(lambda: node.launcher.alive, 60)
    await node.works("")


async def test_exit_code_2_is_the_users_mistake_shown_at_once_and_retried_slowly(started_node: World) -> None:
    await started_node.gm.says(EDGE, "failed", reason="ModelInvalid", message="it has no input")
    await started_node.gm.reaches(HELMET, "Failed", "ModelInvalid")
    started_node.launcher.of(EDGE).end(2)
    await eventually(lambda: "exit code 2" in started_node.gm.statuses[HELMET].message)
    status = await started_node.gm.reaches(HELMET, "Failed", "ModelInvalid")
    assert status.message == "exit code 2: it has no input"
    await asyncio.sleep(130)
    assert round(gaps(started_node)[0]) == 60


async def test_last_words_that_arrive_after_the_end_are_shown_all_the_same(node: World) -> None:
    node.launcher.exits = 2
    await node.gm.insert(model(), service())
    await node.gm.reaches(HELMET, "Failed", "InvalidConfiguration")
    for status in ("starting", "running", "completed"):
        await node.gm.says(EDGE, status, reason="Late", message="of the one before", http=f"http://127.0.0.1:{status}")
        await asyncio.sleep(1)
        assert node.gm.statuses[HELMET].message == "exit code 2"
    await node.gm.says(EDGE, "failed", reason="HemUnknown", message="use Margin", http="http://127.0.0.1:1")
    assert (await node.gm.reaches(HELMET, "Failed", "HemUnknown")).message == "exit code 2: use Margin"


async def test_what_cannot_be_started_says_why_and_heals(node: World) -> None:
    node.launcher.refuse = StartError("HostPathMissing", "there is nothing at /code: create it")
    await node.gm.insert(model(), service())
    status = await node.gm.reaches(HELMET, "Failed", "HostPathMissing")
    assert status.message == "there is nothing at /code: create it"
    node.launcher.refuse = None
    await eventually(lambda: node.launcher.alive, 60)
    await node.works()


async def test_a_changed_spec_starts_a_failing_worker_at_once(node: World) -> None:
    node.launcher.exits = 2
    await node.gm.insert(model(), service())
    await node.gm.reaches(HELMET, "Failed")
    node.launcher.exits = None
    await node.gm.insert(service(generation=2, edge={"args": ["--right"]}))
    await eventually(lambda: node.launcher.alive, 1)


@pytest.mark.parametrize(
    ("command", "after_s"),
    [
        ("python steady.py", 5),
        ("/srv/halimede/.venv/bin/python steady.py", 5),
        ("python reports.py", 30),
        ("python late.py", 5),
        ("python early.py", 30),
        ("python -u reports.py", 30),
        ("python -m halimede.compat.sedna steady.py", 30),
        ("python absent.py", 5),
        ("python pipe.py", 5),
        ("python folder.py", 5),
        ("cat /dev/zero", 5),
    ],
)
async def test_a_script_that_never_reports_counts_as_running_later_if_it_may_well_report(
    node: World, tmp_path: Path, command: str, after_s: float
) -> None:
    code = tmp_path / "code"
    (code / "folder.py").mkdir(parents=True)
    (code / "steady.py").write_text("import time")
    (code / "reports.py").write_text("import torch\nfrom halimede.worker import run_edge")
    for name, at in (("early.py", 256 * 1024), ("late.py", 256 * 1024 + 1)):  # where the name ends
        (code / name).write_text("#" * (at - len("halimede")) + "halimede")
    os.mkfifo(code / "pipe.py")
    await node.gm.insert(model(), service(edge={"command": command.split(), "workingDir": str(code)}))
    await node.gm.reaches(HELMET, "Pending", "Starting")
    await node.gm.reaches(HELMET, "Running")
    assert after_s <= asyncio.get_running_loop().time() - node.launcher.times[0] < after_s + 0.5


async def test_a_worker_gets_its_grace_and_is_then_killed(working_node: World) -> None:
    process = working_node.launcher.make_stubborn()
    await working_node.gm.insert(service("before", uid="u2"), service("later", uid="u3"))
    before = asyncio.get_running_loop().time()
    await working_node.loses()
    assert process.signals == ["TERM", "KILL"]
    assert 11 <= asyncio.get_running_loop().time() - before < 11.5


async def test_a_worker_that_even_a_kill_does_not_end_is_given_up(working_node: World) -> None:
    process = working_node.launcher.make_stubborn()
    process.kill = lambda: None  # type: ignore[method-assign]
    before = asyncio.get_running_loop().time()
    await working_node.loses()
    assert 21 <= asyncio.get_running_loop().time() - before < 21.5


async def test_a_clean_stop_stops_all_workers_side_by_side(stopped_node: World) -> None:
    async with stopped_node.lc():
        await stopped_node.gm.insert(model(), model("big"), service(cloud_node="edge0"), service("other", uid="u2"))
        await eventually(lambda: len(stopped_node.launcher.alive) == 3)
        for process in stopped_node.launcher.alive:
            process.stubborn = True
        before = asyncio.get_running_loop().time()
    assert stopped_node.launcher.alive == []
    assert asyncio.get_running_loop().time() - before < 13
    await eventually(lambda: not stopped_node.gm.presences[-1].online)
    assert HELMET in stopped_node.gm.statuses


async def test_a_report_has_256_characters_of_a_reason_and_4096_of_a_message(node: World) -> None:
    node.launcher.refuse = StartError("R" * 300, "m" * 5000)
    await node.gm.insert(model(), service())
    await eventually(lambda: HELMET in node.gm.statuses and node.gm.statuses[HELMET].workers[0].reason == "R" * 256)
    assert node.gm.statuses[HELMET].workers[0].message == "m" * 4096


async def test_workers_outlive_a_killed_controller_and_are_adopted_by_the_next(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        await stopped_node.starts()
    process = stopped_node.launcher.of(EDGE)
    async with stopped_node.lc():
        await stopped_node.gm.reaches(HELMET, "Running")
        await asyncio.sleep(10)
        assert stopped_node.launcher.started == [process]
        process.end(None)
        await eventually(lambda: len(stopped_node.launcher.started) == 2)
    assert stopped_node.launcher.alive == []


async def test_an_adopted_worker_whose_spec_changed_meanwhile_is_replaced(stopped_node: World, tmp_path: Path) -> None:
    async with stopped_node.lc(killed=True):
        await stopped_node.starts()
    process = stopped_node.launcher.of(EDGE)
    stopped_node.config = type(stopped_node.config)("edge0", tmp_path, "127.0.0.1:2883")
    async with stopped_node.lc():
        await eventually(lambda: stopped_node.launcher.alive and stopped_node.launcher.of(EDGE) is not process)
        assert process.signals == ["TERM"]


async def test_a_lost_store_stops_no_worker_before_gm_has_spoken(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        await stopped_node.gm.insert(model(), service(), service("gone", uid="u2"))
        await eventually(lambda: len(stopped_node.launcher.alive) == 2)
    before, helmet = list(stopped_node.launcher.alive), stopped_node.launcher.of(EDGE)
    records = [process.record for process in before]
    stopped_node.launcher.find = lambda _: list(before)  # type: ignore[method-assign]  # by their marks
    stopped_node.config.folders.store.write_bytes(b"damaged" * 1000)
    async with stopped_node.lc():
        await asyncio.sleep(5)
        assert [process.record for process in stopped_node.launcher.alive] == records
        await stopped_node.gm.insert(model(), service())
        await stopped_node.gm.synced()
        await eventually(lambda: len(stopped_node.launcher.alive) == 1)
        assert stopped_node.launcher.of(EDGE) is helmet


async def test_counts_of_a_worker_are_kept_while_it_starts_again(working_node: World) -> None:
    working_node.launcher.of(EDGE).end(1)
    await working_node.gm.reaches(HELMET, "Pending", "Restarting")
    output = working_node.gm.statuses[HELMET].output
    assert (output.task_info.inference_number, output.task_info.upload_cloud_ratio) == (10, 0.5)


@pytest.mark.parametrize(("worker", "owner"), [(EDGE, "other"), (Worker("default", "stranger"), "helmet")])
async def test_info_of_unknown_workers_or_foreign_services_changes_nothing(
    working_node: World, worker: Worker, owner: str
) -> None:
    before = len(working_node.gm.history)
    await working_node.gm.says(worker, "failed", owner=owner)
    await asyncio.sleep(5)
    assert len(working_node.gm.history) == before


async def test_a_start_that_breaks_in_an_unknown_way_ends_nothing_else(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise OverflowError("hunter2")

    with monkeypatch.context() as patch:
        patch.setattr(node.launcher, "start", broken)
        await node.gm.insert(model(), service())
        status = await node.gm.reaches(HELMET, "Failed", "Internal")
        assert "hunter2" not in status.message
    await eventually(lambda: node.launcher.alive, 60)
    await node.works()


async def test_the_health_port_and_the_period_that_a_worker_reports_are_in_its_record(stopped_node: World) -> None:
    node = stopped_node
    async with node.lc(killed=True):
        await node.starts()
        await node.gm.says(EDGE, http="http://127.0.0.1:5", period_s=7.0)
        await node.gm.reaches(HELMET, "Running")
        await node.gm.says(EDGE, http="http://127.0.0.1:4", period_s=6.0)
        await asyncio.sleep(1)
    with NodeStore(node.config.folders.store) as store:
        assert [(record.http, record.period_s) for record in store.processes()] == [("http://127.0.0.1:4", 6.0)]


async def test_without_broker_and_gm_everything_that_the_store_holds_starts(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running(), node.lc():
        await node.starts()
    node.broker.stop()
    async with node.lc():
        await eventually(lambda: node.launcher.alive)
        node.launcher.of(EDGE).end(1)
        await asyncio.sleep(1)
        assert node.launcher.of(EDGE)
