"""A worker that runs is told another model; what it refuses, and what ends it, does not keep it from answering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halimede.messages import ModelInUse, NodeStatus
from halimede.models.desired_state import DesiredModel, read
from services.lc.paths import Worker
from services.lc.supervisor.worker_rollout import PROVEN_S
from tests.integration.lc_world import EDGE, HELMET, World, model, service, world
from tests.simulated import eventually, simulated


class Node:
    """A node with one edge worker for which the test speaks: it takes every model but those that it is to refuse."""

    def __init__(self, node: World) -> None:
        self.node, self.gm, self.launcher = node, node.gm, node.launcher
        self.refuses: set[str] = set()
        self.in_use: DesiredModel | None = None

    def told(self, worker: Worker = EDGE) -> DesiredModel:
        desired = read(self.node.config.folders.worker(worker) / "model.json", "model.json")
        assert desired
        assert desired.only
        return desired.only

    async def speaks(self) -> None:
        """Say how the worker stands with what it was told last."""
        told = self.told()
        refused = told.path.rpartition("_")[2] in self.refuses
        if not refused or self.in_use is None:
            self.in_use = told
        using = self.in_use
        said = ModelInUse(digest=using.digest, version=using.version, mark=told.mark)
        if refused:
            said = ModelInUse(
                digest=using.digest, version=using.version, mark=told.mark, refused=told.digest,
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
    await node.asks("b", 2)
    await node.speaks()
    await node.reason("RolloutFailed")
    return node


@simulated
async def test_a_changed_model_is_told_to_the_worker_that_runs(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        await node.asks("b", 2)
        assert node.file() == "b"
        await node.speaks()
        await node.reason("")
        assert len(node.launcher.started) == 1
        assert node.launcher.alive[0].signals == []
        await eventually(lambda: str(node.gm.statuses[HELMET].workers[0].model).count("_models_b") == 2)


@simulated
async def test_a_worker_that_takes_no_other_model_is_started_anew(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = Node(made)
        await node.gm.insert(changed("a", 1), service())
        await eventually(lambda: node.launcher.alive)
        await node.gm.says(EDGE)
        await node.reason("")
        await node.asks("b", 2)
        await eventually(lambda: len(node.launcher.started) == 2)
        start = node.launcher.started[1].start
        assert start
        assert start.spec.env["MODEL_URL"].endswith("b")


@simulated
async def test_a_script_that_never_speaks_is_started_anew_with_the_changed_model(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = Node(made)
        await node.gm.insert(changed("a", 1), service())
        await eventually(lambda: node.launcher.alive)
        await node.asks("b", 2)
        await eventually(lambda: len(node.launcher.started) == 2, 20)


@simulated
async def test_a_refused_model_changes_nothing_but_the_condition_and_the_next_one_heals_it(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        node.refuses = {"b"}
        await node.asks("b", 2)
        await node.speaks()
        status = await node.reason("RolloutFailed")
        assert "ModelInvalid: it has two inputs" in status.message
        assert "is kept" in status.message
        assert (status.workers[0].phase, status.workers[0].restarts) == ("Running", 0)
        await node.asks("c", 3)
        await node.speaks()
        await node.reason("")
        assert len(node.launcher.started) == 1


@simulated
async def test_a_refused_model_that_is_taken_back_leaves_nothing_to_say(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await refusing(made)
        await node.asks("a", 3)
        assert node.file() == "a"
        await node.speaks()
        await node.reason("")


@simulated
async def test_a_refused_model_that_is_asked_for_once_more_is_tried_once_more(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await refusing(made)
        await node.asks("a", 3)
        await node.speaks()
        await node.reason("")
        node.refuses = set()
        await node.asks("b", 4)
        assert node.file() == "b"
        await node.speaks()
        await node.reason("")


@simulated
async def test_a_worker_that_crashes_after_a_refusal_begins_with_the_model_that_works(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await refusing(made)
        node.launcher.of(EDGE).end(-11)
        await node.starts()
        assert node.file() == "a"
        await node.speaks_for(60)
        status = await node.reason("RolloutFailed")
        assert "it has two inputs" in status.message
        report = status.workers[0].model
        assert report
        assert report.refused.endswith("b")
        assert node.file() == "a"


@simulated
async def test_a_worker_does_not_begin_with_a_model_that_works_if_its_file_is_damaged(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await refusing(made)
        model_file = node.node.config.folders.models / "sha256" / "_models_a"
        model_file.chmod(0o600)
        model_file.write_bytes(b"damaged")
        node.launcher.of(EDGE).end(-11)
        await node.starts()
        assert node.file() == "b"


@simulated
async def test_a_refusal_outlives_the_controller(tmp_path: Path) -> None:
    made = World(tmp_path)
    async with made.gm.running():
        async with made.lc(killed=True):
            node = await refusing(made)
        async with made.lc():
            await asyncio.sleep(2)
            await node.speaks()
            await node.reason("RolloutFailed")
            node.launcher.of(EDGE).end(-11)
            await node.starts()
            assert node.file() == "a"
            await node.speaks_for(20)
            assert node.file() == "a"
            await node.reason("RolloutFailed")


@simulated
async def test_an_adopted_worker_is_given_the_model_that_changed_meanwhile(tmp_path: Path) -> None:
    made = World(tmp_path)
    async with made.gm.running():
        async with made.lc(killed=True):
            node = await answering(made)
        async with made.lc():
            await node.gm.insert(changed("b", 2))
            await asyncio.sleep(5)
            await node.speaks()
            await eventually(lambda: node.file() == "b")
            await node.speaks()
            await node.reason("")
            assert len(node.launcher.started) == 1


@simulated
async def test_an_adopted_worker_that_takes_no_other_model_goes_on_while_nothing_changes(tmp_path: Path) -> None:
    made = World(tmp_path)
    async with made.gm.running():
        async with made.lc(killed=True):
            node = Node(made)
            await node.gm.insert(changed("a", 1), service())
            await eventually(lambda: node.launcher.alive)
            await node.gm.says(EDGE)
            await node.reason("")
        async with made.lc():
            await asyncio.sleep(60)
            await node.gm.says(EDGE)
            await asyncio.sleep(60)
            assert len(node.launcher.started) == 1
            await node.asks("b", 2)
            await eventually(lambda: len(node.launcher.started) == 2)


@simulated
async def test_a_model_that_ends_its_worker_twice_is_not_told_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        await node.asks("b", 2)
        for _ in range(2):
            assert node.file() == "b"
            node.launcher.of(EDGE).end(-9)
            await node.starts()
            assert node.file() == "a"
            await node.speaks_for(3)
        assert node.file() == "a"
        status = await node.reason("RolloutFailed")
        assert "ModelCrashed" in status.message
        assert "killed by signal 9" in status.message
        await node.speaks_for(100)
        assert (node.file(), len(node.launcher.started)) == ("a", 3)
        await node.asks("c", 3)
        assert node.file() == "c"


@simulated
async def test_a_model_that_ends_its_worker_before_it_has_proved_itself_is_taken_back(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        await node.asks("b", 2)
        for _ in range(2):
            await eventually(lambda: node.file() == "b")
            await node.speaks_for(PROVEN_S / 2)
            node.launcher.of(EDGE).end(-11)
            await node.starts()
            assert node.file() == "a"
            await node.speaks()
        await node.reason("RolloutFailed")


@simulated
async def test_a_model_that_has_proved_itself_is_the_one_to_begin_with(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        await node.asks("b", 2)
        await node.speaks_for(PROVEN_S + 5)
        node.refuses = {"c"}
        await node.asks("c", 3)
        await node.speaks()
        node.launcher.of(EDGE).end(1)
        await node.starts()
        assert node.file() == "b"


@simulated
@pytest.mark.parametrize("seconds", [1, PROVEN_S + 5])
async def test_the_first_model_is_kept_from_its_first_word_on(seconds: float, tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made, seconds=seconds)
        node.refuses = {"b"}
        await node.asks("b", 2)
        await node.speaks()
        node.launcher.of(EDGE).end(1)
        await node.starts()
        assert node.file() == "a"


@simulated
async def test_a_first_model_that_is_bad_fails_and_a_changed_one_starts_the_worker_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = Node(made)
        await node.gm.insert(changed("bad", 1), service())
        await node.starts()
        await node.gm.says(EDGE, "failed", reason="ModelInvalid", message="no model")
        node.launcher.of(EDGE).end(2)
        await node.gm.reaches(HELMET, "Failed", "ModelInvalid")
        await node.asks("a", 2)
        await eventually(lambda: node.launcher.alive, 5)
        assert node.file() == "a"


@simulated
async def test_a_changed_process_begins_with_what_is_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        await node.gm.insert(changed("b", 2))
        await node.gm.insert(service(generation=2, edge={"args": ["--other"]}))
        await eventually(lambda: len(node.launcher.started) == 2)
        assert node.file() == "b"


@simulated
async def test_a_model_that_another_process_takes_is_refused_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await refusing(made)
        node.refuses = set()
        await node.gm.insert(service(generation=2, edge={"resources": {"limits": {"memory": "2Gi"}}}))
        await eventually(lambda: len(node.launcher.started) == 2)
        await node.starts()
        assert node.file() == "b"
        await node.speaks()
        await node.gm.reaches(HELMET, "Running", "", generation=2)


@simulated
async def test_a_wish_that_cannot_be_written_is_a_condition_and_is_written_later(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        file = node.node.config.folders.worker(EDGE) / "model.json"
        aside = file.rename(file.with_name("aside"))
        file.mkdir()  # what no file can replace
        await node.asks("b", 2)
        status = await node.reason("RolloutFailed")
        assert "cannot be written" in status.message
        file.rmdir()
        aside.rename(file)
        await node.speaks()
        await eventually(lambda: node.file() == "b")
        await node.speaks()
        await node.reason("")


@simulated
@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.unlink() or file.write_bytes(b"damaged")])
async def test_a_model_that_vanishes_before_it_is_told_is_brought_again_and_then_told(
    tmp_path: Path, damage: Callable[[Path], Any]
) -> None:
    async with world(tmp_path) as made:
        node = await answering(made)
        file = node.node.config.folders.worker(EDGE) / "model.json"
        aside = file.rename(file.with_name("aside"))
        file.mkdir()  # what no file can replace
        await node.asks("b", 2)
        await node.reason("RolloutFailed")
        model_file = node.node.config.folders.models / "sha256" / "_models_b"
        damage(model_file)
        file.rmdir()
        aside.rename(file)
        await node.speaks()
        await eventually(lambda: model_file.is_file() and model_file.read_bytes() == b"m")
        assert node.file() == "a"
        await node.speaks()
        await eventually(lambda: node.file() == "b")
        await node.speaks()
        await node.reason("")
