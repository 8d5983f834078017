"""A worker that runs is told another model; what it refuses, and what ends it, does not keep it from answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede.messages import ModelInUse, NodeStatus, WorkerInfo
from halimede.models.desired_state import Desired, DesiredModel, read
from services.lc.paths import NodePaths
from services.lc.supervisor import rollout_keeper, supervisor
from services.lc.supervisor.process import ProcessSpec, Start
from services.lc.supervisor.rollout_keeper import RolloutKeeper, models_in_use
from services.lc.supervisor.worker_rollout import Refusal, RefusedSettings, WorkerRollout, save
from services.lc.supervisor.worker_state import WorkerState
from tests.integration.lc_world import EDGE, HELMET, World, model, service
from tests.simulated import eventually, suspend
from tests.unit.lc.test_model_preparation import record_threads

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
PROVEN_S = 30.0


class Node:
    """A node with one edge worker for which the test speaks: it takes every model but those that it is to refuse."""

    def __init__(self, node: World) -> None:
        self.node, self.gm, self.launcher = node, node.gm, node.launcher
        self.refuses: set[str] = set()
        self.in_use: DesiredModel | None = None

    def told(self) -> DesiredModel:
        desired = read(self.node.config.folders.worker(EDGE) / "model.json", "model.json")
        assert desired.only
        return desired.only

    async def speaks(self) -> None:
        """Say how the worker stands with what it was told last."""
        told = self.told()
        refused = told.path.rpartition("_")[2] in self.refuses
        if not refused or self.in_use is None:
            self.in_use = told
        using = self.in_use
        said = ModelInUse(digest=using.digest, version=using.version, mark=told.fingerprint)
        if refused:
            said = ModelInUse(
                digest=using.digest, version=using.version, mark=told.fingerprint, refused=told.digest,
                reason="ModelInvalid", message="it has two inputs",
            )  # fmt: skip
        await self.gm.says(EDGE, model=said)

    async def speaks_for(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await self.speaks()
            await asyncio.sleep(1)

    async def starts(self) -> None:
        """The worker has been started anew: it begins with what its file says."""
        await eventually(lambda: self.launcher.alive, 120)
        self.in_use = None
        await self.gm.says(EDGE, "starting", model=ModelInUse())

    async def asks(self, name: str, generation: int) -> None:
        """Change the Model, and wait until it is on the node."""
        await self.gm.insert(changed(name, generation))
        await asyncio.sleep(2)

    async def answers(self, name: str, generation: int, reason: str = "") -> NodeStatus:
        """Change the Model; the worker speaks, and its service runs with this reason."""
        await self.asks(name, generation)
        await self.speaks()
        return await self.reason(reason)

    async def crashes(self, code: int) -> None:
        """The process ends, and is started anew."""
        self.launcher.of(EDGE).end(code)
        await self.starts()

    def file(self) -> str:
        return self.told().path.rpartition("_")[2]

    async def reason(self, reason: str) -> NodeStatus:
        return await self.gm.reaches(HELMET, "Running", reason)


def changed(name: str, generation: int) -> dict[str, Any]:
    return model(generation=generation, url=f"/models/{name}")


async def answering(node: World, *, seconds: float = PROVEN_S + 5) -> Node:
    """A node whose worker has answered with model ``a`` for some time."""
    made = Node(node)
    await node.gm.insert(changed("a", 1), service())
    await made.starts()
    await made.speaks_for(seconds)
    await made.reason("")
    return made


async def refusing(world: World) -> Node:
    """A node whose worker answers with model ``a`` and did not take ``b``."""
    node = await answering(world)
    node.refuses = {"b"}
    await node.answers("b", 2, "RolloutFailed")
    return node


@pytest.fixture
def fresh_node(node: World) -> Node:
    return Node(node)


@pytest.fixture
async def answering_node(node: World) -> Node:
    return await answering(node)


@pytest.fixture
async def refusing_node(node: World) -> Node:
    return await refusing(node)


async def test_a_changed_model_is_told_to_the_worker_that_runs(answering_node: Node) -> None:
    await answering_node.asks("b", 2)
    assert answering_node.file() == "b"
    await answering_node.speaks()
    await answering_node.reason("")
    assert (len(answering_node.launcher.started), answering_node.launcher.alive[0].signals) == (1, [])
    await eventually(lambda: str(answering_node.gm.statuses[HELMET].workers[0].model).count("_models_b") == 2)


async def test_files_are_checked_in_a_thread_before_the_start_of_a_worker_and_before_a_new_model(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive may have thousands of files, and the loop must not wait."""
    before_starts = record_threads(monkeypatch, supervisor, "is_intact")
    before_models = record_threads(monkeypatch, rollout_keeper, "is_intact")
    running = await answering(node)
    await running.asks("b", 2)
    assert running.file() == "b"
    assert (set(before_starts), set(before_models)) == ({False}, {False})


