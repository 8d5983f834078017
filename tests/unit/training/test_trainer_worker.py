"""One trainer of a job, whose steps and rounds the test sets: what it takes from earlier ones, and when it gives up."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Compression, TensorFile, TrainerState, TrainingRound
from halimede.messages.training import STARVED
from halimede.models.errors import FetchError, FetchReason
from halimede.system.cpu_share import CpuShare
from halimede.training.child_messages import TrainingResult
from halimede.training.settings import TrainingSettings
from halimede.training.starvation import promised_share
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import encode
from halimede.training.trainer_worker import FAILS_AGAIN_S, TrainerWorker
from halimede.training.weights import WeightsError, digest_of, specs_of
from halimede.worker.status_reporter import StatusReporter
from tests.simulated import eventually
from tests.unit.training.parties import AGGREGATOR, JOB, NAMES, offer, party_settings, running

pytestmark = pytest.mark.simulated

TRAINER = "n0"
#: half of each update is left for the next one
COMPRESSION = {"dtype": "float16", "topK": 0.5}
#: simulated seconds
LONG = 600.0


def settings(folder: Path, uid: str, **spec: Any) -> TrainingSettings:
    training = {"trainers": {TRAINER: "edge0"}, "rounds": 9, "compression": COMPRESSION, **spec}
    return party_settings("trainer", TRAINER, folder / "state", folder / "samples.npz", training, uid=uid)


class OneTrainer:
    """A trainer whose steps fail where ``failing`` has their round, and an aggregator that opens rounds."""

    def __init__(self, folder: Path, uid: str, bus: MemoryBus) -> None:
        self.uid, self.bus = uid, bus
        self.failing: frozenset[int] = frozenset()
        #: why the samples cannot be used; empty: they can
        self.trouble = ""
        self.number = 0
        self.states: list[TrainerState] = []
        #: each step with its values and its time, and how long one lasts
        self.steps: list[tuple[str, dict[str, Any], float]] = []
        self.step_s = 0.0
        self.training: TrainingResult | None = None
        self.worker: TrainerWorker | None = None
        self.reporter: StatusReporter | None = None
        self.exchange = TensorExchange(bus, "default", JOB, AGGREGATOR)
        self.weights = {"layer": np.zeros(4, np.float32)}
        self.file = offer(self.exchange, folder, encode(self.weights))

    async def step(self, do: Any, **values: Any) -> TrainingResult:
        """Return what a step of the user's code would."""
        self.steps.append((do, values, asyncio.get_running_loop().time()))
        await asyncio.sleep(self.step_s)
        if do == "train" and self.number in self.failing:
            return TrainingResult(reason="TrainingFailed", message=f"no round {self.number}")
        if self.trouble:
            return TrainingResult(reason=self.trouble, message="no samples")
        if do == "train" and self.training:
            return self.training
        found = TrainingResult(samples=50, held_out=10, shape=[64])
        if do == "train":
            found.content = encode({"layer": np.asarray([4.0, 3.0, 2.0, 1.0], np.float32)})
        return found

    async def publish(self, number: int, **changes: Any) -> None:
        """Publish a round: an open one that the trainer's last one counts for, if nothing else is stated."""
        body = TrainingRound(
            job=self.uid, epoch=1, number=number, state="open", source=AGGREGATOR, weights=self.file,
            specs=specs_of(self.weights), invited=[TRAINER], counted=[TRAINER],
            compression=msgspec.convert(COMPRESSION, Compression),
        )  # fmt: skip
        await self.bus.publish(topics.TRAINING_ROUND.at(**NAMES), msgspec.structs.replace(body, **changes))

    def steps_of(self, do: str) -> list[float]:
        """Return the times of steps of one kind."""
        return [at for name, _, at in self.steps if name == do]

    async def train(self, number: int, **changes: Any) -> TrainerState:
        """Open a round; return the trainer's state after it."""
        self.number, before = number, self.states[-1]
        await self.publish(number, **changes)
        await eventually(lambda: self._is_done(self.states[-1], before), LONG)
        return self.states[-1]

    def _is_done(self, state: TrainerState, before: TrainerState) -> bool:
        return state != before and bool(state.number == self.number or state.reason)


