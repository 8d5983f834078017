"""A worker that cannot start with new settings returns to those with which it ran, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from halimede.models.desired_state import read
from services.lc.supervisor.process import Process, ProcessSpec, Start, StartError
from tests.integration.lc_world import EDGE, HELMET, FakeLauncher, World, model, service
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

MISSING = StartError("HostPathMissing", "there is nothing at /code on this node: create it")


class PickyLauncher(FakeLauncher):
    """Starts processes; ``fails`` says for the arguments of each how it fails: an exit code, or an error."""

    def __init__(self, fails: Callable[[str], int | StartError | None]) -> None:
        super().__init__()
        self.fails = fails

    def start(self, start: Start) -> Process:
        fails = self.fails(" ".join(start.spec.argv))
        self.refuse, self.exits = (fails, None) if isinstance(fails, StartError) else (None, fails)
        return super().start(start)


def arguments(node: World) -> str:
    """The arguments of the edge worker's process."""
    start = node.launcher.of(EDGE).start
    return " ".join(start.spec.argv)


async def runs_with(node: World, generation: int, argument: str, fails: int | StartError | None) -> None:
    """Give the service new arguments, which fail from now on in this way."""
    node.launcher = node.launcher if isinstance(node.launcher, PickyLauncher) else PickyLauncher(lambda _: None)
    node.launcher.fails = lambda arguments: fails if argument in arguments else None
    await node.gm.insert(service(generation=generation, edge={"args": [argument]}))


async def running(node: World, argument: str = "--good") -> None:
    """The service runs with an argument, for long enough that this counts."""
    await runs_with(node, 1, argument, None)
    await node.starts(model())
    await asyncio.sleep(1)
    await node.works("")


@pytest.fixture
def stopped_node(stopped_node: World) -> World:
    stopped_node.launcher = PickyLauncher(lambda _: None)
    return stopped_node


@pytest.fixture
async def node(stopped_node: World) -> AsyncIterator[World]:
    async with stopped_node.lc():
        yield stopped_node


@pytest.mark.parametrize(
    ("fails", "within_s", "says"),
    [
        (2, 2, "exit code 2"),
        (1, 6, "exit code 1"),
        (MISSING, 2, "/code"),
        (StartError("CannotStart", "no limits"), 6, "no limits"),
    ],
)
async def test_a_worker_that_cannot_start_with_new_settings_runs_with_the_old_ones(
    node: World, fails: int | StartError, within_s: float, says: str
) -> None:
    await running(node)
    await runs_with(node, 2, "--bad", fails)
    await asyncio.sleep(within_s)
    assert "--good" in arguments(node)
    await node.works()
    status = await node.gm.reaches(HELMET, "Running", generation=2)
    assert (status.workers[0].phase, status.workers[0].reason) == ("Running", "SettingsRefused")
    assert says in status.workers[0].message
    started = len(node.launcher.started)
    await asyncio.sleep(300)
    assert len(node.launcher.started) == started


async def test_settings_are_not_refused_if_the_controller_is_at_fault(node: World) -> None:
    await running(node)
    await runs_with(node, 2, "--new", StartError("Internal", "see its log"))
    await asyncio.sleep(300)
    assert not node.launcher.alive
    await node.gm.reaches(HELMET, "Failed", "Internal")


@pytest.mark.parametrize(("ran_s", "argument"), [(29.8, "--bad"), (30.2, "--good")])
async def test_settings_of_a_script_that_never_reports_are_proven_after_thirty_seconds(
    node: World, ran_s: float, argument: str
) -> None:
    for generation, name, ends in ((1, "--good", None), (2, "--bad", 2)):
        await runs_with(node, generation, name, ends)
        if generation == 1:
            await node.starts(model())
            await asyncio.sleep(ran_s)
    await asyncio.sleep(2)
    assert argument in " ".join(node.launcher.started[-1].start.spec.argv)


@pytest.mark.parametrize("next_argument", ["--better", "--good"])
async def test_the_next_settings_are_tried_and_refused_ones_again_after_them(node: World, next_argument: str) -> None:
    await running(node)
    await runs_with(node, 2, "--bad", 2)
    await asyncio.sleep(2)
    await runs_with(node, 3, next_argument, None)
    await asyncio.sleep(2)
    assert next_argument in arguments(node)
    await node.gm.says(EDGE)
    status = await node.gm.reaches(HELMET, "Running", "", generation=3)
    assert status.workers[0].reason == ""
    await runs_with(node, 4, "--bad", None)
    await asyncio.sleep(2)
    assert "--bad" in arguments(node)


async def test_a_new_controller_adopts_the_worker_with_its_old_settings_and_starts_those_again(
    stopped_node: World,
) -> None:
    async with stopped_node.lc(killed=True):
        await running(stopped_node)
        await runs_with(stopped_node, 2, "--bad", 2)
        await asyncio.sleep(2)
        process = stopped_node.launcher.of(EDGE)
    async with stopped_node.lc():
        for _ in range(10):
            await stopped_node.gm.says(EDGE)
            await asyncio.sleep(4)
        assert stopped_node.launcher.of(EDGE) is process
        await stopped_node.gm.reaches(HELMET, "Running")
        assert stopped_node.gm.statuses[HELMET].workers[0].reason == "SettingsRefused"
        started = len(stopped_node.launcher.started)
        process.end(-9)
        await asyncio.sleep(2)
        assert "--good" in arguments(stopped_node)
        assert len(stopped_node.launcher.started) == started + 1


