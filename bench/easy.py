"""An easy sample at an edge worker: its time in addition to the model's call, at most 50 us.

    python -m bench.easy                  prints the figures and where the time goes
    python -m bench.easy --profile        prints the 40 functions with the most time of their own

The edge worker is the real one: its slot, ONNX model, mining, policy, ledger and file, trace buffer and outbox. Only
the ends are stand-ins: frames come as packed bytes from memory, and results are written as JSON to a bus that answers
at once. A sample is timed from ``offer`` until its result is handed to the bus. The bare run is ``session.run`` of the
same session on the same array (of pictures with the steps before it), in turns with the samples. Medians of samples,
then of rounds. A machine that is busy otherwise slows both, the loop more than the bare run: judge on a quiet one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import results
from bench.easy_ends import Nobody, Sink
from examples.digits import data
from halimede import topics
from halimede.api.model import ModelSpec
from halimede.api.processing import Cast, Grayscale, Layout, Postprocess, Resize, Scale
from halimede.frames import new_frame, pack
from halimede.inference import Array
from halimede.inference.file_model import FileModel, open_file
from halimede.messages import Count
from halimede.mining import create as create_miner
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.upload_policy.policy import create as create_policy
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from halimede.worker.settings import WorkerSettings

MODEL = Path(__file__).parent.parent / "examples" / "digits" / "models" / "small.onnx"
WRITTEN = results.FOLDER / "easy.json"
ROUNDS, SAMPLES, WARM = 7, 1500, 300
#: bare runs and samples take turns in so many, so that both see the same machine
TURN = 50
TARGET_US = 50.0
SPEC = ModelSpec(
    url=str(MODEL),
    format="onnx",
    labels=[str(digit) for digit in range(10)],
    postprocess=Postprocess(task="classification", output="probabilities"),
)
#: as the example has it
STEPS = [Grayscale(), Resize(width=8, height=8), Scale(factor=1 / 240), Layout(order="flat"), Cast(dtype="float32")]


@dataclass(slots=True)
class Way:
    """One kind of frame: its pixels, its model's spec, and what was measured, in microseconds a sample."""

    name: str
    spec: ModelSpec
    pixels: Array
    bare: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    #: wall and CPU time of a sample of a stream: 16 are inside
    stream: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def added(self) -> float:
        """What a sample costs over its bare run."""
        return statistics.median(self.wall) - statistics.median(self.bare)


def ways() -> list[Way]:
    """Return the frames that are tried: the model's own input, and the example's pictures with their steps."""
    split = data.load()
    model = open_file(MODEL, SPEC)
    scores = [sorted(model.predict([x.astype(np.float32)])[0].probabilities or []) for x in split.test_x]
    surest = int(np.argmax([row[-1] - row[-2] for row in scores]))
    array = np.ascontiguousarray(split.test_x[surest], np.float32)
    picture = np.rint(array.reshape(8, 8) * 240).astype(np.uint8)
    return [Way("model's input", SPEC, array), Way("picture, 5 steps", replace(SPEC, STEPS), picture)]


def replace(spec: ModelSpec, steps: list[Any]) -> ModelSpec:
    """Return the spec with other steps before the model."""
    return ModelSpec(url=spec.url, format="onnx", labels=spec.labels, preprocess=steps, postprocess=spec.postprocess)


@dataclass(slots=True)
class Bench:
    """A running edge worker, and the bare session beside it."""

    edge: EdgeWorker
    sink: Sink
    model: FileModel
    way: Way

    def bare(self, count: int) -> list[float]:
        """Return times of the bare run, steps before the model included (s)."""
        session = self.model.session
        assert session is not None, "it is open"
        name, steps = session.get_inputs()[0].name, bool(self.way.spec.preprocess)
        array, taken = self.model.prepare(self.way.pixels)[np.newaxis], []
        for _ in range(count):
            began = time.perf_counter()
            if steps:
                array = self.model.prepare(self.way.pixels)[np.newaxis]
            session.run(["probabilities"], {name: array})
            taken.append(time.perf_counter() - began)
        return taken

    async def one_by_one(self, count: int) -> list[float]:
        """Return times from ``offer`` to the result handed over, one frame after the other (s)."""
        taken = []
        for payload in self._payloads(count):
            heard = self.sink.hear(1)
            began = time.perf_counter()
            await self.edge.intake.offer(payload, "cam0")
            taken.append(await heard - began)
            await asyncio.sleep(0)  # the bus says that it has taken it
        return taken

    async def stream(self, count: int, inside: int = 16) -> tuple[float, float]:
        """Return wall and CPU time of one sample (us), where ``inside`` come at once, again and again."""
        payloads = self._payloads(count)
        began, used = time.perf_counter(), time.process_time()
        for first in range(0, count, inside):
            burst = payloads[first : first + inside]
            heard = self.sink.hear(len(burst))
            for payload in burst:
                await self.edge.intake.offer(payload, "cam0")
            await heard
            await asyncio.sleep(0)
        return (time.perf_counter() - began) / count * 1e6, (time.process_time() - used) / count * 1e6

    def _payloads(self, count: int) -> list[bytes]:
        return [pack(new_frame(self.way.pixels, sequence=i)) for i in range(count)]