@contextlib.asynccontextmanager
async def one_trainer(
    folder: Path, uid: str = "u-1", trouble: str = "", step_s: float = 0.0, **spec: Any
) -> AsyncIterator[OneTrainer]:
    broker = MemoryBroker()
    async with MemoryBus(AGGREGATOR, broker) as bus, MemoryBus(TRAINER, broker) as own:
        world, made = OneTrainer(folder, uid, bus), settings(folder, uid, **spec)
        world.trouble, world.step_s = trouble, step_s

        async def published(delivery: Delivery[TrainerState]) -> None:
            world.states.append(delivery.body)

        await bus.subscribe(topics.TRAINER_STATE.filter(**NAMES), published)
        await world.exchange.start()
        world.reporter = StatusReporter(own, made.worker)
        world.worker = worker = TrainerWorker(made, own, world.reporter, step=world.step)
        async with running(world.exchange.serve(), worker.run(lambda: None, asyncio.Event())):
            await eventually(lambda: bool(world.states), LONG)
            yield world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[OneTrainer]:
    async with one_trainer(tmp_path) as made:
        yield made


async def test_the_third_failure_in_a_row_ends_a_trainers_part_for_an_hour_and_no_earlier_one(
    world: OneTrainer,
) -> None:
    world.failing = frozenset({1, 2, 4, 5, 6, 7})
    for number, reason in enumerate(["TrainingFailed", "TrainingFailed", "", "TrainingFailed", "TrainingFailed"], 1):
        state = await world.train(number)
        assert (state.number, state.reason) == (number, reason)
    third, began = await world.train(6), asyncio.get_running_loop().time()
    assert (third.number, third.reason) == (0, "TrainerFails")
    assert third.message == "3 rounds in a row: TrainingFailed: no round 6"
    await asyncio.sleep(FAILS_AGAIN_S - 60)
    again = await world.train(7)
    assert (again.number, again.reason) == (7, "TrainingFailed"), "the failures of an hour ago do not count"
    assert FAILS_AGAIN_S <= asyncio.get_running_loop().time() - began <= FAILS_AGAIN_S + LONG
    assert (await world.train(8)).reason == ""


@pytest.mark.parametrize("uid", ["u-0", "u-2"])
async def test_a_trainer_takes_nothing_from_the_checkpoint_of_another_job(tmp_path: Path, uid: str) -> None:
    (tmp_path / "fresh").mkdir()
    async with one_trainer(tmp_path / "fresh", uid) as world:
        expected = await world.train(1)
    async with one_trainer(tmp_path, "u-1") as world:
        first, second = await world.train(1), await world.train(2)
        assert first.update != second.update, "what the first one left out is in the second one"
    async with one_trainer(tmp_path, uid) as world:
        assert (await world.train(1)).update == expected.update


async def test_a_trainer_continues_with_the_checkpoint_of_its_own_job(tmp_path: Path) -> None:
    async with one_trainer(tmp_path) as world:
        await world.train(1)
        second = await world.train(2)
    async with one_trainer(tmp_path) as world:
        world.failing = frozenset({2})
        assert (await world.train(2)).update == second.update, "it is not trained again"


async def test_the_samples_of_a_report_are_those_to_train_on_and_those_that_are_held_out(world: OneTrainer) -> None:
    await world.train(1)
    progress = world.reporter.training()
    assert (progress.run, progress.round, progress.samples) == ("u-1", 1, 60)


@pytest.mark.parametrize("share", [0.0, 0.05])
async def test_a_share_is_kept_and_reported_only_if_it_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    running: list[CpuShare] = []

    async def run(cpu_share: CpuShare) -> None:  # the real one changes the priority of this process
        running.append(cpu_share)
        cpu_share.trouble = "it gets less"
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(cpu_share)

    monkeypatch.setattr(CpuShare, "run", run)
    reporter = StatusReporter(MemoryBus(TRAINER, MemoryBroker()), settings(tmp_path, "u-1").worker)
    async with promised_share(share, reporter):
        await asyncio.sleep(1)
        assert len(running) == bool(share)
        troubles = [(reason, trouble()) for reason, trouble in reporter.troubles]
        assert troubles == [(STARVED, "it gets less")] * len(running)
    assert not running