async def test_when_the_old_settings_fail_as_well_the_new_ones_are_tried_again_later_and_later(node: World) -> None:
    await running(node)
    assert isinstance(node.launcher, PickyLauncher)
    await runs_with(node, 2, "--new", 1)
    node.launcher.fails = lambda _: 1  # the machine is at fault, not the settings
    await asyncio.sleep(900)
    assert len(node.launcher.times) < 60
    node.launcher.fails = lambda arguments: 1 if "--good" in arguments else None
    await eventually(lambda: node.launcher.alive, 130)
    assert "--new" in arguments(node)


@pytest.mark.parametrize(
    ("status", "after_s"),
    [("running", 0), ("starting", 1), ("completed", 1)],  # the first one is of the process before
)
async def test_a_late_report_or_one_of_a_worker_that_does_not_run_proves_nothing(
    node: World, status: str, after_s: float
) -> None:
    await running(node)
    old = node.launcher.of(EDGE)
    await runs_with(node, 2, "--bad", None)
    await eventually(lambda: node.launcher.alive and node.launcher.of(EDGE) is not old)
    await asyncio.sleep(after_s)
    await node.gm.says(EDGE, status)
    await asyncio.sleep(0.2)
    assert isinstance(node.launcher, PickyLauncher)
    node.launcher.fails = lambda arguments: 2 if "--bad" in arguments else None
    node.launcher.of(EDGE).end(2)
    await asyncio.sleep(2)
    assert "--good" in arguments(node)


async def test_the_stored_settings_are_readable_by_their_user_alone(node: World) -> None:
    await running(node)
    await asyncio.sleep(1)
    stored = node.config.folders.worker(EDGE) / "rollout.json"
    assert stored.stat().st_mode & 0o777 == 0o600


def continued(node: World) -> bool:
    """Whether the file of the edge worker says that its next process continues its sessions."""
    desired = read(node.config.folders.worker(EDGE) / "model.json", "model.json")
    return desired.successor


async def ends(node: World, *bodies: dict[str, Any]) -> bool:
    """Send an edit that ends the edge worker's process; return what its file said then."""
    process = node.launcher.make_stubborn()
    for body in bodies:
        await node.gm.insert(body)
    await eventually(lambda: process.signals)
    said = continued(node)
    process.end(0)
    return said


async def test_a_worker_that_only_gets_new_settings_learns_that_it_has_a_successor(node: World) -> None:
    source = {"cameras": ["cam0"]}
    await node.starts(model(), service(source=source))
    assert not continued(node)
    assert await ends(node, service(generation=2, source=source, edge={"args": ["--new"]}))
    await eventually(lambda: node.launcher.alive)
    assert not continued(node), "its successor has none yet"
    # the broker has the sessions of the new cameras apart: what is left in the old one would not be read
    assert not await ends(node, service(generation=3, source={"cameras": ["cam1"]}))
    await eventually(lambda: node.launcher.alive)
    assert not await ends(node, service(uid="u2", source={"cameras": ["cam1"]}))
    await eventually(lambda: node.launcher.alive)
    process = node.launcher.make_stubborn()
    await node.gm.delete(HELMET, "u2")
    await eventually(lambda: process.signals)
    assert not continued(node)
    process.end(0)


@pytest.mark.parametrize(("variable", "other"), [("HALIMEDE_BROKER", "b:1883"), ("HALIMEDE_CREDENTIALS", "/other")])
def test_a_worker_with_another_broker_or_user_has_other_sessions(variable: str, other: str) -> None:
    env = {"HALIMEDE_BROKER": "a:1883", "HALIMEDE_CREDENTIALS": "/own", "WORKER_NAME": "helmet-edge-edge0"}
    current, same = (ProcessSpec((command,), env, "/") for command in ("old", "new"))
    assert current.has_same_sessions(same)
    changed = ProcessSpec(("old",), {**env, variable: other}, "/")
    assert not current.has_same_sessions(changed)
    assert not changed.has_same_sessions(current)


async def test_a_worker_whose_service_is_deleted_while_it_stops_for_an_edit_has_no_successor(node: World) -> None:
    await running(node)
    process = node.launcher.make_stubborn()
    await runs_with(node, 2, "--new", None)
    await eventually(lambda: process.signals)
    assert continued(node)
    await node.gm.delete(HELMET, "u1", 2)
    await eventually(lambda: not continued(node))
    process.end(0)


async def test_an_adopted_worker_learns_of_its_successor_as_well(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        await running(stopped_node)
    process = stopped_node.launcher.make_stubborn()
    async with stopped_node.lc():
        await stopped_node.gm.insert(service(generation=2, edge={"args": ["--new"]}))
        await eventually(lambda: process.signals)
        assert continued(stopped_node)
        process.end(0)
