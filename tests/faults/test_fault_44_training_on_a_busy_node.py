"""Fault 44: training on a node whose cores are always busy: it gets its promised share of a core, or says `Starved`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.broker import MosquittoProcess
from tests.simulated import eventually
from tests.training_world import TrainingWorld, begin, shares, training, write

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

#: runs a worker in a session with endless loops; all end with this process
BUSY = """
import os, subprocess, sys
from functools import partial
from halimede.system.prctl import end_with_parent

bound = partial(end_with_parent, os.getpid())
for _ in range(os.cpu_count()):
    subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=bound)
sys.exit(subprocess.Popen(sys.argv[1:], preexec_fn=bound).wait())
"""
#: a training that needs SECONDS of processor time, and more while its share of a core is below LEAST; it tells which
#: share it got, and whether it was raised
SPINNING = """
import os, time
from halimede.training.trainers.perceptron import Perceptron

class Spinning(Perceptron):
    def train(self, data, weights):
        began, used, raised = time.monotonic(), time.process_time(), False
        while (computed := time.process_time() - used) < max(SECONDS, LEAST * (time.monotonic() - began)):
            raised |= os.sched_getscheduler(0) == os.SCHED_BATCH
        weights, metrics = super().train(data, weights)
        share = computed / (time.monotonic() - began)
        return weights, {**metrics, "share": share, "raised": float(raised)}
"""
#: the default promise, and the least share that a step of it gets, since it begins with less
PROMISED, LEAST = 0.05, 0.035
#: seconds for what takes a minute on a quiet machine
PATIENCE_S = 600.0


@contextlib.asynccontextmanager
async def busy_training(
    broker: MosquittoProcess, job: str, folder: Path, seconds: float, **changes: int
) -> AsyncIterator[tuple[TrainingWorld, str]]:
    """Train for so many seconds of processor time on a node among endless loops; yield the trainer's name as well."""
    (folder / "spinning_trainer.py").write_text(SPINNING.replace("SECONDS", str(seconds)).replace("LEAST", str(LEAST)))
    (folder / "busy.py").write_text(BUSY)
    data = {"busy": write(folder / "busy.npz", *shares(1, 120)[0])}
    spec = {"entry": "spinning_trainer:Spinning", "rounds": 1, "roundDeadlineS": PATIENCE_S, **changes}
    async with training(broker, job, folder, **spec) as world:
        world.launchers["busy"] = sys.executable, str(folder / "busy.py")
        begin(world, data)
        yield world, world.name("busy")


async def test_fault_44_a_training_gets_its_share_of_a_core_or_says_that_it_does_not(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with busy_training(mosquitto, unique, tmp_path, 2.0) as (world, trainer):

        def metrics() -> dict[str, float]:
            return world.states[trainer].metrics if trainer in world.states else {}

        def is_starved() -> bool:  # other tests may need the cores as well
            return trainer in world.infos and world.infos[trainer].reason == "Starved"

        await eventually(lambda: metrics() or is_starved(), PATIENCE_S)
        # other processes may leave it a part of a core: where the system stops them all for a time, as in a container
        assert is_starved() or metrics()["raised"] or metrics()["share"] >= PROMISED


async def test_fault_44_a_training_that_gets_less_is_starved(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with busy_training(mosquitto, unique, tmp_path, 10_000.0, cpuShare=1) as (world, trainer):
        await eventually(lambda: trainer in world.infos and world.infos[trainer].reason == "Starved", PATIENCE_S)
        assert "% of a core in the last minute, 100 % are promised" in world.infos[trainer].message
        assert world.infos[trainer].status == "running"