async def test_samples_are_read_again_each_half_minute_and_a_failing_trainer_tries_each_hour(tmp_path: Path) -> None:
    async with one_trainer(tmp_path, trouble="DatasetEmpty") as world:
        await eventually(lambda: len(world.steps) == 3, LONG)
        state = world.states[-1]
        assert (state.number, state.samples, state.reason, state.message) == (0, 0, "DatasetEmpty", "no samples")
        first, second, third = world.steps_of("describe")
        assert (second - first, third - second) == pytest.approx((30.0, 30.0), abs=0.01)
        world.trouble, world.failing = "", frozenset({1, 2, 3})
        await eventually(lambda: not world.states[-1].reason, LONG)
        assert world.states[-1].samples == 50
        for number in (1, 2, 3):
            await world.train(number)
        reads = len(world.steps_of("describe"))
        await asyncio.sleep(3599.0)
        assert len(world.steps_of("describe")) == reads
        await asyncio.sleep(1.5)
        assert len(world.steps_of("describe")) == reads + 1


async def test_a_trainer_reports_nothing_before_it_has_read_its_samples(tmp_path: Path) -> None:
    async with one_trainer(tmp_path, step_s=5.0) as world:
        first = world.states[0]
        assert (first.samples, first.held_out, first.number, first.epoch, first.reason) == (0, 0, 0, 0, "")
        await eventually(lambda: world.states[-1].samples == 50, LONG)
        assert (world.states[-1].held_out, world.states[-1].shape) == (10, [64])


async def test_a_file_of_a_round_that_cannot_be_fetched_is_fetched_again_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    fetch = TensorExchange.fetch

    async def fails_first(*arguments: Any) -> bytes:
        times.append(asyncio.get_running_loop().time())
        if len(times) in {1, 3}:
            raise FetchError(FetchReason.DIGEST_MISMATCH, "it has other bytes")
        if len(times) == 2:
            raise WeightsError("Unreadable", "it has other bytes")
        return await fetch(*arguments)

    monkeypatch.setattr(TensorExchange, "fetch", fails_first)
    async with one_trainer(tmp_path) as world:
        assert (await world.train(1)).reason == ""
        assert np.diff(times) == pytest.approx(1.0, abs=0.01)
        assert len(times) == 4


@pytest.mark.parametrize("changes", [{"invited": ["n1"]}, {"state": "waiting"}, {"weights": None}, {"job": "u-9"}])
async def test_a_trainer_leaves_rounds_alone_that_are_not_for_it(world: OneTrainer, changes: dict[str, Any]) -> None:
    await world.publish(1, **changes)
    await asyncio.sleep(60)
    assert not world.steps_of("train")
    assert (await world.train(2)).number == 2


async def test_a_round_that_is_published_again_is_not_trained_again_but_is_of_a_new_epoch(world: OneTrainer) -> None:
    first = await world.train(1)
    await world.publish(1, remaining_ms=5.0)
    await asyncio.sleep(60)
    assert world.states[-1] == first
    second = await world.train(1, epoch=2)
    assert (second.epoch, second.number, second.update) == (2, 1, first.update)
    assert len(world.steps_of("train")) == 1


async def test_a_training_ends_at_once_when_another_round_is_published(world: OneTrainer) -> None:
    world.step_s = 100.0
    await world.publish(1)
    await asyncio.sleep(10)
    await world.publish(1, remaining_ms=1.0)
    await asyncio.sleep(10)
    assert len(world.steps_of("train")) == 1
    began = asyncio.get_running_loop().time()
    state = await world.train(2)
    assert state.number == 2
    assert world.steps_of("train")[1] - began < 1
    assert {state.number for state in world.states} == {0, 2}
    values = {sample.name: sample.value for metric in world.worker.metrics() for sample in metric.samples}
    assert values["halimede_training_round_seconds"] == pytest.approx(100.0, abs=0.1)


async def test_the_last_round_is_only_evaluated_and_offers_no_update(world: OneTrainer) -> None:
    first = await world.train(1)
    assert first.update is not None
    last = await world.train(2, only_evaluate=True)
    assert (last.number, last.update, last.reason) == (2, None, "")
    assert [do for do, _, _ in world.steps if do != "describe"] == ["train", "evaluate"]


async def test_a_step_gets_the_weights_and_a_seed_of_its_own_in_each_round(world: OneTrainer) -> None:
    for number in (1, 2):
        await world.train(number, seed=number, parameters={"mu": 0.5})
    (_, first, _), (_, second, _) = (step for step in world.steps if step[0] == "train")
    assert first["weights"] == encode(world.weights)
    assert first["round_parameters"] == {"mu": 0.5}
    assert first["seed"] == int(digest_of(b"1/n0")[:8], 16)
    assert second["seed"] == int(digest_of(b"2/n0")[:8], 16)