@pytest.mark.parametrize("reports", [True, False], ids=["a worker that takes no other model", "a script"])
async def test_a_process_that_does_not_take_the_changed_model_is_started_anew(fresh_node: Node, reports: bool) -> None:
    await fresh_node.gm.insert(changed("a", 1), service())
    await eventually(lambda: fresh_node.launcher.alive)
    if reports:
        await fresh_node.gm.says(EDGE)
        await fresh_node.reason("")
    await fresh_node.asks("b", 2)
    await eventually(lambda: len(fresh_node.launcher.started) == 2, 20)
    start = fresh_node.launcher.started[1].start
    assert start.spec.env["MODEL_URL"].endswith("b")


async def test_a_refused_model_changes_nothing_but_the_condition_and_the_next_one_heals_it(
    answering_node: Node,
) -> None:
    answering_node.refuses = {"b"}
    status = await answering_node.answers("b", 2, "RolloutFailed")
    assert "ModelInvalid: it has two inputs" in status.message
    assert "is kept" in status.message
    assert (status.workers[0].phase, status.workers[0].restarts) == ("Running", 0)
    await answering_node.answers("c", 3)
    assert len(answering_node.launcher.started) == 1


async def test_a_refused_model_that_is_taken_back_and_asked_for_once_more_is_tried_once_more(
    refusing_node: Node,
) -> None:
    await refusing_node.answers("a", 3)
    assert refusing_node.file() == "a"
    refusing_node.refuses = set()
    await refusing_node.answers("b", 4)
    assert refusing_node.file() == "b"


async def test_a_worker_that_crashes_after_a_refusal_begins_with_the_model_that_works(refusing_node: Node) -> None:
    await refusing_node.crashes(-11)
    assert refusing_node.file() == "a"
    await refusing_node.speaks_for(60)
    status = await refusing_node.reason("RolloutFailed")
    assert "it has two inputs" in status.message
    report = status.workers[0].model
    assert report.refused.endswith("b")
    assert refusing_node.file() == "a"


async def test_a_worker_does_not_begin_with_a_model_that_works_if_its_file_is_damaged(refusing_node: Node) -> None:
    model_file = refusing_node.node.config.folders.models / "sha256" / "_models_a"
    model_file.chmod(0o600)
    model_file.write_bytes(b"damaged")
    await refusing_node.crashes(-11)
    assert refusing_node.file() == "b"


