"""One trainer of a job, whose steps and rounds the test sets: what it takes from earlier ones, and when it gives up."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
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
from halimede.system.cpu_share import CpuShare
from halimede.training.child_messages import TrainingResult
from halimede.training.settings import TrainingSettings, read_training
from halimede.training.starvation import promised_share
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.tensor_file import encode
from halimede.training.trainer_worker import FAILS_AGAIN_S, READ_AGAIN_S, TrainerWorker
from halimede.training.weights import digest_of, specs_of
from halimede.worker.status_reporter import StatusReporter
from tests.simulated import eventually, simulated

JOB, AGGREGATOR, TRAINER = "digits", "digits-aggregator", "n0"
NAMES = {"ns": "default", "job": JOB}
#: half of each update is left for the next one
COMPRESSION = {"dtype": "float16", "topK": 0.5}
#: simulated seconds
LONG = 600.0


def settings(folder: Path, uid: str) -> TrainingSettings:
    return read_training(
        "trainer",
        {
            "NAMESPACE": "default", "SERVICE_NAME": JOB, "SERVICE_UID": uid, "WORKER_NAME": TRAINER,
            "NODE_NAME": "edge0", "MODEL_SPEC": json.dumps({"url": "/none", "format": "onnx", "labels": ["a", "b"]}),
            "HALIMEDE_STATE": str(folder / "state"), "TRAIN_DATASET_URL": str(folder / "samples.npz"),
            "TRAINING": json.dumps({"trainers": {TRAINER: "edge0"}, "rounds": 9, "compression": COMPRESSION}),
        },
    )  # fmt: skip


class OneTrainer:
    """A trainer whose steps fail where ``failing`` has their round, and an aggregator that opens rounds."""

    def __init__(self, folder: Path, uid: str, bus: MemoryBus) -> None:
        self.uid, self.bus = uid, bus
        self.failing: frozenset[int] = frozenset()
        #: why the samples cannot be used; empty: they can
        self.trouble = ""
        self.number = 0
        self.states: list[TrainerState] = []
        self.reporter: StatusReporter | None = None
        self.exchange = TensorExchange(bus, "default", JOB, AGGREGATOR)
        self.weights = {"layer": np.zeros(4, np.float32)}
        content = encode(self.weights)
        self.file = TensorFile(digest=digest_of(content), size=len(content))
        self.exchange.offered[self.file.digest] = folder / "weights"
        (folder / "weights").write_bytes(content)

    async def step(self, do: Any, **_: Any) -> TrainingResult:
        """Return what a step of the user's code would."""
        if do == "train" and self.number in self.failing:
            return TrainingResult(reason="TrainingFailed", message=f"no round {self.number}")
        if self.trouble:
            return TrainingResult(reason=self.trouble, message="no samples")
        found = TrainingResult(samples=50, held_out=10, shape=[64])
        if do == "train":
            found.content = encode({"layer": np.asarray([4.0, 3.0, 2.0, 1.0], np.float32)})
        return found

    async def train(self, number: int) -> TrainerState:
        """Open a round that the trainer's last one counts for; return its state after it."""
        self.number, before = number, self.states[-1]
        body = TrainingRound(
            job=self.uid, epoch=1, number=number, state="open", source=AGGREGATOR, weights=self.file,
            specs=specs_of(self.weights), invited=[TRAINER], counted=[TRAINER],
            compression=msgspec.convert(COMPRESSION, Compression),
        )  # fmt: skip
        await self.bus.publish(topics.TRAINING_ROUND.at(**NAMES), body)
        await eventually(lambda: self._is_done(self.states[-1], before), LONG)
        return self.states[-1]

    def _is_done(self, state: TrainerState, before: TrainerState) -> bool:
        return state != before and bool(state.number == self.number or state.reason)


