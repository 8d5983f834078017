"""A running worker takes the model that its file names: all at once, for a share of the samples, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from halimede.bus.memory import MemoryBroker
from tests.blackbox.models import EASY, HARD, FromFile, big, onnx_spec, small, write_desired
from tests.blackbox.requester import REQUESTED, asking, serving
from tests.blackbox.world import Kind, World, frame
from tests.waiting import eventually

PYTHON = {"format": "python"}


@dataclass
class Desired:
    """The file in which stands which model a worker shall answer with: models of ``FromFile``, or of ONNX."""

    world: World
    name: str
    onnx: Path | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What the worker is started with."""
        return {"MODEL_FILE": str(self._file)} | ({"MODEL_SPEC": ""} if self.onnx else {})

    @property
    def estimator(self) -> Any:
        return None if self.onnx else FromFile

    def write(self, label: str, percent: int = 100) -> None:
        """Ask for a model that answers with a label."""
        path, spec = self.onnx, onnx_spec(label, "other")
        if path is None:
            path, spec = self.world.folder / f"{label}.model", PYTHON
            path.write_text(label)
        write_desired(self._file, path, f"v-{label}", spec=spec, digest=label.encode().hex() * 2, percent=percent)

    async def taken(self, label: str) -> None:
        """Wait until the worker reports a model as the one in use."""
        await eventually(lambda: self.world.model(self.name).version == f"v-{label}")

    async def tried(self, label: str) -> None:
        """Wait until the worker reports a model that a share of the samples goes to."""
        await eventually(lambda: self.world.model(self.name).canary_version == f"v-{label}")

    @property
    def _file(self) -> Path:
        return self.world.folder / f"{self.name}.json"


@pytest.fixture
def of(broker: object, world: World, onnx_file: Path) -> Any:
    """Return what makes the file of a worker: ONNX models over the broker in memory, estimators over Mosquitto."""
    return lambda name: Desired(world, name, onnx_file if isinstance(broker, MemoryBroker) else None)


async def test_an_edge_worker_changes_its_model_between_two_batches(world: World, of: Any) -> None:
    desired = of("e0")
    desired.write("a")
    async with world.worker("edge", "e0", desired.estimator, **desired.environ):
        await desired.taken("a")
        sent = [await world.send(EASY) for _ in range(10)]
        await world.answered(sent)
        desired.write("b")
        while world.model("e0").version != "v-b":
            sent.append(await world.send(EASY))
            await asyncio.sleep(0.005)
        sent += [await world.send(EASY) for _ in range(10)]
        results = await world.answered(sent)
        labels = [str(result.label) for result in results]
        assert labels == sorted(labels)
        assert (set(labels[:10]), set(labels[-10:])) == ({"a"}, {"b"})
        assert {(r.label, r.model, r.degraded) for r in results} == {("a", "v-a", False), ("b", "v-b", False)}
        await eventually(lambda: world.counts("e0").inference_number == len(sent))
        assert world.counts("e0").lost == 0


async def test_a_share_of_the_samples_goes_to_a_new_model_by_their_ids(world: World, of: Any) -> None:
    bodies = [frame(EASY) for _ in range(120)]

    async def versions_at(name: str) -> list[str]:
        desired = of(name)
        desired.write("a")
        async with world.worker("cloud", name, desired.estimator, **desired.environ):
            await desired.taken("a")
            desired.write("b", 30)
            await desired.tried("b")
            assert world.model(name).version == "v-a"
            requester = await asking(world, f"asker-{name}", name)
            versions = [(await requester.ask(body)).model for body in bodies]
            desired.write("b")
            await desired.taken("b")
            assert world.model(name).canary_version == ""
            assert (await requester.ask(frame(EASY))).model == "v-b"
        return versions

    at_one, at_another = await asyncio.gather(versions_at("c0"), versions_at("c1"))
    assert at_one == at_another
    assert set(at_one) == {"v-a", "v-b"}
    assert 15 <= at_one.count("v-b") <= 60