async def test_a_refusal_outlives_the_controller(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        node = await refusing(stopped_node)
    async with stopped_node.lc():
        await asyncio.sleep(2)
        await node.speaks()
        await node.reason("RolloutFailed")
        await node.crashes(-11)
        assert node.file() == "a"
        await node.speaks_for(20)
        assert node.file() == "a"
        await node.reason("RolloutFailed")


async def test_an_adopted_worker_is_given_the_model_that_changed_meanwhile(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        node = await answering(stopped_node)
    async with stopped_node.lc():
        await node.gm.insert(changed("b", 2))
        await asyncio.sleep(5)
        await node.speaks()
        await eventually(lambda: node.file() == "b")
        await node.speaks()
        await node.reason("")
        assert len(node.launcher.started) == 1


async def test_an_adopted_worker_that_takes_no_other_model_goes_on_while_nothing_changes(stopped_node: World) -> None:
    async with stopped_node.lc(killed=True):
        node = Node(stopped_node)
        await node.gm.insert(changed("a", 1), service())
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE)
        await node.reason("")
    async with stopped_node.lc():
        await asyncio.sleep(60)
        await node.gm.says(EDGE)
        await asyncio.sleep(60)
        assert len(node.launcher.started) == 1
        await node.asks("b", 2)
        await eventually(lambda: len(node.launcher.started) == 2)


async def test_a_model_that_ends_its_worker_twice_before_it_has_proved_itself_is_not_told_again(
    answering_node: Node,
) -> None:
    await answering_node.asks("b", 2)
    for seconds in (0, PROVEN_S / 2):
        assert answering_node.file() == "b"
        await answering_node.speaks_for(seconds)
        await answering_node.crashes(-9)
        assert answering_node.file() == "a"
        await answering_node.speaks_for(3)
    assert answering_node.file() == "a"
    status = await answering_node.reason("RolloutFailed")
    assert "ModelCrashed" in status.message
    assert "killed by signal 9" in status.message
    await answering_node.speaks_for(100)
    assert (answering_node.file(), len(answering_node.launcher.started)) == ("a", 3)
    await answering_node.asks("c", 3)
    assert answering_node.file() == "c"


async def test_the_first_model_is_kept_from_its_first_word_on(node: World) -> None:
    rollout = await answering(node, seconds=1)
    rollout.refuses = {"b"}
    await rollout.asks("b", 2)
    await rollout.speaks()
    await rollout.crashes(1)
    assert rollout.file() == "a"


async def test_a_first_model_that_is_bad_fails_and_a_changed_one_starts_the_worker_at_once(fresh_node: Node) -> None:
    await fresh_node.gm.insert(changed("bad", 1), service())
    await fresh_node.starts()
    await fresh_node.gm.says(EDGE, "failed", reason="ModelInvalid", message="no model")
    fresh_node.launcher.of(EDGE).end(2)
    await fresh_node.gm.reaches(HELMET, "Failed", "ModelInvalid")
    await fresh_node.asks("a", 2)
    await eventually(lambda: fresh_node.launcher.alive, 5)
    assert fresh_node.file() == "a"


async def test_a_model_that_another_process_takes_is_refused_no_more(refusing_node: Node) -> None:
    refusing_node.refuses = set()
    await refusing_node.gm.insert(service(generation=2, edge={"resources": {"limits": {"memory": "2Gi"}}}))
    await eventually(lambda: len(refusing_node.launcher.started) == 2)
    await refusing_node.starts()
    assert refusing_node.file() == "b"
    await refusing_node.speaks()
    await refusing_node.gm.reaches(HELMET, "Running", "", generation=2)


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.unlink() or file.write_bytes(b"damaged")])
async def test_a_wish_that_cannot_be_written_is_told_later_though_its_model_has_vanished(
    answering_node: Node, damage: Callable[[Path], Any]
) -> None:
    file = answering_node.node.config.folders.worker(EDGE) / "model.json"
    aside = file.rename(file.with_name("aside"))
    file.mkdir()  # what no file can replace
    await answering_node.asks("b", 2)
    assert "cannot be written" in (await answering_node.reason("RolloutFailed")).message
    model_file = answering_node.node.config.folders.models / "sha256" / "_models_b"
    damage(model_file)
    file.rmdir()
    aside.rename(file)
    await answering_node.speaks()
    await eventually(lambda: model_file.is_file() and model_file.read_bytes() == b"m")
    assert answering_node.file() == "a"
    await answering_node.speaks()
    await eventually(lambda: answering_node.file() == "b")
    await answering_node.speaks()
    await answering_node.reason("")


def test_a_refusal_is_of_one_model_alone() -> None:
    models = [DesiredModel(name="small", path=f"/{number}") for number in range(10)]
    for refused in models:
        rollout = WorkerRollout(refused=Refusal(model_mark=refused.fingerprint))
        assert [model for model in models if rollout.refusal(model)] == [refused]
        assert [model for model in models if rollout.with_desired(model).refused] == [refused]
    assert rollout.refusal(None) is None


