"""A federated round compared with Flower's: bytes and seconds.

    python -m bench.federated --rounds 20

The same perceptron, the same digits on five nodes and the same mean (FedAvg), on this machine and in one run, each node
a process. Measured are the seconds from one round to the next, and the bytes of the nodes' TCP connections in both
directions, counted by a proxy between the nodes and Flower's server, or our broker. Flower is installed below
build/peers. Our trainers run each round in a child process within limits, and evaluate the round's weights; Flower's
clients train in their own process, and do not evaluate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import results
from bench.results import ROOT
from examples.federated import simulation, split
from examples.federated.demo import accuracy
from examples.federated.live import LiveJob, running
from halimede import log
from halimede.training.trainers.perceptron import Perceptron
from services.broker import MosquittoProcess

PEERS = ROOT / "build" / "peers"
OUT = results.FOLDER / "federated"
PINS = ("flwr==1.42.0",)
#: packages of ours that the trainer needs, in the versions of constraints.txt
OURS = ("numpy=", "onnxruntime=", "pillow=", "simplejpeg=", "msgspec=", "structlog=")
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
LOCALHOST = "127.0.0.1"
#: seconds for Flower's server to start, and for its whole run
START_S, LONGEST = 60.0, 300.0


@dataclass(frozen=True)
class Measured:
    """One system: seconds of each round, bytes of the nodes' connections in all rounds, and its final accuracy."""

    seconds: list[float]
    bytes: int
    accuracy: float

    def line(self, name: str, rounds: int) -> str:
        """Return the result as people read it."""
        seconds, size = statistics.median(self.seconds), self.bytes / rounds
        return f"{name:22} {seconds:8.3f} s a round {size:12,.0f} bytes a round   accuracy {self.accuracy:.3f}"


class CountingProxy:
    """Forwards TCP connections to a port, and counts the bytes of both directions."""

    def __init__(self, target: int) -> None:
        self.bytes = 0
        self.port = 0
        self._target = target

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CountingProxy]:
        """Listen within the block."""
        server = await asyncio.start_server(self._connected, LOCALHOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection(LOCALHOST, self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._forward(reader, here), self._forward(there, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                self.bytes += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


def peer() -> Path:
    """Return the Python that has Flower, installed on first use."""
    python = PEERS / "flower" / "bin" / "python"
    check = [python, "-c", "import bench.federated_peer"]
    if not python.exists() or subprocess.run(check, cwd=ROOT, check=False, stderr=subprocess.DEVNULL).returncode:
        print("==> installing Flower below build/peers (a minute or two the first time)", flush=True)
        shutil.rmtree(python.parents[1], ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
        ours = [p for p in (ROOT / "constraints.txt").read_text().split() if p.startswith(OURS)]
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS, *ours]
        subprocess.run(install, check=True)
    return python


async def halimede(rounds: int, **changes: Any) -> Measured:
    """Run our job: the nodes reach the broker through the proxy, the aggregator directly."""
    folder = OUT / "halimede"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "broker").mkdir(parents=True)
    async with MosquittoProcess(folder / "broker") as broker, CountingProxy(broker.port).running() as proxy:
        spec = {"rounds": rounds, "parameters": simulation.TRAINER, "aggregation": "FedAvg", "minClients": 5, **changes}
        files, address = split.write(folder / "data"), f"mqtt://{LOCALHOST}:{proxy.port}"
        job = LiveJob("bench", folder, broker.url, spec, files, nodes_broker=address)
        async with running(job) as bus:
            content = await job.run(bus, lambda _: None)
        (folder / "model.onnx").write_bytes(content)
        # the last interval is the evaluation of the final weights
        return Measured(np.diff(job.opened_at).tolist()[:rounds], proxy.bytes, accuracy(folder / "model.onnx"))


async def listening(port: int, server: asyncio.subprocess.Process) -> None:
    """Wait until a server accepts connections on a port, or has ended. Raises TimeoutError."""
    async with asyncio.timeout(START_S):
        while server.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(LOCALHOST, port)
                writer.close()
                return
            await asyncio.sleep(0.1)


async def flower(rounds: int) -> Measured:
    """Run Flower's job."""
    python, folder = peer(), OUT / "flower"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind((LOCALHOST, 0))
        port = free.getsockname()[1]
    environment = {**os.environ, **ALONE, "PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [str(python), "-m", "bench.federated_peer"]
    async with CountingProxy(port).running() as proxy:
        with (folder / "log").open("wb") as out:
            options: dict[str, Any] = {"env": environment, "cwd": ROOT, "stdout": out, "stderr": out}
            weights = folder / "weights.npz"
            processes = [
                await asyncio.create_subprocess_exec(
                    *command, "server", str(port), str(rounds), str(weights), **options
                )
            ]
            try:
                await listening(port, processes[0])
                for samples in split.write(folder / "data").values():
                    words = ("client", str(proxy.port), str(samples))
                    processes.append(await asyncio.create_subprocess_exec(*command, *words, **options))
                async with asyncio.timeout(LONGEST):
                    code = await processes[0].wait()
            finally:
                for process in processes:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
        if code:
            raise SystemExit(f"Flower failed:\n{(folder / 'log').read_text()[-3000:]}")
    with np.load(weights, allow_pickle=False) as file:
        found = Perceptron(**simulation.TRAINER).evaluate(split.unseen(), {name: file[name] for name in file.files})
    return Measured(json.loads(weights.with_suffix(".json").read_text()), proxy.bytes, found["accuracy"])


async def measure(rounds: int) -> dict[str, Measured]:
    """Measure all, one after the other."""
    compressed = {"dtype": "float16", "topK": simulation.COMPRESSION.top_k}
    return {
        "Flower": await flower(rounds),
        "halimede": await halimede(rounds),
        "halimede, compressed": await halimede(rounds, compression=compressed),
    }


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    log.configure("ERROR")
    found = asyncio.run(measure(rounds))
    for name, each in found.items():
        print(each.line(name, rounds))
    figures = {
        name: {"seconds": statistics.median(each.seconds), "bytes": each.bytes / rounds, "accuracy": each.accuracy}
        for name, each in found.items()
    }
    results.write(OUT / "federated.json", figures)


if __name__ == "__main__":
    main()