async def test_samples_that_can_no_longer_be_used_end_the_part_of_a_trainer_until_they_can(world: OneTrainer) -> None:
    await eventually(lambda: world.states[-1].samples == 50, LONG)
    world.trouble = "DatasetOneClass"
    state = await world.train(1)
    assert (state.number, state.reason, state.message) == (0, "DatasetOneClass", "no samples")
    world.trouble = ""
    await eventually(lambda: world.states[-1].number == 1, LONG)


async def test_an_update_of_other_tensors_fails_with_its_reason(world: OneTrainer) -> None:
    world.training = TrainingResult(samples=50, content=encode({"layer": np.zeros(5, np.float32)}))
    state = await world.train(1)
    assert (state.number, state.reason, state.update) == (1, "WeightsShape", None)


async def test_a_full_disk_fails_a_round_and_the_next_one_succeeds(
    world: OneTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await eventually(lambda: world.states[-1].samples == 50, LONG)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("halimede.training.checkpoint.write_atomic", full)
        state = await world.train(1)
        assert (state.number, state.reason) == (1, "DiskFull")
    assert (await world.train(2)).reason == ""


@pytest.mark.parametrize(("counted", "number"), [([TRAINER], 3), ([], 2), (["n1"], 2)])
async def test_what_an_update_left_out_is_forgotten_unless_it_counted_in_the_next_round(
    tmp_path: Path, counted: list[str], number: int
) -> None:
    (tmp_path / "fresh").mkdir()
    async with one_trainer(tmp_path / "fresh") as world:
        expected = await world.train(number)
    async with one_trainer(tmp_path) as world:
        await world.train(1)
        assert (await world.train(number, counted=counted)).update == expected.update


async def test_outside_of_its_hours_a_node_does_not_train_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        hour_now = 12

        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 1, 1, cls.hour_now, tzinfo=tz)

    monkeypatch.setattr("halimede.training.trainer_worker.datetime", Clock)
    async with one_trainer(tmp_path, limits={"hours": {"begin": 22, "end": 6}}) as world:
        await eventually(lambda: world.states[-1].reason == "OutsideHours", LONG)
        assert not world.steps
        Clock.hour_now = 23
        await eventually(lambda: world.states[-1].samples == 50, LONG)
        assert (await world.train(1)).number == 1
        Clock.hour_now = 6
        assert (await world.train(2)).reason == "OutsideHours"
        assert len(world.steps_of("train")) == 1


async def test_a_trainer_compares_the_model_of_a_finished_job_once(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    async with one_trainer(tmp_path, compares=True) as world:
        models = [offer(world.exchange, tmp_path, content) for content in (b"first", b"second")]
        await eventually(lambda: world.states[-1].samples == 50, LONG)
        for count, model in enumerate(models, 1):
            for _ in range(2):
                await world.publish(9, state="done", model=model)
                await asyncio.sleep(30)
            assert len(world.steps_of("compare")) == count
            assert world.reporter.training().compared == model.digest
            assert digest_of((tmp_path / "state" / "candidate.onnx").read_bytes()) == model.digest
        world.trouble = "OutOfMemory"
        await world.publish(9, state="done", model=models[0])
        await asyncio.sleep(30)
        evidence = msgspec.json.decode(world.reporter.training().evidence)
        assert evidence["error"] == "it was not compared: OutOfMemory: no samples"
        shutil.rmtree(tmp_path / "state")
        await world.publish(9, state="done", model=models[1])
        await asyncio.sleep(30)
        evidence = msgspec.json.decode(world.reporter.training().evidence)
        assert evidence["error"].startswith("it was not compared: DiskFull: ")


async def test_a_trainer_waits_for_no_model_that_the_aggregator_does_not_have_any_more(tmp_path: Path) -> None:
    async with one_trainer(tmp_path, compares=True) as world:
        await eventually(lambda: world.states[-1].samples == 50, LONG)
        await world.publish(9, state="done", model=TensorFile(digest="0" * 64, size=5))
        await asyncio.sleep(30)
        assert not world.steps_of("compare")
        assert (await world.train(10)).number == 10


async def test_a_trainer_of_another_job_compares_nothing(world: OneTrainer) -> None:
    await world.publish(9, state="done", model=world.file)
    await asyncio.sleep(30)
    assert [do for do, _, _ in world.steps] == ["describe"]
