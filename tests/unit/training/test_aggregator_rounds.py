"""An aggregator through all rounds of a job, whose trainer the test is: its reports, times, counts and memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import TensorFile, TrainerState, TrainingProgress, TrainingRound
from halimede.training import aggregator
from halimede.training.aggregator import HEARTBEAT_S, SETTLE_S, Aggregator, AggregatorMemory
from halimede.training.checkpoint import Checkpoint
from halimede.training.child_messages import TrainingResult
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import decode, encode
from halimede.training.weights import Weights, digest_of, specs_of
from halimede.worker.status_reporter import StatusReporter
from tests.simulated import eventually
from tests.unit.training.parties import AGGREGATOR, JOB, NAMES, offer, party_settings, running

pytestmark = pytest.mark.simulated

TRAINER = "n0"
#: simulated seconds
LONG, DEADLINE_S = 600.0, 300.0
FIRST: Weights = {"layer": np.zeros(4, np.float32)}
ONNX = b"a model"


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(_: object, do: str, **__: object) -> TrainingResult:
        return TrainingResult(content=ONNX if do == "export" else encode(FIRST), specs=specs_of(FIRST))

    monkeypatch.setattr(aggregator, "run_step", step)


class Job:
    """An aggregator with two possible trainers, one of which the test plays, and all that it publishes."""

    def __init__(self, folder: Path, own: MemoryBus, bus: MemoryBus, uid: str, **spec: Any) -> None:
        training = {"trainers": {TRAINER: "edge0", "n1": "edge0"}, "rounds": 2, "roundDeadlineS": DEADLINE_S, **spec}
        state, data = folder / "state", folder / "samples.npz"
        made = party_settings("aggregator", AGGREGATOR, state, data, training, uid=uid)
        self.folder, self.bus = folder, bus
        self.reporter = StatusReporter(own, made.worker)
        self.aggregator = Aggregator(made, own, self.reporter)
        self.exchange = TensorExchange(bus, "default", JOB, TRAINER)
        self.rounds: list[TrainingRound] = []
        self.times: list[float] = []

    async def published(self, delivery: Delivery[TrainingRound]) -> None:
        self.rounds.append(delivery.body)
        self.times.append(asyncio.get_running_loop().time())

    @property
    def last(self) -> TrainingRound:
        return self.rounds[-1]

    @property
    def progress(self) -> TrainingProgress:
        return self.reporter.training()

    @property
    def summary(self) -> str:
        return self.reporter._current_info().message

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return the values of all metrics by name and labels."""
        return {
            (sample.name.removeprefix("halimede_"), *sample.labels.values()): sample.value
            for metric in self.aggregator.metrics()
            for sample in metric.samples
        }

    async def publish(self, *trainers: str, node: str = "edge0", **changes: Any) -> None:
        state = TrainerState(**{"job": "u-1", "life": "1", "samples": 50, "shape": [64], **changes})
        for trainer in trainers or (TRAINER,):
            await self.bus.publish(topics.TRAINER_STATE.at(node=node, trainer=trainer, **NAMES), state)

    async def opens(self, *trainers: str, number: int = 1) -> None:
        """Let trainers come, and wait until a round is open for them."""
        await self.publish(*trainers)
        await self.is_open(number)

    def offer(self, value: float) -> TensorFile:
        """Offer an update that adds a value to all weights."""
        return offer(self.exchange, self.folder, encode({"layer": np.full(4, value, np.float32)}))

    async def is_open(self, number: int) -> None:
        await eventually(lambda: (self.last.number, self.last.state) == (number, "open"), LONG)

    async def update(self, value: float, **changes: Any) -> None:
        body = self.last
        await self.publish(epoch=body.epoch, number=body.number, update=self.offer(value), **changes)

    async def evaluate(self, accuracy: float) -> None:
        body = self.last
        await self.publish(epoch=body.epoch, number=body.number, held_out=10, evaluation={"accuracy": accuracy})

    async def finish(self, values: tuple[float, ...] = (1.0, 2.0)) -> None:
        """Play the trainer until the job is done."""
        await self.publish()
        for number, value in enumerate(values, 1):
            await self.is_open(number)
            await self.update(value)
        await self.is_open(len(values) + 1)
        await self.evaluate(0.5)
        await eventually(lambda: self.last.state == "done", LONG)

    def stored(self) -> Weights:
        content = (self.folder / "state" / aggregator.FOLDER / self.last.weights.digest).read_bytes()
        assert len(content) == self.last.weights.size
        return decode(content, self.last.specs)