def test_all_models_that_a_worker_has_or_may_return_to_are_in_use() -> None:
    start = Start(EDGE, HELMET, "u1", "edge", ProcessSpec((), {}, ""), Path("/first"), files=(Path("/code"),))
    entry = WorkerState(EDGE, HELMET, "u1", "edge", "new", "new", start)
    entry.assignment.model = DesiredModel(name="small", path="/assigned")
    entry.assignment.rollout = WorkerRollout(
        good=DesiredModel(name="small", path="/good"), settings=ProcessSpec((), {"MODEL_URL": "/before"}, "")
    )
    report = ModelInUse(digest="reported")
    entry.info = WorkerInfo(name="w", namespace="default", owner_name="s", status="running", model=report)
    paths = {Path(f"/{name}") for name in ("first", "code", "assigned", "good", "before")}
    assert set(models_in_use(entry)) == {*paths, "reported"}


def test_a_process_that_takes_no_other_model_starts_with_the_one_of_its_settings(keeper: RolloutKeeper) -> None:
    start = Start(EDGE, HELMET, "u1", "edge", ProcessSpec((), {}, ""), Path("/first"))
    for settings, model_file in ((start, Path("/first")), (None, None)):
        assert keeper.assign_first(WorkerState(EDGE, HELMET, "u1", "edge", "new", "new", settings), ()) == model_file


A, B, GOOD = (DesiredModel(name="small", path=f"/{name}", digest=name * 64) for name in "abc")
PROVEN = WorkerRollout(good=GOOD, spec_hash="now", struck="x", strikes=1)
REFUSED_A = WorkerRollout(refused=Refusal(model_mark=A.fingerprint, digest=A.digest, reason="Bad", message="text"))


@pytest.mark.parametrize(
    ("before", "report", "proven", "after"),
    [
        (WorkerRollout(), {}, False, WorkerRollout(good=A, spec_hash="now")),
        (WorkerRollout(), {"canary_version": "2"}, True, WorkerRollout()),
        (WorkerRollout(), {"mark": "0"}, True, WorkerRollout()),
        (WorkerRollout(), {"mark": "z"}, True, WorkerRollout()),
        (WorkerRollout(), {"mark": "", "digest": B.digest}, True, WorkerRollout()),
        (WorkerRollout(), {"mark": "", "digest": A.digest}, True, WorkerRollout(good=A, spec_hash="now")),
        (PROVEN, {}, False, PROVEN),
        (PROVEN, {}, True, WorkerRollout(good=A, spec_hash="now")),
        (msgspec.structs.replace(PROVEN, spec_hash="a"), {}, False, WorkerRollout(good=A, spec_hash="now")),
        (msgspec.structs.replace(PROVEN, spec_hash="z"), {}, False, WorkerRollout(good=A, spec_hash="now")),
        (REFUSED_A, {}, False, WorkerRollout(good=A, spec_hash="now")),
        (REFUSED_A, {"canary_version": "2"}, False, WorkerRollout()),
        (WorkerRollout(), {"refused": A.digest, "reason": "Bad", "message": "text"}, True, REFUSED_A),
        (WorkerRollout(), {"mark": "", "refused": A.digest, "reason": "Bad", "message": "text"}, True, REFUSED_A),
    ],
)
def test_a_report_on_the_assigned_model_proves_or_refuses_it(
    before: WorkerRollout, report: dict[str, str], proven: bool, after: WorkerRollout
) -> None:
    body = ModelInUse(**{"mark": A.fingerprint, "digest": "d" * 64, **report})
    assert before.with_report(A, body, "now", proven=proven) == after


@pytest.mark.parametrize(
    ("good", "spec_hash", "counts"),
    [(None, "now", False), (GOOD, "a", False), (GOOD, "z", False), (GOOD, "now", True)],
)
def test_the_second_end_in_a_row_with_an_unproven_model_refuses_it(
    good: DesiredModel | None, spec_hash: str, counts: bool
) -> None:
    rollout, strikes = WorkerRollout(good=good, spec_hash=spec_hash), list[tuple[int, str]]()
    for model_ in (A, B, A, A):
        rollout = rollout.with_end(model_, "exit code 1", "now")
        strikes.append((rollout.strikes, rollout.refused.message if rollout.refused else ""))
    refused = "the worker ended 2 times with this model (exit code 1)"
    assert strikes == ([(1, ""), (1, ""), (1, ""), (2, refused)] if counts else [(0, "")] * 4)
    if rollout.refused:
        assert (rollout.refused.reason, rollout.refused.digest) == ("ModelCrashed", A.digest)
        assert rollout.refusal(A)


