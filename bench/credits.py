"""How two cloud workers of different speed share one edge worker's hard samples, over a real Mosquitto.

    python -m bench.credits                     the second one ten times as slow, 16 samples under way
    python -m bench.credits --slower 3 --flight 4

Prints who answered how many, and the median and the 99th percentile of what a sample took, of the fast one alone and of
both. The share that the slow one can bear is 1 in ``slower`` + 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np

from halimede.bus.mqtt import MqttSettings
from halimede.frames import new_frame
from halimede.inference import Array
from halimede.messages import Prediction
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.load_advertiser import load_will
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.workers import RequestWorker
from halimede.worker.main import connect_to
from services.broker import MosquittoProcess
from tests.unit.frames.clouds import NS, SERVICE, Brightness

CONNECT_S, DEADLINE_S = 10.0, 10.0
SHAPE = (96, 96)


class Slow(Brightness):
    """Takes so many seconds for a sample."""

    def __init__(self, each_s: float) -> None:
        super().__init__()
        self._each_s = each_s

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Answer, in that time."""
        time.sleep(self._each_s * len(batch))
        self.batches.clear()
        return super().predict(batch)


async def answer(port: int, name: str, each_ms: float) -> None:
    """Answer until the process is ended."""
    connect = connect_to(MqttSettings("127.0.0.1", port))
    async with connect(name, announce=lambda: load_will(NS, SERVICE, name)) as bus, ModelThread() as thread:
        await bus.wait_connected(CONNECT_S)
        await RequestWorker(
            bus, ModelSlot(LoadedModel(Slow(each_ms / 1000), thread)), inference(NS, SERVICE, name)
        ).run()


@contextlib.asynccontextmanager
async def answering(port: int, clouds: dict[str, float]) -> AsyncIterator[None]:
    """Run cloud workers, by their names and milliseconds, as processes."""
    command = [sys.executable, "-m", "bench.credits", "--port", str(port)]
    running = [
        subprocess.Popen([*command, "--answer", name, "--fast-ms", str(each_ms)])  # noqa: ASYNC220  # before all timing
        for name, each_ms in clouds.items()
    ]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


async def shared(port: int, clouds: dict[str, float], flight: int, samples: int) -> tuple[Counter[str], list[float]]:
    """Keep ``flight`` samples under way; return who answered how many, and the sorted milliseconds that they took."""
    answered: Counter[str] = Counter()
    took: list[float] = []
    frame = np.zeros(SHAPE, np.uint8)
    left = iter(range(samples))

    async def ask(client: OffloadClient) -> None:
        for _ in left:
            began = time.perf_counter()
            answered[(await client.ask(new_frame(frame), DEADLINE_S)).worker] += 1
            took.append((time.perf_counter() - began) * 1000)

    async with answering(port, clouds), connect_to(MqttSettings("127.0.0.1", port))("edge") as bus:
        await bus.wait_connected(CONNECT_S)
        client = OffloadClient(bus, inference(NS, SERVICE, "edge"), window=64, waiters=64)
        await client.start()
        async with asyncio.timeout(CONNECT_S):
            while len(client.credits_left()) < len(clouds):
                await asyncio.sleep(0.05)
        async with asyncio.TaskGroup() as asking:
            for _ in range(flight):
                asking.create_task(ask(client))
    return answered, sorted(took)


async def main(fast_ms: float, slower: float, flight: int, samples: int) -> None:
    """Print the comparison."""
    with tempfile.TemporaryDirectory() as folder:
        async with MosquittoProcess(Path(folder)) as broker:
            for clouds in ({"fast": fast_ms}, {"fast": fast_ms, "slow": fast_ms * slower}):
                answered, took = await shared(broker.port, clouds, flight, samples)
                shares = ", ".join(f"{name} {100 * answered[name] / samples:.1f} %" for name in clouds)
                median, late = took[len(took) // 2], took[len(took) * 99 // 100]
                print(f"{shares:28}  median {median:7.1f} ms  99 % within {late:7.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast-ms", type=float, default=2.0, help="of a sample at the fast one")
    parser.add_argument("--slower", type=float, default=10.0, help="how many times as long the slow one takes")
    parser.add_argument("--flight", type=int, default=16, help="samples under way")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(answer(given.port, given.answer, given.fast_ms))
    else:
        asyncio.run(main(given.fast_ms, given.slower, given.flight, given.samples))