@contextlib.asynccontextmanager
async def job(folder: Path, uid: str = "u-1", **spec: Any) -> AsyncIterator[Job]:
    broker = MemoryBroker()
    async with MemoryBus("n0", broker) as bus, MemoryBus(AGGREGATOR, broker) as own:
        world = Job(folder, own, bus, uid, **spec)
        await bus.subscribe(topics.TRAINING_ROUND.filter(**NAMES), world.published)
        await world.exchange.start()
        aggregating = world.aggregator.run(lambda: None, asyncio.Event())
        async with running(aggregating, world.exchange.serve()) as tasks:
            await eventually(lambda: bool(world.rounds) or tasks[0].done(), LONG)
            yield world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Job]:
    async with job(tmp_path) as made:
        yield made


async def test_a_report_follows_the_rounds_of_a_job_until_it_is_done(world: Job) -> None:
    await eventually(lambda: world.progress.reason == "TooFewTrainers", LONG)
    begin = world.progress
    assert (begin.state, begin.round, begin.rounds, begin.evaluated, begin.bytes) == ("waiting", 1, 2, 0, 0)
    await world.opens()
    assert world.summary == "round 1 of 2, 0 of 1 trainers"
    assert (world.progress.state, world.progress.reason) == ("open", "")
    await world.update(1.0, held_out=10, evaluation={"accuracy": 0.25})
    await world.is_open(2)
    assert world.summary == "round 2 of 2, 0 of 1 trainers; accuracy 0.25 (round 1)"
    assert (world.progress.round, world.progress.evaluated, world.progress.metrics) == (2, 1, {"accuracy": 0.25})
    assert (world.last.counted, world.last.only_evaluate) == ([TRAINER], False)
    assert world.progress.bytes >= len(encode(FIRST))
    await world.update(2.0)
    await world.is_open(3)
    assert world.summary == "round 2 of 2, 0 of 1 trainers; accuracy 0.25 (round 1)", "no round after the last one"
    assert world.last.only_evaluate
    await world.evaluate(0.75)
    await eventually(lambda: world.last.state == "done", LONG)
    assert world.summary == "round 2 of 2; accuracy 0.75 (round 3)"
    done = world.progress
    assert (done.state, done.round, done.reason, done.evaluated) == ("done", 2, "RoundsDone", 3)
    assert done.model == TensorFile(digest=digest_of(ONNX), size=len(ONNX))
    assert world.stored()["layer"].tolist() == [3.0] * 4


async def test_a_round_says_what_it_waits_for_then_who_is_done_with_it_and_how_long_it_lasts(tmp_path: Path) -> None:
    async with job(tmp_path, minClients=2) as world:
        for count, trainer in enumerate((TRAINER, "n1")):
            text = f"{count} of 2 trainers can take part: 2 must"
            await eventually(lambda text=text: world.last.message == text, LONG)
            assert (world.last.reason, world.last.remaining_ms) == ("TooFewTrainers", 0)
            await world.publish(trainer)
        await world.is_open(1)
        assert (world.last.reason, world.last.message) == ("", "")
        assert world.last.remaining_ms == pytest.approx(1000 * DEADLINE_S, rel=0.01)
        await world.update(1.0)
        await eventually(lambda: world.last.received == [TRAINER], LONG)
        assert world.summary == "round 1 of 2, 1 of 2 trainers"
        await asyncio.sleep(DEADLINE_S / 2)
        assert 0 < world.last.remaining_ms < 1000 * (DEADLINE_S / 2 + 2 * HEARTBEAT_S)
        await world.publish("n1", epoch=1, number=1, reason="OutOfMemory")
        await eventually(lambda: world.last.dropped == {"OutOfMemory": 1, "RoundRepeated": 1}, LONG)


