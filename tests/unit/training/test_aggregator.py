"""The aggregator of a job, whose trainers the test is: what it counts, and what it takes from earlier jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import TensorFile, TrainerState, TrainingRound
from halimede.training import aggregator
from halimede.training.aggregator import FOLDER, Aggregator, AggregatorMemory
from halimede.training.checkpoint import Checkpoint
from halimede.training.child_messages import TrainingResult
from halimede.training.settings import TrainingSettings, read_training
from halimede.training.tensor_file import encode
from halimede.training.weights import specs_of
from halimede.worker.status_reporter import StatusReporter
from tests.simulated import eventually, simulated

JOB, TRAINER = "digits", "n0"
NAMES = {"ns": "default", "job": JOB}
#: simulated seconds
LONG = 600.0


def settings(folder: Path, uid: str, least: int = 1) -> TrainingSettings:
    return read_training(
        "aggregator",
        {
            "NAMESPACE": "default", "SERVICE_NAME": JOB, "SERVICE_UID": uid, "WORKER_NAME": "digits-aggregator",
            "NODE_NAME": "cloud0", "MODEL_SPEC": json.dumps({"url": "/none", "format": "onnx", "labels": ["a", "b"]}),
            "HALIMEDE_STATE": str(folder),
            "TRAINING": json.dumps({"trainers": {TRAINER: "edge0", "n1": "edge0"}, "rounds": 9, "minClients": least}),
        },
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _first_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(*_: object, **__: object) -> TrainingResult:
        weights = {"layer": np.zeros(4, np.float32)}
        return TrainingResult(content=encode(weights), specs=specs_of(weights))

    monkeypatch.setattr(aggregator, "run_step", step)


@contextlib.asynccontextmanager
async def running(
    folder: Path, uid: str = "u-1", least: int = 1
) -> AsyncIterator[tuple[MemoryBus, list[TrainingRound]]]:
    """Run an aggregator; yield the bus of its trainers, and all rounds that it publishes."""
    broker, rounds = MemoryBroker(), list[TrainingRound]()

    async def published(delivery: Delivery[TrainingRound]) -> None:
        rounds.append(delivery.body)

    async with MemoryBus("trainers", broker) as bus, MemoryBus("digits-aggregator", broker) as own:
        await bus.subscribe(topics.TRAINING_ROUND.filter(**NAMES), published)
        made = settings(folder, uid, least)
        party = Aggregator(made, own, StatusReporter(own, made.worker)).run(lambda: None, asyncio.Event())
        task = asyncio.create_task(party)
        try:
            await eventually(lambda: bool(rounds) or task.done(), LONG)
            yield bus, rounds
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def publish(bus: MemoryBus, trainer: str = TRAINER, **changes: Any) -> None:
    state = TrainerState(job="u-1", life="1", samples=50, shape=[64], **changes)
    await bus.publish(topics.TRAINER_STATE.at(node="edge0", trainer=trainer, **NAMES), state)


@simulated
async def test_rounds_are_published_with_as_many_reasons_as_fit_however_many_a_trainer_has(tmp_path: Path) -> None:
    async with running(tmp_path) as (bus, rounds):
        await publish(bus)
        for number in range(66):
            await eventually(lambda epoch=number + 1: (rounds[-1].epoch, rounds[-1].state) == (epoch, "open"), LONG)
            await publish(bus, epoch=rounds[-1].epoch, number=1, reason=f"Reason{number}")
        await eventually(lambda: rounds[-1].dropped.get("RoundRepeated") == 66, LONG)
        # a round that was repeated has both its own reason and that it was repeated
        assert rounds[-1].dropped == {"RoundRepeated": 66} | {f"Reason{number}": 1 for number in range(63)}


@pytest.mark.parametrize("uid", ["u-0", "u-2"])
@simulated
async def test_an_aggregator_takes_nothing_from_the_checkpoint_of_another_job(tmp_path: Path, uid: str) -> None:
    memory = AggregatorMemory(job="u-1", epoch=3, number=4, dropped={"Late": 2}, metrics={"accuracy": 0.5})
    Checkpoint(tmp_path / FOLDER, AggregatorMemory).save(memory, set())
    async with running(tmp_path, uid) as (_, rounds):
        assert (rounds[0].job, rounds[0].epoch, rounds[0].number) == (uid, 1, 1)
        assert not rounds[0].dropped
        assert not rounds[0].metrics
    async with running(tmp_path, uid) as (_, rounds):
        assert (rounds[0].job, rounds[0].epoch) == (uid, 2), "its own one is continued"


@pytest.mark.parametrize("update", [None, TensorFile(digest="0" * 64, size=10)])
@simulated
async def test_a_state_of_another_round_is_counted_once_and_its_trainer_is_waited_for(
    tmp_path: Path, update: TensorFile | None
) -> None:
    async with running(tmp_path, least=2) as (bus, rounds):
        for trainer in (TRAINER, "n1"):
            await publish(bus, trainer)
        await eventually(lambda: rounds[-1].state == "open", LONG)
        await publish(bus, epoch=1, number=7, update=update)
        await eventually(lambda: rounds[-1].dropped == {"UnknownRound": 1}, LONG)
        assert (rounds[-1].state, rounds[-1].refused) == ("open", {})
        await asyncio.sleep(settings(tmp_path, "u-1").job.round_deadline_s)
        await eventually(lambda: (rounds[-1].epoch, rounds[-1].state) == (2, "open"), LONG)
        await publish(bus, epoch=2, number=1, reason="TrainingFailed")
        await eventually(lambda: rounds[-1].refused == {TRAINER: "TrainingFailed"}, LONG)
        assert rounds[-1].dropped == {"UnknownRound": 1, "RoundRepeated": 1, "TrainingFailed": 1}


@simulated
async def test_a_job_that_waits_for_trainers_has_its_present_reason_and_none_once_they_are_there(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, least=2) as (bus, rounds):
        for count, trainer in enumerate((TRAINER, "n1")):
            text = f"{count} of 2 trainers can take part: 2 must"
            await eventually(lambda text=text: rounds[-1].message == text, LONG)
            assert rounds[-1].reason == "TooFewTrainers"
            await publish(bus, trainer)
        await eventually(lambda: rounds[-1].state == "open", LONG)
        assert (rounds[-1].reason, rounds[-1].message) == ("", "")
