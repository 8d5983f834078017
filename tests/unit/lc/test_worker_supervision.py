"""Workers that end, crash, refuse to stop or outlive their controller, in simulated time."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from halimede.names import Key
from services.lc.supervisor.process import StartError
from tests.integration.lc_world import EDGE, HELMET, World, model, service, world
from tests.simulated import eventually, simulated


def gaps(node: World) -> list[float]:
    return [round(b - a, 2) for a, b in itertools.pairwise(node.launcher.times)]


@simulated
async def test_a_worker_that_crashes_is_started_again_later_and_later(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        node.launcher.exits = 1
        await node.gm.insert(model(), service())
        await asyncio.sleep(400)
        assert gaps(node)[:10] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@simulated
async def test_a_stable_run_resets_the_back_off(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        for _ in range(3):
            node.launcher.of(EDGE).end(1)
            await asyncio.sleep(31 + 4)
        node.launcher.of(EDGE).end(1)
        before = len(node.launcher.started)
        await asyncio.sleep(0.6)
        assert len(node.launcher.started) == before + 1


@simulated
async def test_three_quick_failures_are_a_crash_loop_that_shows_code_and_last_words(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
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
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running", "")


@simulated
async def test_a_looping_worker_that_lives_for_a_moment_is_not_called_running(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service())
        for i in range(4):
            await eventually(lambda i=i: len(node.launcher.started) == i + 1, 60)
            await asyncio.sleep(7)
            node.launcher.of(EDGE).end(-11)
        status = await node.gm.reaches(HELMET, "Failed", "CrashLoopBackOff")
        assert "killed by signal 11" in status.message
        at = [i for i, (_, key, s) in enumerate(node.gm.history) if key == HELMET and s and s.phase == "Failed"]
        assert all(s and s.phase == "Failed" for _, key, s in node.gm.history[at[0] :] if key == HELMET)


@simulated
async def test_exit_code_2_is_the_users_mistake_shown_at_once_and_retried_slowly(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service())
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE, "failed", reason="ModelInvalid", message="it has no input")
        await node.gm.reaches(HELMET, "Failed", "ModelInvalid")
        node.launcher.of(EDGE).end(2)
        await eventually(lambda: "exit code 2" in node.gm.statuses[HELMET].message)
        status = await node.gm.reaches(HELMET, "Failed", "ModelInvalid")
        assert status.message == "exit code 2: it has no input"
        await asyncio.sleep(130)
        assert round(gaps(node)[0]) == 60


@simulated
async def test_last_words_that_arrive_after_the_end_are_shown_all_the_same(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        node.launcher.exits = 2
        await node.gm.insert(model(), service())
        await node.gm.reaches(HELMET, "Failed", "InvalidConfiguration")
        await node.gm.says(EDGE, "failed", reason="HemUnknown", message="use Margin")
        assert (await node.gm.reaches(HELMET, "Failed", "HemUnknown")).message == "exit code 2: use Margin"


@simulated
async def test_a_worker_that_could_not_say_why_any_more_has_its_reason_from_its_last_line(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service())
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")
        line = "halimede worker: ModelStuck: the model has not answered for 30 s and the event loop with it"
        node.launcher.lines[EDGE] = line
        node.launcher.of(EDGE).end(2)
        assert (await node.gm.reaches(HELMET, "Failed", "ModelStuck")).message == f"exit code 2: {line}"
        node.launcher.lines[EDGE] = "halimede edge worker: SERVICE_NAME: write a name"
        await eventually(lambda: node.launcher.alive, 70)
        node.launcher.of(EDGE).end(2)
        await node.gm.reaches(HELMET, "Failed", "InvalidConfiguration")


@simulated
async def test_what_cannot_be_started_says_why_and_heals(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        node.launcher.refuse = StartError("HostPathMissing", "there is nothing at /code: create it")
        await node.gm.insert(model(), service())
        status = await node.gm.reaches(HELMET, "Failed", "HostPathMissing")
        assert status.message == "there is nothing at /code: create it"
        node.launcher.refuse = None
        await eventually(lambda: node.launcher.alive, 60)
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")


@simulated
async def test_a_changed_spec_starts_a_failing_worker_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        node.launcher.exits = 2
        await node.gm.insert(model(), service())
        await node.gm.reaches(HELMET, "Failed")
        node.launcher.exits = None
        await node.gm.insert(service(generation=2, edge={"args": ["--right"]}))
        await eventually(lambda: node.launcher.alive, 1)


@simulated
@pytest.mark.parametrize(
    ("command", "after_s"),
    [
        ("python steady.py", 5),
        ("/srv/halimede/.venv/bin/python steady.py", 5),
        ("python reports.py", 30),
        ("python -u reports.py", 30),
        ("python -m halimede.compat.sedna steady.py", 30),
        ("python absent.py", 5),
        ("python pipe.py", 5),
        ("python folder.py", 5),
        ("cat /dev/zero", 5),
    ],
)
async def test_a_script_that_never_reports_counts_as_running_later_if_it_may_well_report(
    tmp_path: Path, command: str, after_s: float
) -> None:
    code = tmp_path / "code"
    (code / "folder.py").mkdir(parents=True)
    (code / "steady.py").write_text("import time")
    (code / "reports.py").write_text("import torch\nfrom halimede.worker import run_edge")
    os.mkfifo(code / "pipe.py")
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service(edge={"command": command.split(), "workingDir": str(code)}))
        await node.gm.reaches(HELMET, "Pending", "Starting")
        started = asyncio.get_running_loop().time()
        await node.gm.reaches(HELMET, "Running")
        assert after_s - 2 < asyncio.get_running_loop().time() - started < after_s + 2


@simulated
async def test_a_worker_of_ours_is_not_called_running_before_it_reports_however_slow_it_starts(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service())
        await asyncio.sleep(120)
        status = node.gm.statuses[HELMET]
        assert (status.phase, status.reason) == ("Pending", "Starting")
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")


@simulated
async def test_a_worker_that_says_that_it_starts_is_pending_for_as_long_as_it_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service())
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE, "starting")
        await asyncio.sleep(20)
        assert node.gm.statuses[HELMET].phase == "Pending"


@simulated
async def test_a_worker_that_has_nothing_to_answer_with_fails_with_its_own_words_until_it_has(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await node.gm.insert(model(), service())
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE, "starting", reason="ModelInvalid", message="it has no outputs")
        status = await node.gm.reaches(HELMET, "Failed", "ModelInvalid")
        assert status.message == "it has no outputs"
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")
        assert len(node.launcher.started) == 1


@simulated
async def test_a_worker_gets_its_grace_and_is_then_killed(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        process = node.launcher.of(EDGE)
        process.stubborn = True
        before = asyncio.get_running_loop().time()
        await node.gm.delete(HELMET, "u1")
        await node.gm.forgotten(HELMET)
        assert process.signals == ["TERM", "KILL"]
        assert 10 < asyncio.get_running_loop().time() - before < 13


@simulated
async def test_a_clean_stop_stops_all_workers_side_by_side(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc():
            await node.gm.insert(model(), model("big"), service(cloud_node="edge0"), service("other", uid="u2"))
            await eventually(lambda: len(node.launcher.alive) == 3)
            for process in node.launcher.alive:
                process.stubborn = True
            before = asyncio.get_running_loop().time()
        assert node.launcher.alive == []
        assert asyncio.get_running_loop().time() - before < 13
        await eventually(lambda: not node.gm.presences[-1].online)
        assert HELMET in node.gm.statuses


@simulated
async def test_workers_outlive_a_killed_controller_and_are_adopted_by_the_next(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc(killed=True):
            await node.gm.insert(model(), service())
            await eventually(lambda: node.launcher.alive)
        process = node.launcher.of(EDGE)
        async with node.lc():
            await node.gm.reaches(HELMET, "Running")
            await asyncio.sleep(10)
            assert node.launcher.started == [process]
            process.end(None)
            await eventually(lambda: len(node.launcher.started) == 2)
        assert node.launcher.alive == []


@simulated
async def test_an_adopted_worker_whose_spec_changed_meanwhile_is_replaced(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc(killed=True):
            await node.gm.insert(model(), service())
            await eventually(lambda: node.launcher.alive)
        process = node.launcher.of(EDGE)
        node.config = type(node.config)("edge0", tmp_path, "127.0.0.1:2883")
        async with node.lc():
            await eventually(lambda: node.launcher.alive and node.launcher.of(EDGE) is not process)
            assert process.signals == ["TERM"]


@simulated
async def test_without_broker_and_gm_everything_that_the_store_holds_starts(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(), service())
        await eventually(lambda: node.launcher.alive)
    node.broker.stop()
    async with node.lc():
        await eventually(lambda: node.launcher.alive)
        node.launcher.of(EDGE).end(1)
        await asyncio.sleep(1)
        assert node.launcher.of(EDGE)


@simulated
async def test_a_lost_store_stops_no_worker_before_gm_has_spoken(tmp_path: Path) -> None:
    node = World(tmp_path)
    async with node.gm.running():
        async with node.lc(killed=True):
            await node.gm.insert(model(), service(), service("gone", uid="u2"))
            await eventually(lambda: len(node.launcher.alive) == 2)
        before, helmet = list(node.launcher.alive), node.launcher.of(EDGE)
        records = [process.record for process in before]
        node.launcher.find = lambda _: list(before)  # type: ignore[method-assign]  # by their marks
        node.config.folders.store.write_bytes(b"damaged" * 1000)
        async with node.lc():
            await asyncio.sleep(5)
            assert [process.record for process in node.launcher.alive] == records
            await node.gm.insert(model(), service())
            await node.gm.synced()
            await eventually(lambda: len(node.launcher.alive) == 1)
            assert node.launcher.of(EDGE) is helmet


@simulated
async def test_counts_of_a_worker_are_kept_while_it_starts_again(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        node.launcher.of(EDGE).end(1)
        await node.gm.reaches(HELMET, "Pending", "Restarting")
        output = node.gm.statuses[HELMET].output
        assert output
        assert output.task_info
        assert (output.task_info.inference_number, output.task_info.upload_cloud_ratio) == (10, 0.5)


@pytest.mark.parametrize("owner", ["other", "helmet"])
@simulated
async def test_info_of_unknown_workers_or_foreign_services_changes_nothing(tmp_path: Path, owner: str) -> None:
    async with world(tmp_path, inserted=True) as node:
        before = len(node.gm.history)
        stranger = type(EDGE)("default", "stranger") if owner == "helmet" else EDGE
        await node.gm.says(stranger, "failed", owner=owner)
        await asyncio.sleep(5)
        assert len(node.gm.history) == before
        assert Key("jointinferenceservices", "default", "other") not in node.gm.statuses


@simulated
async def test_a_start_that_breaks_in_an_unknown_way_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise OverflowError("hunter2")

    async with world(tmp_path) as node:
        with monkeypatch.context() as patch:
            patch.setattr(node.launcher, "start", broken)
            await node.gm.insert(model(), service())
            status = await node.gm.reaches(HELMET, "Failed", "Internal")
            assert "hunter2" not in status.message
        await eventually(lambda: node.launcher.alive, 60)
        await node.gm.says(EDGE)
        await node.gm.reaches(HELMET, "Running")


@simulated
async def test_a_worker_that_has_not_been_started_yet_is_not_called_restarting(tmp_path: Path) -> None:
    async with world(tmp_path, inserted=True) as node:
        assert not [s for _, key, s in node.gm.history if key == HELMET and s and s.reason == "Restarting"]
