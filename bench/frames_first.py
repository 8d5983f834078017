"""Frames of an edge worker while a trainer trains on the same machine.

    python -m bench.frames_first --seconds 60

``--loops 2``: so many other processes compute all the time, as on a busy node. ``--cpu-share 0``: the share of a core
that the training is promised (default: that of a TrainingModel).

An edge worker answers the frames of a camera at a fixed rate: the digits, with the small model, over Mosquitto. On the
same machine a training job runs, whose steps compute all the time. Its processes are stopped and continued in turns, so
that both kinds of turns see the same machine. A frame is timed from its publication until its result is received.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench import results
from bench.results import ROOT
from examples.digits.data import load
from examples.federated.live import LiveJob, running
from halimede import log, programs, topics
from halimede.api.trainingmodel import CPU_SHARE
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.calibration.measurement import bootstrap
from halimede.frames.payloads import new_frame, pack
from halimede.messages import Result, WorkerInfo
from services.broker import MosquittoProcess

MODEL = ROOT / "examples" / "digits" / "models" / "small.onnx"
OUT = results.FOLDER / "frames_first.json"
CAMERA, SERVICE, NODE = "frames-first", "frames-first", "node0"
#: frames a second; seconds of a turn, after which the first ones do not count; seconds for everything to start
RATE, TURN_S, SETTLE_S, START_S = 50.0, 5.0, 0.5, 90.0
#: seconds without a further result after which those of a turn that have not come are lost
LAST_S = 15.0
#: goal: p99 while training, in multiples of p99 without
MOST = 1.5
#: a step computes for about a second: the trainer does nothing else
TRAINER = {"hidden": "512,512", "epochs": "5", "batch": "16"}
SPEC = {
    "url": str(MODEL), "format": "onnx", "labels": list("0123456789"), "postprocess": {"output": "probabilities"},
    "preprocess": [
        {"op": "grayscale"}, {"op": "resize", "width": 8, "height": 8}, {"op": "scale", "factor": 1 / 240},
        {"op": "layout", "order": "flat"}, {"op": "cast", "dtype": "float32"},
    ],
}  # fmt: skip


@dataclass
class Turns:
    """What was measured in the turns of one kind: seconds of each frame, and frames without a result."""

    #: of each turn
    frames_s: list[list[float]] = field(default_factory=list)
    lost: int = 0

    def percentile(self, share: float, turns: Iterable[int] | None = None) -> float:
        """Return a percentile in seconds: of all turns, or of those with these numbers."""
        numbers = range(len(self.frames_s)) if turns is None else turns
        frames_s = sorted(itertools.chain.from_iterable(self.frames_s[number] for number in numbers))
        return frames_s[max(0, math.ceil(share * len(frames_s)) - 1)]


@dataclass
class FramesFirst:
    """Both kinds of turns, and the rounds that the job did meanwhile."""

    without: Turns = field(default_factory=Turns)
    training: Turns = field(default_factory=Turns)
    rounds: int = 0
    #: processor time of the training process in its turns, as a share of one core
    share: float = 0.0

    @property
    def ratio(self) -> float:
        """Return p99 while training over p99 without."""
        return self._ratio()

    def _ratio(self, turns: Iterable[int] | None = None) -> float:
        numbers = None if turns is None else list(turns)
        return self.training.percentile(0.99, numbers) / self.without.percentile(0.99, numbers)

    def figures(self) -> dict[str, float]:
        """Return what is written. Frames of one turn depend on one another: the interval is of turns."""
        least, most = bootstrap(self._ratio, np.arange(len(self.training.frames_s)))
        lost = self.without.lost + self.training.lost
        figures = {"ratio": self.ratio, "ratio_least": least, "ratio_most": most, "lost": lost, "rounds": self.rounds}
        for name, turns in (("without", self.without), ("training", self.training)):
            figures |= {f"{name}_p{share}_ms": 1000 * turns.percentile(share / 100) for share in (50, 99)}
            figures[f"{name}_frames"] = sum(map(len, turns.frames_s))
        return figures | {"training_share_of_a_core": self.share}


class Stream:
    """Sends frames of the digits at a fixed rate, and receives their results."""

    def __init__(self, bus: MqttBus) -> None:
        self._bus = bus
        self._frames = [(row.reshape(8, 8) * 240).astype(np.uint8) for row in load().test_x[:200]]
        self._sent: dict[str, float] = {}
        self._taken: dict[str, float] = {}
        self._taken_at = 0.0
        self._number = 0

    async def receive(self, delivery: Delivery[Result]) -> None:
        """Receive a result."""
        now, body = time.monotonic(), delivery.body
        if body.id in self._sent and body.id not in self._taken:
            self._taken[body.id] = now - self._sent[body.id]
            self._taken_at = now

    async def turn(self, turns: Turns, seconds: float) -> None:
        """Send frames for some seconds; a late one moves no other one."""
        self._sent.clear()
        self._taken.clear()
        begin = self._taken_at = time.monotonic()
        sending: set[asyncio.Task[None]] = set()
        for number in range(int(seconds * RATE)):
            await asyncio.sleep(begin + number / RATE - time.monotonic())
            task = asyncio.create_task(self._send(counts=number / RATE >= SETTLE_S))
            sending.add(task)
            task.add_done_callback(sending.discard)
        while len(self._taken) < len(self._sent) and time.monotonic() < self._taken_at + LAST_S:
            await asyncio.sleep(0.01)
        turns.frames_s.append(list(self._taken.values()))
        turns.lost += len(self._sent) - len(self._taken)

    async def _send(self, *, counts: bool) -> None:
        frame = new_frame(self._frames[self._number % len(self._frames)], camera=CAMERA, sequence=self._number)
        self._number += 1
        if counts:
            self._sent[frame.id.hex()] = time.monotonic()
        await self._bus.publish(topics.CAMERA_FRAME.at(ns="default", camera=CAMERA), pack(frame))


@contextlib.asynccontextmanager
async def edge(folder: Path, broker: str, bus: MqttBus) -> AsyncIterator[Stream]:
    """Run the edge worker of a service within the block; it decides alone about all frames."""
    stream, ready = Stream(bus), asyncio.Event()

    async def reported(delivery: Delivery[WorkerInfo]) -> None:
        if delivery.body.owner_name == SERVICE and delivery.body.status == "running":
            ready.set()

    await bus.subscribe(topics.RESULT.filter(ns="default", service=SERVICE), stream.receive)
    await bus.subscribe(topics.WORKER_INFO.filter(), reported)
    told = {
        "NAMESPACE": "default", "SERVICE_NAME": SERVICE, "SERVICE_UID": "u-1", "WORKER_NAME": "edge",
        "NODE_NAME": NODE, "MODEL_URL": str(MODEL), "MODEL_SPEC": json.dumps(SPEC), "HALIMEDE_BROKER": broker,
        "HALIMEDE_STATE": str(folder / "edge"), "SOURCE": json.dumps({"cameras": [CAMERA]}), "DEADLINE_MS": "5000",
        "HEM_NAME": "Margin", "HEM_PARAMETERS": '[{"key": "threshold_margin", "value": "0"}]', "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with (folder / "edge.log").open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *programs.command("worker", "edge"), env={**os.environ, **told}, stdout=file, stderr=file
        )
    try:
        async with asyncio.timeout(START_S):
            await ready.wait()
        yield stream
    finally:
        process.terminate()
        await process.wait()


def processes(job: LiveJob) -> Iterator[int]:
    """Yield the processes of a job, and those that compute for them."""
    found = [process.pid for process in job.processes.values()]
    while found:
        yield (pid := found.pop())
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def signalled(job: LiveJob, number: signal.Signals) -> None:
    """Send a signal to all processes of a job."""
    for pid in processes(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def computed(job: LiveJob) -> float:
    """Return the seconds of processor time of the processes that train."""
    return sum(
        sum(int(value) for value in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
        / os.sysconf("SC_CLK_TCK")
        for pid in processes(job)
        if pid not in {process.pid for process in job.processes.values()}
    )


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Let so many processes compute all the time within the block."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


async def measure(folder: Path, seconds: float, *, cpu_share: float = CPU_SHARE) -> FramesFirst:
    """Measure for about so many seconds. ``cpu_share``: of a core, which the training is promised."""
    measured = FramesFirst()
    (folder / "broker").mkdir(parents=True)
    digits = load()
    samples = folder / "digits.npz"
    np.savez(samples, x=digits.train_x, y=digits.train_y.astype(str))
    spec = {"rounds": 10_000, "parameters": TRAINER, "cpuShare": cpu_share}
    async with MosquittoProcess(folder / "broker") as broker:
        job = LiveJob("job", folder / "job", broker.url, spec, {NODE: samples})
        async with running(job) as bus, edge(folder, broker.url, bus) as stream:
            rounds = asyncio.create_task(job.run(bus, lambda _: None), name="job")
            try:
                while len(job.rounds) < 2:
                    if rounds.done():
                        rounds.result()
                    await asyncio.sleep(0.1)
                await alternate(measured, job, stream, seconds)
            finally:
                signalled(job, signal.SIGCONT)
                rounds.cancel()
    return measured


async def alternate(measured: FramesFirst, job: LiveJob, stream: Stream, seconds: float) -> None:
    """Take turns: the job is stopped, and it trains."""
    used = 0.0
    turns = max(1, round(seconds / TURN_S / 2))
    for _ in range(turns):
        signalled(job, signal.SIGSTOP)
        await stream.turn(measured.without, TURN_S)
        signalled(job, signal.SIGCONT)
        before, rounds = computed(job), len(job.rounds)
        await stream.turn(measured.training, TURN_S)
        used += computed(job) - before
        measured.rounds += len(job.rounds) - rounds
    measured.share = used / (turns * TURN_S)


def main() -> None:
    """Measure, and print and write the figures; exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--loops", type=int, default=0, help="other processes that compute all the time")
    parser.add_argument("--cpu-share", type=float, default=CPU_SHARE, help="of a core, promised to the training")
    arguments = parser.parse_args()
    log.configure("ERROR")
    with tempfile.TemporaryDirectory(prefix="frames-first-") as folder, busy(arguments.loops):
        run = measure(Path(folder), arguments.seconds, cpu_share=arguments.cpu_share)
        figures = asyncio.run(run).figures()
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")
    results.write(OUT, figures)
    if figures["lost"] or figures["ratio"] > MOST:
        sys.exit(f"goal missed: no frame lost, and p99 at most {MOST} times that without training")


if __name__ == "__main__":
    main()