@contextlib.asynccontextmanager
async def running(way: Way) -> AsyncIterator[Bench]:
    """Run an edge worker within the block, put together as a worker does it."""
    sink = Sink()
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder), "easy") as ledger:
        settings = settings_of(way.spec, Path(folder))
        miner = create_miner(settings.hem_name, settings.hem_parameters, None, settings.hem_mode)
        async with ModelThread() as thread, ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
            model = open_file(MODEL, way.spec)
            slot = ModelSlot(LoadedModel(model, thread, "1"))
            origin, address = Origin("digits", "e0", "n0"), topics.RESULT.at(ns="default", service="digits")
            edge = EdgeWorker(
                slot,
                ResultResponder(origin, result_outbox(sink), address, ledger),
                ledger,
                decoder,
                miner=miner,
                escalation=Escalation(Nobody(), ledger, policy=create_policy(settings, miner, lambda: 0.5)),
            )
            tasks = [group.create_task(work) for work in (edge.run(), slot.watch(60.0))]
            yield Bench(edge, sink, model, way)
            if not await edge.drain(5) or ledger[Count.HARD] or ledger[Count.ANSWERED] != sink.sent:
                raise RuntimeError("samples were not easy, or not answered: the figures mean nothing")
            for task in tasks:
                task.cancel()


def settings_of(spec: ModelSpec, folder: Path) -> WorkerSettings:
    """Return the settings of the example's edge worker."""
    hem: Mapping[str, str] = {"threshold_margin": "0.19"}
    return WorkerSettings(
        role="edge", namespace="default", service="digits", worker="e0", node="n0", uid="easy", model_path=str(MODEL),
        model=spec, estimator="", broker="", state=folder, period_s=1.0, grace_s=5.0, hem_name="Margin",
        hem_parameters=hem,
    )  # fmt: skip


async def run(way: Way, rounds: int, samples: int) -> None:
    """Measure one kind of frame, in turns with its bare run."""
    async with running(way) as bench:
        bench.bare(WARM)
        await bench.one_by_one(WARM)
        for _ in range(rounds):
            bare: list[float] = []
            whole: list[float] = []
            for _ in range(max(1, samples // TURN)):
                bare += bench.bare(TURN)
                whole += await bench.one_by_one(TURN)
            way.bare.append(statistics.median(bare) * 1e6)
            way.wall.append(statistics.median(whole) * 1e6)
            wall, cpu = await bench.stream(samples)
            way.stream.append(wall)
            way.cpu.append(cpu)


def measure(rounds: int = ROUNDS, samples: int = SAMPLES) -> float:
    """Return what an easy sample, the model's own input, costs over its bare run, in microseconds."""
    way = ways()[0]
    asyncio.run(run(way, rounds, samples))
    return way.added


async def profile(way: Way, samples: int) -> pstats.Stats:
    """Return what the functions of the event loop's thread took, for samples one by one."""
    async with running(way) as bench:
        await bench.one_by_one(WARM)
        profiler = cProfile.Profile()
        profiler.enable()
        await bench.one_by_one(samples)
        profiler.disable()
    return pstats.Stats(profiler)


def show(way: Way) -> None:
    """Print one kind of frame."""
    middle = statistics.median
    bare, wall, stream, cpu = middle(way.bare), middle(way.wall), middle(way.stream), middle(way.cpu)
    met = "met" if way.added <= TARGET_US else "not met"
    print(f"{way.name}: bare {bare:.1f} us, one by one {wall:.1f} us, added {way.added:.1f} us ({met})")
    print(f"    a stream: {stream:.1f} us a sample, {cpu:.1f} us of CPU, {1e6 / stream:,.0f} samples/s")
    spread = [f"{min(found):.1f}-{max(found):.1f}" for found in (way.bare, way.wall)]
    print(f"    rounds: bare {spread[0]}, one by one {spread[1]}")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--profile", action="store_true", help="where the time goes, function by function")
    options = parser.parse_args()
    tried = ways()
    if options.profile:
        stats = asyncio.run(profile(tried[0], options.samples))
        stats.sort_stats("tottime").print_stats(40)
        return
    for way in tried:
        asyncio.run(run(way, options.rounds, options.samples))
        show(way)
    found = {way.name: {"bare_us": statistics.median(way.bare), "added_us": way.added} for way in tried}
    results.write(WRITTEN, found)


if __name__ == "__main__":
    main()