async def test_an_unchanged_round_is_published_again_as_a_heartbeat(world: Job) -> None:
    await world.opens()
    first = len(world.times)
    await asyncio.sleep(4.5 * HEARTBEAT_S)
    gaps = np.diff(world.times[first - 1 :])
    assert 3 <= len(gaps) <= 5
    assert gaps[1:] == pytest.approx(10.0, abs=0.5)


async def test_a_job_waits_a_little_for_further_trainers_and_not_at_all_for_none(tmp_path: Path) -> None:
    async with job(tmp_path) as world:
        began = asyncio.get_running_loop().time()
        await world.opens()
        assert world.times[-1] - began == pytest.approx(SETTLE_S, abs=0.5)
        assert SETTLE_S == 5.0
        began = asyncio.get_running_loop().time()
        await world.update(1.0)
        await world.is_open(2)
        assert world.times[-1] - began < 1, "the second round waits for nobody"
    async with job(tmp_path / "both") as world:
        began = asyncio.get_running_loop().time()
        await world.opens(TRAINER, "n1")
        assert world.times[-1] - began < 1
        assert world.last.invited == [TRAINER, "n1"]


async def test_updates_and_their_bytes_and_the_time_of_a_round_are_metrics(world: Job) -> None:
    await world.opens()
    assert world.samples()["training_updates_total", "Received"] == 0
    assert world.samples()["training_round_seconds",] == 0
    await asyncio.sleep(20)
    await world.update(1.0)
    await world.is_open(2)
    values = world.samples()
    assert values["training_updates_total", "Received"] == 1
    assert values["training_round_seconds",] == pytest.approx(20, abs=1)
    assert values["training_round_index",] == 2
    await world.update(1.0)
    await world.is_open(3)
    assert world.samples()["training_updates_total", "Received"] == 2


@pytest.mark.parametrize(("rounds", "state", "number"), [(2, "done", 3), (3, "waiting", 3), (1, "done", 3)])
async def test_a_restarted_job_has_its_bytes_and_weights_and_goes_on_only_if_it_has_further_rounds(
    tmp_path: Path, rounds: int, state: str, number: int
) -> None:
    async with job(tmp_path) as world:
        await world.finish()
        before, weights = world.progress, world.stored()["layer"].tolist()
    async with job(tmp_path, rounds=rounds) as world:
        await asyncio.sleep(1)
        assert (world.last.epoch, world.last.state, world.last.number) == (2, state, number)
        assert (world.progress.bytes, world.stored()["layer"].tolist()) == (before.bytes, weights)
        assert world.last.model == (before.model if state == "done" else None)
        if state == "waiting":
            await world.opens(number=3)
            assert not world.last.only_evaluate


async def test_a_trainer_that_is_not_of_the_job_or_on_another_node_is_not_invited(world: Job) -> None:
    await world.publish(node="edge9")
    await world.publish("n7")
    await eventually(lambda: world.last.dropped == {"NotInvited": 2}, LONG)
    await world.opens()
    assert world.last.invited == [TRAINER]


async def test_a_trainer_that_is_gone_before_a_round_takes_no_part_but_only_its_own_node_ends_it(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, minClients=2) as world:
        await world.opens(TRAINER, "n1")
        await world.publish(TRAINER, "n1", epoch=1, number=1, reason="OutOfMemory")
        await eventually(lambda: (world.last.epoch, world.last.state) == (2, "open"), LONG)
        await world.bus.clear(topics.TRAINER_STATE.at(node="edge0", trainer="n1", **NAMES))
        await world.publish(epoch=2, number=1, reason="OutOfMemory")
        await asyncio.sleep(DEADLINE_S)
        await eventually(lambda: world.last.message == "1 of 2 trainers can take part: 2 must", LONG)


