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
#: a training that needs SECONDS of processor time, and more while its share of a core is below LEAST, for WINDOWS_S at
#: most; it tells which share it got, and whether it was raised
SPINNING = """
import os, time
from halimede.training.trainers.perceptron import Perceptron

SECONDS, LEAST, WINDOWS_S = %(seconds)s, %(least)s, %(windows_s)s

class Spinning(Perceptron):
    def may_catch_up(self, computed, began):
        seconds = time.monotonic() - began
        return seconds < WINDOWS_S and computed < LEAST * seconds

    def train(self, data, weights):
        began, used, raised = time.monotonic(), time.process_time(), False
        while (computed := time.process_time() - used) < SECONDS or self.may_catch_up(computed, began):
            raised |= os.sched_getscheduler(0) == os.SCHED_BATCH
        weights, metrics = super().train(data, weights)
        share = computed / (time.monotonic() - began)
        return weights, {**metrics, "share": share, "raised": float(raised)}
"""
#: the default promise, and the least share that a step of it gets, since it begins with less
PROMISED, LEAST = 0.05, 0.035
#: seconds after which a worker has reported that it gets less: it looks at the last minute
WINDOWS_S = 120.0
#: seconds for what takes a minute on a quiet machine
PATIENCE_S = 300.0


@contextlib.asynccontextmanager
async def busy_training(
    broker: MosquittoProcess, job: str, folder: Path, seconds: float, **changes: int
) -> AsyncIterator[tuple[TrainingWorld, str]]:
    """Train for so many seconds of processor time on a node among endless loops; yield the trainer's name as well."""
    (folder / "spinning_trainer.py").write_text(SPINNING % {"seconds": seconds, "least": LEAST, "windows_s": WINDOWS_S})
    (folder / "busy.py").write_text(BUSY)
    data = {"busy": write(folder / "busy.npz", *shares(1, 120)[0])}
    spec = {"entry": "spinning_trainer:Spinning", "rounds": 1, "roundDeadlineS": 2 * PATIENCE_S, **changes}
    async with training(broker, job, folder, **spec) as world:
        world.launchers["busy"] = sys.executable, str(folder / "busy.py")
        begin(world, data)
        yield world, world.name("busy")


async def test_fault_44_a_training_gets_its_share_of_a_core_or_says_that_it_does_not(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with busy_training(mosquitto, unique, tmp_path, 2.0) as (world, trainer):
        reasons = set[str]()

        def trained() -> bool:
            reasons.update(info.reason for info in world.infos.values() if info.name == trainer)
            return trainer in world.states and bool(world.states[trainer].metrics)

        await eventually(trained, PATIENCE_S)
        metrics = world.states[trainer].metrics
        # other processes may leave it a part of a core: where the system stops them all for a time, as in a container
        assert metrics["raised"] or metrics["share"] >= PROMISED
        assert metrics["share"] >= LEAST or "Starved" in reasons, "other tests may need the cores as well"


async def test_fault_44_a_training_that_gets_less_is_starved(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with busy_training(mosquitto, unique, tmp_path, 10_000.0, cpuShare=1) as (world, trainer):
        await eventually(lambda: trainer in world.infos and world.infos[trainer].reason == "Starved", PATIENCE_S)
        assert "% of a core in the last minute, 100 % are promised" in world.infos[trainer].message
        assert world.infos[trainer].status == "running"