async def test_a_share_that_is_taken_back_goes_to_the_model_before(world: World, of: Any) -> None:
    desired = of("c0")
    desired.write("a")
    async with world.worker("cloud", "c0", desired.estimator, **desired.environ):
        await desired.taken("a")
        desired.write("b", 50)
        await desired.tried("b")
        desired.write("a")
        await eventually(lambda: world.model("c0").canary_version == "")
        requester = await asking(world)
        assert {(await requester.ask(frame(EASY))).model for _ in range(30)} == {"v-a"}
        assert (world.model("c0").version, world.model("c0").reason) == ("v-a", "")


@pytest.mark.parametrize("kind", ["edge", "cloud"])
async def test_a_new_model_that_fails_where_the_one_before_does_not_is_withdrawn(world: World, kind: Kind) -> None:
    desired = Desired(world, "w0")
    desired.write("a")
    async with world.worker(kind, "w0", FromFile, **desired.environ):
        await desired.taken("a")
        desired.write("flaky", 50)
        await desired.tried("flaky")
        requester = await asking(world, worker="w0")
        for _ in range(40):
            if kind == "edge":
                result = await world.ask(EASY)
                assert (result.label, result.model, result.degraded) == ("a", "v-a", False)
            else:
                reply = await requester.ask(frame(EASY))
                assert (reply.error, reply.model) == ("", "v-a")
        await eventually(lambda: world.model("w0").reason == "CanaryFailed")
        model = world.model("w0")
        assert (model.version, model.canary_version) == ("v-a", "")
        assert model.refused == b"flaky".hex() * 2
        assert "it fails at everything" in model.message
        assert await world.metric("w0", "model_samples_total", version="v-a", outcome="failed") == 0
        desired.write("b")
        await desired.taken("b")
        assert world.model("w0").reason == ""


async def test_a_change_under_load_costs_no_hard_frame_its_answer(world: World) -> None:
    desired = Desired(world, "c0")
    desired.write("a")
    cloud = world.worker("cloud", "c0", FromFile, **desired.environ)
    async with cloud, world.worker("edge", "e0", small()):
        await desired.taken("a")
        await world.knows("e0", "c0")
        sent = []
        for number in range(100):
            sent.append(await world.send(HARD))
            if number == 20:
                desired.write("b")
            await asyncio.sleep(0.01)
        await desired.taken("b")
        sent.append(await world.send(HARD))
        results = await world.answered(sent)
        assert {(r.by, r.degraded) for r in results} == {("cloud", False)}
        assert (results[0].model, results[-1].model) == ("v-a", "v-b")


async def test_without_a_file_a_worker_reports_no_model(world: World) -> None:
    async with world.worker("cloud", "c0", big()):
        assert all(info.model is None for info in world.infos["c0"])


async def test_a_model_that_cannot_be_opened_changes_nothing_but_the_report(world: World) -> None:
    desired = Desired(world, "e0")
    desired.write("a")
    async with world.worker("edge", "e0", FromFile, **desired.environ):
        await desired.taken("a")
        desired.write("bad")
        await eventually(lambda: world.model("e0").reason == "ModelInvalid")
        model = world.model("e0")
        assert (model.version, model.refused) == ("v-a", b"bad".hex() * 2)
        assert "this is no model" in model.message
        assert (await world.ask(EASY)).label == "a"
        desired.write("c")
        await desired.taken("c")
        assert (await world.ask(EASY)).label == "c"


@pytest.mark.parametrize("kind", REQUESTED)
async def test_a_worker_that_answers_requests_changes_its_model(world: World, of: Any, kind: Kind) -> None:
    desired = of("c0")
    desired.write("a")
    async with serving(world, kind, desired.estimator, **desired.environ):
        await desired.taken("a")
        requester = await asking(world)
        replies = [await requester.ask(frame(EASY))]
        desired.write("b")
        while world.model("c0").version != "v-b":
            replies.append(await requester.ask(frame(EASY)))
        replies += [await requester.ask(frame(EASY)) for _ in range(5)]
        assert {(r.prediction.label if r.prediction else None, r.model) for r in replies} == {
            ("a", "v-a"),
            ("b", "v-b"),
        }
        assert replies[-1].model == "v-b"
        assert {reply.error for reply in replies} == {""}