@contextlib.asynccontextmanager
async def one_trainer(folder: Path, uid: str = "u-1", trouble: str = "") -> AsyncIterator[OneTrainer]:
    broker = MemoryBroker()
    async with MemoryBus(AGGREGATOR, broker) as bus, MemoryBus(TRAINER, broker) as own:
        world, made = OneTrainer(folder, uid, bus), settings(folder, uid)
        world.trouble = trouble

        async def published(delivery: Delivery[TrainerState]) -> None:
            world.states.append(delivery.body)

        await bus.subscribe(topics.TRAINER_STATE.filter(**NAMES), published)
        await world.exchange.start()
        world.reporter = StatusReporter(own, made.worker)
        worker = TrainerWorker(made, own, world.reporter, step=world.step)
        tasks = [
            asyncio.create_task(world.exchange.serve()),
            asyncio.create_task(worker.run(lambda: None, asyncio.Event())),
        ]
        await eventually(lambda: bool(world.states), LONG)
        try:
            yield world
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@simulated
async def test_the_third_failure_in_a_row_ends_a_trainers_part_for_an_hour_and_no_earlier_one(tmp_path: Path) -> None:
    async with one_trainer(tmp_path) as world:
        world.failing = frozenset({1, 2, 4, 5, 6, 7})
        ends = [await world.train(number) for number in (1, 2, 3, 4, 5)]
        assert [(state.number, state.reason) for state in ends] == [
            (1, "TrainingFailed"),
            (2, "TrainingFailed"),
            (3, ""),
            (4, "TrainingFailed"),
            (5, "TrainingFailed"),
        ]
        third, began = await world.train(6), asyncio.get_running_loop().time()
        assert (third.number, third.reason) == (0, "TrainerFails")
        assert third.message == "3 rounds in a row: TrainingFailed: no round 6"
        await asyncio.sleep(FAILS_AGAIN_S - 60)
        again = await world.train(7)
        assert (again.number, again.reason) == (7, "TrainingFailed"), "the failures of an hour ago do not count"
        assert FAILS_AGAIN_S <= asyncio.get_running_loop().time() - began <= FAILS_AGAIN_S + LONG
        assert (await world.train(8)).reason == ""


@pytest.mark.parametrize("uid", ["u-0", "u-2"])
@simulated
async def test_a_trainer_takes_nothing_from_the_checkpoint_of_another_job(tmp_path: Path, uid: str) -> None:
    (tmp_path / "fresh").mkdir()
    async with one_trainer(tmp_path / "fresh", uid) as world:
        expected = await world.train(1)
    async with one_trainer(tmp_path, "u-1") as world:
        first, second = await world.train(1), await world.train(2)
        assert first.update != second.update, "what the first one left out is in the second one"
    async with one_trainer(tmp_path, uid) as world:
        assert (await world.train(1)).update == expected.update


@simulated
async def test_a_trainer_continues_with_the_checkpoint_of_its_own_job(tmp_path: Path) -> None:
    async with one_trainer(tmp_path) as world:
        await world.train(1)
        second = await world.train(2)
    async with one_trainer(tmp_path) as world:
        world.failing = frozenset({2})
        assert (await world.train(2)).update == second.update, "it is not trained again"


@simulated
async def test_samples_that_cannot_be_used_are_reported_and_read_again(tmp_path: Path) -> None:
    async with one_trainer(tmp_path, trouble="DatasetEmpty") as world:
        state = world.states[-1]
        assert (state.number, state.samples, state.reason, state.message) == (0, 0, "DatasetEmpty", "no samples")
        world.trouble = ""
        await eventually(lambda: world.states[-1].reason == "", 2 * READ_AGAIN_S)
        assert world.states[-1].samples == 50
        assert (await world.train(1)).number == 1


@simulated
async def test_the_samples_of_a_report_are_those_to_train_on_and_those_that_are_held_out(tmp_path: Path) -> None:
    async with one_trainer(tmp_path) as world:
        await world.train(1)
        assert world.reporter is not None
        assert world.reporter.training is not None
        progress = world.reporter.training()
        assert progress is not None
        assert (progress.run, progress.round, progress.samples) == ("u-1", 1, 60)


@pytest.mark.parametrize("share", [0.0, 0.05])
@simulated
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
        assert [(reason, trouble()) for reason, trouble in reporter.troubles] == [(STARVED, "it gets less")][
            : len(running)
        ]
    assert not running
