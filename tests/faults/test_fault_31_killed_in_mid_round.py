"""Fault 31: kill -9 of the aggregator, a trainer, or the broker in mid-round. At most that round again, same result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from halimede.messages import TrainingRound
from services.broker import MosquittoProcess
from tests.ports import free_port
from tests.training_world import AGGREGATOR, TrainingWorld, begin, shares, training, write

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

#: each step of training takes so many seconds: an update is under way when something is killed
STEP_S = 1.0
SLOW = f"""
import time
from halimede.training.trainers.perceptron import Perceptron

class Slow(Perceptron):
    def train(self, data, weights):
        time.sleep({STEP_S})
        return super().train(data, weights)
"""
SPEC = {"entry": "slow_trainer:Slow", "rounds": 3, "minClients": 3, "compression": {"dtype": "float16", "topK": 0.5}}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "slow_trainer.py").write_text(SLOW)
    return {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(3, 150))}


@contextlib.asynccontextmanager
async def own_broker(folder: Path) -> AsyncIterator[MosquittoProcess]:
    broker = MosquittoProcess(folder, port=free_port())
    await broker.start()
    yield broker
    await broker.stop()


def in_mid_round(world: TrainingWorld) -> Callable[[TrainingRound], bool]:
    """Return whether the second round is open, and somebody still trains."""
    return lambda body: body.state == "open" and body.number == 2 and len(body.received) < len(world.trainers)


async def interrupted(
    folder: Path, job: str, data: dict[str, Path], kill: Callable[[TrainingWorld], Awaitable[None]]
) -> TrainingRound:
    """Return the result of a job on a broker of its own, in which something is killed in the second round."""
    folder.mkdir()
    async with (
        own_broker(folder / "broker") as broker,
        training(broker, job, folder, **SPEC, code=folder.parent) as world,
    ):
        begin(world, data)
        await world.until(in_mid_round(world))
        await asyncio.sleep(STEP_S / 2)
        await kill(world)
        return await world.done()


async def nobody(world: TrainingWorld) -> None:
    """Kill nobody."""


async def kill_aggregator(world: TrainingWorld) -> None:
    world.kill(AGGREGATOR)
    world.again(AGGREGATOR)


async def kill_trainer(world: TrainingWorld) -> None:
    world.kill("n1")
    world.again("n1")


async def kill_broker(world: TrainingWorld) -> None:
    await world.broker.restart()


async def kill_all(world: TrainingWorld) -> None:
    for worker in world.processes:
        world.kill(worker)
    await world.broker.restart()
    for worker in world.processes:
        world.again(worker)


async def test_fault_31_kill_9_in_mid_round_changes_no_result(
    tmp_path: Path, unique: str, data: dict[str, Path]
) -> None:
    expected = await interrupted(tmp_path / "nobody", unique, data, nobody)
    assert expected.metrics["accuracy"] > 0.6
    kills = {"aggregator": kill_aggregator, "trainer": kill_trainer, "broker": kill_broker, "all": kill_all}
    for killed, kill in kills.items():
        done = await interrupted(tmp_path / killed, unique, data, kill)
        assert done.weights == expected.weights, killed
        assert done.change == expected.change is not None
        assert done.metrics == expected.metrics
        assert done.epoch == (2 if killed in {"aggregator", "all"} else 1)
        assert "RoundRepeated" not in done.dropped
