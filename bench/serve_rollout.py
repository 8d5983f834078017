"""New versions of a served model under 200 requests a second: failed requests, and times during a change.

A part of ``bench.serve``. The model is larger than the one of the comparison (a megabyte of weights), and the versions
differ. "During" is from the moment the wish is written until the new version answers, its trial in a child process
included, and a second more.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench import results
from bench import serve_load as load
from halimede.models import desired_state
from halimede.models.desired_state import Desired, DesiredModel
from tests.ports import free_port

#: runs a command with variables on cores within the block, once its port answers
Run = Callable[[list[str], dict[str, str], set[int], int], AbstractContextManager[None]]

RATE = 200
WIDTH = 512
#: what is asked of us: p99 during a swap, times the steady one
P99 = 2.0


def write_model(path: Path, seed: int) -> None:
    """Write a perceptron of one hidden layer."""
    random = np.random.default_rng(seed)
    weights = {
        "a": random.standard_normal((64, WIDTH), np.float32) / 8,
        "b": random.standard_normal((WIDTH, WIDTH), np.float32) / 20,
        "c": random.standard_normal((WIDTH, 10), np.float32) / 20,
    }
    nodes = [
        helper.make_node("MatMul", ["X", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["i"]),
        helper.make_node("MatMul", ["i", "b"], ["j"]),
        helper.make_node("Relu", ["j"], ["k"]),
        helper.make_node("MatMul", ["k", "c"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


class Steady:
    """Requests at a fixed rate, whatever becomes of those before: each is (when it was due, seconds, answered)."""

    def __init__(self, port: int, request: bytes) -> None:
        self.answers: list[tuple[float, float, bool]] = []
        self._port, self._request = port, request
        self._idle: list[load.Connection] = []

    async def run(self) -> None:
        """Ask until cancelled."""
        due = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._one(due))
                due += 1 / RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

    async def _one(self, due: float) -> None:
        connection = self._idle.pop() if self._idle else await load.Connection.to("127.0.0.1", self._port)
        good = await connection.ask(self._request)
        self.answers.append((due, time.perf_counter() - due, good))
        if good:
            self._idle.append(connection)

    def p99_ms(self, since: float, until: float) -> float:
        """Return the 99th percentile of what was due in that time."""
        found = sorted(took for due, took, _ in self.answers if since <= due < until)
        return found[min(len(found) - 1, int(0.99 * len(found)))] * 1000

    @property
    def failed(self) -> int:
        """Requests without an answer."""
        return sum(not good for _, _, good in self.answers)


async def version_of(port: int) -> str:
    """Return which version answers now."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v2/models/bench HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    said = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return str(json.loads(said)["versions"][0])


async def measure(folder: Path, run: Run, rounds: int, seconds: float) -> dict[str, Any]:
    """Replace the model so many times; return figures."""
    desired = folder / "models.json"
    # written before anything is measured: the loop that writes them cannot send requests meanwhile
    paths = [folder / f"{number}.onnx" for number in range(rounds + 1)]
    for number, path in enumerate(paths):
        write_model(path, number)

    def use(number: int) -> None:
        model = DesiredModel(name="bench", path=str(paths[number]), version=str(number))
        desired_state.write(desired, Desired(models=[model]))

    use(0)
    port = free_port()
    body = json.dumps({"inputs": [{"name": "X", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}]}).encode()
    command = [sys.executable, "-m", "halimede", "serve", "--file", str(desired), "--http", f"127.0.0.1:{port}"]
    swaps = []
    with run(command, {}, os.sched_getaffinity(0), port):
        asking = Steady(port, load.post("/v2/models/bench/infer", body, Content_Type="application/json"))
        work = asyncio.create_task(asking.run())
        await asyncio.sleep(2.0)
        for number in range(1, rounds + 1):
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            written = time.perf_counter()
            await asyncio.to_thread(use, number)  # it waits for the disk
            while await version_of(port) != str(number):
                await asyncio.sleep(0.05)
            taken = time.perf_counter()
            await asyncio.sleep(1.0)
            steady, during = asking.p99_ms(began, written), asking.p99_ms(written, time.perf_counter() - 0.2)
            swaps.append({"steady_p99_ms": steady, "swap_p99_ms": during, "seconds": taken - written})
        work.cancel()
    return {
        "requests": len(asking.answers),
        "failed": asking.failed,
        "rate": RATE,
        **{name: round(statistics.median(swap[name] for swap in swaps), 3) for name in swaps[0]},
    }


def meets_target(run: Run, rounds: int, seconds: float) -> bool:
    """Replace a model ``rounds`` times, each after so many seconds of steady load, and print what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(measure(Path(folder), run, rounds, seconds))
    met: bool = report["failed"] == 0 and report["swap_p99_ms"] <= P99 * report["steady_p99_ms"]
    print(f"\nnew versions at {RATE} requests a second: {json.dumps(report, indent=2)}")
    print(f"target: none failed, p99 during a swap at most {P99} x the steady one: {'ok' if met else 'MISSED'}")
    results.write(results.FOLDER / "rollout.json", report)
    return met
