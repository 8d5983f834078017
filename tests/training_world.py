"""A training job over a real broker: its processes, the digits split over its nodes, its messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.mqtt import MqttBus
from halimede.messages import TrainerState, TrainingRound, WorkerInfo
from services.broker import MosquittoProcess
from tests.waiting import eventually, patience

ROOT = Path(__file__).parents[1]
#: seconds: for a job to do some rounds, on a busy machine
JOB_S = 120.0
LABELS = [str(digit) for digit in range(10)]
AGGREGATOR = "aggregator"


def gated_trainer(gate: Path) -> str:
    """Return a script: each update after the first round's waits for a file, so that the second round lasts so long.

    Each update has a process of its own. The biases of the first weights are zero, those of later rounds are not.
    """
    return f"""
import time
from pathlib import Path
from halimede.training.trainers.perceptron import Perceptron

class Gated(Perceptron):
    def train(self, data, weights):
        while weights["layer0.bias"].any() and not Path({str(gate)!r}).exists():
            time.sleep(0.05)
        return super().train(data, weights)
"""


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the digits as rows of 64 values in 0..1, and their classes, in a fixed random order."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.data[order] / 16).astype(np.float32), found.target[order]


def write(path: Path, rows: NDArray[np.float32], classes: NDArray[np.int64]) -> Path:
    np.savez(path, x=rows, y=classes)
    return path


def shares(number: int, samples: int) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Return the samples of each of some nodes: all classes on each."""
    rows, classes = digits()
    return [(rows[i::number][:samples], classes[i::number][:samples]) for i in range(number)]


class TrainingWorld:
    """One job on a broker: its processes, and all packets of its topics."""

    def __init__(
        self, broker: MosquittoProcess, bus: MqttBus, job: str, folder: Path, code: Path | None = None, **spec: Any
    ) -> None:
        self.broker, self.bus, self.job, self.folder, self.spec = broker, bus, job, folder, spec
        self.code = code or folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.trainers: dict[str, str] = {}
        self.environments: dict[str, dict[str, str]] = {}
        #: commands that run the process of a worker
        self.launchers: dict[str, tuple[str, ...]] = {}
        self.round: TrainingRound | None = None
        self.rounds: list[TrainingRound] = []
        self.states: dict[str, TrainerState] = {}
        self.infos: dict[str, WorkerInfo] = {}
        self.packets: list[Packet] = []

    async def listen(self) -> None:
        async def round_(delivery: Delivery[TrainingRound]) -> None:
            self.round = delivery.body
            self.rounds.append(delivery.body)
            self.packets.append(delivery.packet)

        async def state(delivery: Delivery[TrainerState]) -> None:
            self.states[delivery.names["trainer"]] = delivery.body
            self.packets.append(delivery.packet)

        async def info(delivery: Delivery[WorkerInfo]) -> None:
            if delivery.body.owner_name == self.job:
                self.infos[delivery.body.name] = delivery.body

        async def other(delivery: Delivery[Any]) -> None:
            self.packets.append(delivery.packet)

        names = {"ns": "default", "job": self.job}
        await self.bus.wait_connected(patience(JOB_S))
        await self.bus.subscribe(topics.TRAINING_ROUND.filter(**names), round_)
        await self.bus.subscribe(topics.TRAINER_STATE.filter(**names), state)
        await self.bus.subscribe(topics.TRAINING_REQUEST.filter(**names), other)
        await self.bus.subscribe(topics.TRAINING_CHUNK.filter(**names), other)
        await self.bus.subscribe(topics.WORKER_INFO.filter(), info)

    def name(self, worker: str) -> str:
        return f"{self.job}-{worker}"

    def plan(self, *trainers: str) -> None:
        """Set the trainers of the job: each on a node of its name."""
        self.trainers = {self.name(each): f"node-{self.job}-{each}" for each in trainers}

    def start(self, program: str, worker: str, data: Path | None = None, **changes: str) -> None:
        name = self.name(worker)
        model = {"url": "/none", "format": "onnx", "labels": LABELS}
        told = {
            "NAMESPACE": "default", "SERVICE_NAME": self.job, "SERVICE_UID": "u-1", "WORKER_NAME": name,
            "NODE_NAME": self.trainers.get(name, f"node-{self.job}-cloud"), "MODEL_SPEC": json.dumps(model),
            "HALIMEDE_BROKER": self.broker.url, "HALIMEDE_STATE": str(self.folder / name), "LC_PERIOD": "0.2",
            "GRACE_S": "5", "HALIMEDE_LOG": "json", "OMP_NUM_THREADS": "1", "SSL_CERT_FILE": os.devnull,
            "PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{self.code}",
            "TRAINING": json.dumps({"trainers": self.trainers, **self.spec}),
        }  # fmt: skip
        if data is not None:
            told["TRAIN_DATASET_URL"] = str(data)
        self.environments[worker] = {**told, **changes}
        self.processes[worker] = self._spawn(program, worker)

    def _spawn(self, program: str, worker: str) -> subprocess.Popen[bytes]:
        # a session of its own: trainers run when no other process of their session does, and other tests are many
        with (self.folder / f"{worker}.log").open("ab") as log:
            return subprocess.Popen(
                [*self.launchers.get(worker, ()), sys.executable, "-m", "halimede", "worker", program],
                cwd=ROOT, env=self.environments[worker], stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self, worker: str) -> None:
        self.processes[worker].kill()
        self.processes[worker].wait()

    def again(self, worker: str) -> None:
        """Start a killed worker again, with the same settings and files."""
        self.processes[worker] = self._spawn("aggregator" if worker == AGGREGATOR else "trainer", worker)

    async def until(self, condition: Any, timeout_s: float = JOB_S) -> None:
        """Wait for a condition of the present round; show the logs if it does not come."""

        def shown() -> str:
            logs = "".join(f"{path.name}\n{path.read_text()[-3000:]}\n" for path in self.folder.glob("*.log"))
            return f"{self.round}\n{self.states}\n{logs}"

        await eventually(lambda: self.round is not None and condition(self.round), timeout_s, shown=shown)

    async def done(self, timeout_s: float = JOB_S) -> TrainingRound:
        """Wait for the end of the job; return its last state."""
        await self.until(lambda body: body.state == "done", timeout_s)
        assert self.round is not None
        return self.round


@contextlib.asynccontextmanager
async def training(broker: MosquittoProcess, job: str, folder: Path, **spec: Any) -> AsyncIterator[TrainingWorld]:
    """Watch a job; all its processes are killed at the end."""
    async with MqttBus(f"watch-{job}", broker.url) as bus:
        world = TrainingWorld(broker, bus, job, folder, **spec)
        await world.listen()
        try:
            yield world
        finally:
            for worker in world.processes:
                world.kill(worker)


async def run_job(world: TrainingWorld, data: Mapping[str, Path]) -> TrainingRound:
    """Run a job to its end with one trainer for each file of samples."""
    begin(world, data)
    return await world.done()


def begin(world: TrainingWorld, data: Mapping[str, Path], *absent: str) -> None:
    """Start the aggregator, and a trainer for each file of samples; ``absent`` are trainers that do not start."""
    world.plan(*data, *absent)
    world.start("aggregator", AGGREGATOR)
    for name, path in data.items():
        world.start("trainer", name, path)


async def without_interruption(
    broker: MosquittoProcess, job: str, folder: Path, data: Mapping[str, Path], **spec: Any
) -> TrainingRound:
    """Return the result of the same job that nobody interrupts."""
    folder.mkdir()
    async with training(broker, job, folder, **spec) as world:
        return await asyncio.wait_for(run_job(world, data), patience(JOB_S))