async def test_an_update_that_nobody_serves_yet_is_fetched_again_and_wrong_ones_are_refused(world: Job) -> None:
    await world.opens()
    file = world.offer(1.0)
    path = world.exchange.offered.pop(file.digest)
    await world.publish(epoch=1, number=1, update=file)
    await asyncio.sleep(60)
    assert (world.last.number, world.last.received, world.last.refused) == (1, [], {})
    world.exchange.offered[file.digest] = path
    await world.is_open(2)
    await world.update(float("nan"))
    await eventually(lambda: world.last.dropped == {"NotFinite": 1, "RoundRepeated": 1}, LONG)
    await world.is_open(2)
    await world.publish(epoch=2, number=2, update=TensorFile(digest="0" * 64, size=10**9))
    await eventually(lambda: world.last.dropped.get("TooLarge") == 1, LONG)


async def test_a_newer_update_of_a_trainer_replaces_one_that_cannot_be_fetched(world: Job) -> None:
    await world.opens()
    await world.publish(epoch=1, number=1, update=TensorFile(digest="0" * 64, size=100))
    await asyncio.sleep(5)
    await world.update(4.0)
    await world.is_open(2)
    assert world.stored()["layer"].tolist() == [4.0] * 4
    assert world.last.dropped == {}


async def test_a_target_ends_a_job_before_its_last_round_with_the_weights_that_reached_it(tmp_path: Path) -> None:
    async with job(tmp_path, target={"metric": "accuracy", "value": 0.9}) as world:
        await world.opens()
        await world.update(1.0, held_out=10, evaluation={"accuracy": 0.9})
        await eventually(lambda: world.last.state == "done", LONG)
        assert (world.last.reason, world.last.number) == ("TargetReached", 1)
        assert world.stored()["layer"].tolist() == [0.0] * 4


async def test_rounds_are_published_with_as_many_reasons_as_fit_however_many_a_trainer_has(tmp_path: Path) -> None:
    async with job(tmp_path, rounds=9) as world:
        await world.publish()
        for number in range(66):
            await eventually(lambda epoch=number + 1: (world.last.epoch, world.last.state) == (epoch, "open"), LONG)
            await world.publish(epoch=world.last.epoch, number=1, reason=f"Reason{number}")
        await eventually(lambda: world.last.dropped.get("RoundRepeated") == 66, LONG)
        # a round that was repeated has both its own reason and that it was repeated
        assert world.last.dropped == {"RoundRepeated": 66} | {f"Reason{number}": 1 for number in range(63)}


@pytest.mark.parametrize("uid", ["u-0", "u-2"])
async def test_an_aggregator_takes_nothing_from_the_checkpoint_of_another_job(tmp_path: Path, uid: str) -> None:
    memory = AggregatorMemory(job="u-1", epoch=3, number=4, dropped={"Late": 2}, metrics={"accuracy": 0.5})
    Checkpoint(tmp_path / "state" / aggregator.FOLDER, AggregatorMemory).save(memory, set())
    async with job(tmp_path, uid, rounds=9) as world:
        assert (world.rounds[0].job, world.rounds[0].epoch, world.rounds[0].number) == (uid, 1, 1)
        assert not world.rounds[0].dropped
        assert not world.rounds[0].metrics
    async with job(tmp_path, uid, rounds=9) as world:
        assert (world.rounds[0].job, world.rounds[0].epoch) == (uid, 2), "its own one is continued"


@pytest.mark.parametrize("update", [None, TensorFile(digest="0" * 64, size=10)])
async def test_a_state_of_another_round_is_counted_once_and_its_trainer_is_waited_for(
    tmp_path: Path, update: TensorFile | None
) -> None:
    async with job(tmp_path, rounds=9, minClients=2) as world:
        await world.publish(TRAINER, "n1")
        await eventually(lambda: world.last.state == "open", LONG)
        await world.publish(epoch=1, number=7, update=update)
        await eventually(lambda: world.last.dropped == {"UnknownRound": 1}, LONG)
        assert (world.last.state, world.last.refused) == ("open", {})
        await asyncio.sleep(DEADLINE_S)
        await eventually(lambda: (world.last.epoch, world.last.state) == (2, "open"), LONG)
        await world.publish(epoch=2, number=1, reason="TrainingFailed")
        await eventually(lambda: world.last.refused == {TRAINER: "TrainingFailed"}, LONG)
        assert world.last.dropped == {"UnknownRound": 1, "RoundRepeated": 1, "TrainingFailed": 1}
