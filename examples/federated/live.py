"""One training job as processes of their own over a broker, and what it publishes: rounds, bytes and the model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from examples.federated.split import MODEL
from halimede import programs, topics
from halimede.api.trainingmodel import CPU_SHARE
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.errors import HalimedeError
from halimede.messages import TrainingRound
from halimede.system.process_limits import give_low_priority
from halimede.training.tensor_exchange import TensorExchange

NAMESPACE, AGGREGATOR = "default", "aggregator"
#: seconds: to connect; without a new round on a busy machine, which gives trainers little of its time; between two
#: looks at the processes; and for a process to end; most bytes of the model
CONNECT_S, SILENCE_S, POLL_S, END_S, MOST_MODEL = 90.0, 600.0, 1.0, 10.0, 16 * 1024**2


@dataclass
class Traffic:
    """Bytes of payloads on a job's topics: of updates, of weights, and of all messages."""

    updates: int = 0
    weights: int = 0
    all: int = 0
    #: payloads of the first round, to look for samples in
    capture: list[bytes] = field(default_factory=list)


@dataclass
class LiveJob:
    """A job and its six processes. ``rounds`` has each round as it was when the next one opened."""

    name: str
    folder: Path
    broker: str
    spec: Mapping[str, Any]
    files: Mapping[str, Path]
    #: where trainers reach the broker, if it is another address
    nodes_broker: str = ""
    rounds: list[TrainingRound] = field(default_factory=list)
    opened_at: list[float] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    async def run(self, bus: MqttBus, opened: Callable[[TrainingRound], None]) -> bytes:
        """Run the job to its end, and return its model; ``opened`` is called with each round that opens."""
        news: asyncio.Queue[TrainingRound] = asyncio.Queue(maxsize=10_000)

        async def published(delivery: Delivery[TrainingRound]) -> None:
            self._count(delivery)
            news.put_nowait(delivery.body)

        async def passed(delivery: Delivery[Any]) -> None:
            self._count(delivery)

        async def chunk(delivery: Delivery[Any]) -> None:
            self._count(delivery)
            size = len(delivery.packet.payload)
            if delivery.names["source"] == f"{self.name}-{AGGREGATOR}":
                self.traffic.weights += size
            else:
                self.traffic.updates += size

        names = {"ns": NAMESPACE, "job": self.name}
        await bus.subscribe(topics.TRAINING_ROUND.filter(**names), published)
        await bus.subscribe(topics.TRAINER_STATE.filter(**names), passed)
        await bus.subscribe(topics.TRAINING_REQUEST.filter(**names), passed)
        await bus.subscribe(topics.TRAINING_CHUNK.filter(**names), chunk)
        self._start()
        done = await self._follow(news, opened)
        return await self._model(done)

    def stop(self) -> None:
        """End all processes of the job."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def trainer(self, node: str) -> str:
        """Return the name of a node's trainer."""
        return f"{self.name}-{node}"

    def _start(self) -> None:
        trainers = {self.trainer(node): node for node in self.files}
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, node in {f"{self.name}-{AGGREGATOR}": "cloud0", **trainers}.items():
            trains = name in trainers
            program = "trainer" if trains else AGGREGATOR
            broker = self.nodes_broker if trains and self.nodes_broker else self.broker
            told = {
                "NAMESPACE": NAMESPACE, "SERVICE_NAME": self.name, "SERVICE_UID": f"demo-{self.name}",
                "WORKER_NAME": name, "NODE_NAME": node, "MODEL_SPEC": msgspec.json.encode(MODEL).decode(),
                "HALIMEDE_BROKER": broker, "HALIMEDE_STATE": str(self.folder / name), "OMP_NUM_THREADS": "1",
                "TRAINING": json.dumps({"trainers": trainers, "entry": "Perceptron", **self.spec}),
                "TRAIN_DATASET_URL": str(self.files[node].absolute()) if trains else "",
            }  # fmt: skip
            with (self.folder / f"{name}.log").open("wb") as log:
                self.processes[name] = subprocess.Popen(
                    programs.command("worker", program), env={**os.environ, **told}, stdout=log, stderr=log
                )
            has_share = bool(self.spec.get("cpuShare", CPU_SHARE))
            give_low_priority(self.processes[name].pid, has_share=has_share, keeps_share=True)  # as an LC does

    async def _follow(
        self, news: asyncio.Queue[TrainingRound], opened: Callable[[TrainingRound], None]
    ) -> TrainingRound:
        """Note each round until the job is done. Raises HalimedeError if it fails, or goes on no more."""
        seen: tuple[int, int] = (0, 0)
        while True:
            body = await self._next_round(news)
            if body.state == "failed":
                raise HalimedeError(f"job {self.name} failed: {body.reason} {body.message}\n{self._logs()}")
            if body.state == "open" and (body.epoch, body.number) != seen:
                seen = (body.epoch, body.number)
                self.rounds.append(body)
                self.opened_at.append(time.monotonic())
                opened(body)
            if body.state == "done" and body.model:
                self.rounds.append(body)
                self.opened_at.append(time.monotonic())
                return body

    async def _next_round(self, rounds: asyncio.Queue[TrainingRound]) -> TrainingRound:
        """Return the next state of a round. Raises HalimedeError where a process has ended, or none comes."""
        silent_after = time.monotonic() + SILENCE_S
        while time.monotonic() < silent_after:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise HalimedeError(f"job {self.name}: {name} ended with {process.returncode}\n{self._logs()}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    return await rounds.get()
        raise HalimedeError(f"job {self.name}: no new round for {SILENCE_S:g} s\n{self._logs()}")

    async def _model(self, done: TrainingRound) -> bytes:
        """Fetch the model from the aggregator, by a connection whose subscriptions are for that alone."""
        assert done.model is not None  # of ``_follow``
        async with MqttBus(f"demo-{self.name}-model", self.broker) as bus:
            await bus.wait_connected(CONNECT_S)
            exchange = TensorExchange(bus, NAMESPACE, self.name, "demo")
            await exchange.start()
            return await exchange.fetch(done.source, done.model, MOST_MODEL)

    def _count(self, delivery: Delivery[Any]) -> None:
        self.traffic.all += len(delivery.packet.payload)
        if len(self.rounds) < 2:
            self.traffic.capture.append(bytes(delivery.packet.payload))

    def _logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-600:]}" for path in sorted(self.folder.glob("*.log")))

    @property
    def seconds_per_round(self) -> float:
        """The median of the time from one round to the next."""
        return float(np.median(np.diff(self.opened_at)))


@contextlib.asynccontextmanager
async def running(job: LiveJob) -> AsyncIterator[MqttBus]:
    """Connect the demo's own client; all processes of the job end with the block."""
    async with MqttBus(f"demo-{job.name}", job.broker) as bus:
        await bus.wait_connected(CONNECT_S)
        try:
            yield bus
        finally:
            await asyncio.to_thread(job.stop)


class DropOuts:
    """Pauses two of the five trainers in each round, drawn at random: for the others they are gone."""

    def __init__(self, job: LiveJob, number: int) -> None:
        self.paused = 0
        self._job = job
        self._number = number
        self._random = np.random.default_rng(0)

    def opened(self, body: TrainingRound) -> None:
        """Let all trainers run again, and pause others until the next round opens."""
        trainers = [self._job.trainer(node) for node in self._job.files]
        for name in trainers:
            self._job.processes[name].send_signal(signal.SIGCONT)
        if body.only_evaluate:
            return
        for index in self._random.choice(len(trainers), self._number, replace=False):
            self._job.processes[trainers[index]].send_signal(signal.SIGSTOP)
            self.paused += 1