@pytest.mark.parametrize(
    ("good", "spec_hash", "intact", "first"),
    [
        (GOOD, "now", "/c", GOOD),
        (None, "now", "/c", A),
        (GOOD, "a", "/c", A),
        (GOOD, "z", "/c", A),
        (GOOD, "now", "/a", A),
        (msgspec.structs.replace(A, path="/c"), "now", "/c", A),
    ],
)
def test_a_worker_starts_with_the_model_proven_in_its_process_if_the_file_is_intact(
    good: DesiredModel | None, spec_hash: str, intact: str, first: DesiredModel
) -> None:
    assert WorkerRollout(good=good, spec_hash=spec_hash).first_model(A, "now", {Path(intact)}) is first


def test_another_desired_model_clears_strikes_and_the_proven_one_gets_none() -> None:
    struck = WorkerRollout(struck=A.fingerprint, strikes=1)
    assert PROVEN.with_end(GOOD, "exit code 1", "now") == PROVEN
    assert (struck.with_desired(A), struck.with_desired(B)) == (struck, WorkerRollout())


def test_settings_are_refused_while_the_proven_ones_run_and_tried_again_once_those_fail_too() -> None:
    old, new = (ProcessSpec((name,), {}, "/") for name in ("old", "new"))
    assert WorkerRollout().with_failed_start(new, "exit code 2") == WorkerRollout()
    rollout = WorkerRollout().with_start(new, new).with_start(old, old)
    assert (rollout.settings, rollout.spec(new)) == (old, new)
    assert rollout.with_failed_start(old, "exit code 2") == rollout
    refused = rollout.with_failed_start(new, "exit code 2")
    assert (refused.spec(new), refused.spec(old)) == (old, old)
    refusal = refused.settings_refusal(new.digest)
    assert refusal
    assert refusal.message == "exit code 2"
    assert refused.settings_refusal(old.digest) is None
    assert (refused.with_start(old, new), refused.with_start(new, new)) == (refused, WorkerRollout(settings=new))
    assert refused.with_failed_start(new, "exit code 2") == rollout


@pytest.fixture
def keeper(tmp_path: Path) -> RolloutKeeper:
    return RolloutKeeper(NodePaths(tmp_path, "edge0"), lambda _: None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adopted", "process_hash", "is_refused", "expected"),
    [
        (True, "", True, "refused"),
        (True, "", False, "new"),
        (True, "0", True, "new"),
        (True, "z", True, "new"),
        (False, "", True, "new"),
    ],
)
def test_an_adopted_worker_with_its_former_settings_counts_as_one_with_the_refused_ones(
    keeper: RolloutKeeper, adopted: bool, process_hash: str, is_refused: bool, expected: str
) -> None:
    settings = ProcessSpec((), {}, "")
    refused = RefusedSettings(spec_hash="refused") if is_refused else None
    save(keeper._folders.worker(EDGE), WorkerRollout(settings=settings, refused_settings=refused))
    entry = WorkerState(EDGE, HELMET, "u1", "edge", "new", process_hash or settings.digest, None, adopted=adopted)
    assert keeper.begin(entry) == expected
    assert entry.assignment.rollout.settings == settings


async def test_a_model_is_proven_after_thirty_seconds_without_a_canary_or_a_refusal(keeper: RolloutKeeper) -> None:
    start = Start(EDGE, HELMET, "u1", "edge", ProcessSpec((), {}, ""), desired=Desired(models=[A]))
    entry = WorkerState(EDGE, HELMET, "u1", "edge", "now", "now", start)
    entry.assignment.model, entry.assignment.rollout = A, WorkerRollout(good=GOOD, spec_hash="now")
    answers = ModelInUse(mark=A.fingerprint)
    for wait_s, report, good in (
        (1, answers, GOOD),
        (29, msgspec.structs.replace(answers, canary_version="2"), GOOD),
        (1, answers, GOOD),
        (29, msgspec.structs.replace(answers, refused=A.digest), GOOD),
        (1, answers, GOOD),
        (29, answers, GOOD),
        (1, answers, A),
    ):
        suspend(wait_s)
        keeper.receive(entry, WorkerInfo(name="w", namespace="n", owner_name="s", status="running", model=report))
        assert entry.assignment.rollout.good is good
