"""What a frame costs in calls: an edge worker and a cloud worker on one event loop, over a real Mosquitto.

Both workers have the same model. It answers a grey picture with two classes that are equally likely, which is a hard
sample, and a black one with a sure class, which is an easy one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.hops_calls import CallRecorder, Cost
from bench.hops_client import SERVICE, Client, client
from halimede.bus.mqtt import MqttSettings
from halimede.worker.bootstrap import serve
from halimede.worker.joint_inference import joint_inference
from halimede.worker.main import connect_to
from halimede.worker.settings import read
from services.broker import MosquittoProcess

KINDS = ("hard", "easy")
#: frames without the profiler before those that count
WARM = 200
#: seconds: after a result, so that acknowledgements are in its window; of watching idle workers; for workers to start,
#: and to end
QUIET, IDLE, START, STOP = 0.03, 4.0, 30.0, 15.0
#: rows of the square matrix that a slow model multiplies: some 5 ms, and no call over 2 ms is made on the event loop
SLOW_ROWS = 512
SPEC = {
    "format": "onnx",
    "labels": ["dark", "bright"],
    "postprocess": {"task": "classification", "output": "probabilities"},
}


class WorkersError(Exception):
    """The workers did not do what is to be measured."""


@dataclass(slots=True)
class Found:
    """What one variant of the models cost: windows of frames by kind, an idle window, and what was not as meant."""

    frames: dict[str, list[Cost]]
    idle: Cost
    notes: list[str]


def write_model(path: Path, *, slow: bool) -> str:
    """Write a model from a uint8 picture to the probabilities of dark and bright; return its path.

    It uses the first row only, so that it is fast on a busy machine, too. A slow one multiplies a matrix first, which
    adds nothing to its answer.
    """
    nodes = [
        helper.make_node("Slice", ["x", "first", "second", "axis"], ["row"]),
        helper.make_node("Cast", ["row"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["mean"], axes=[1, 2, 3], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(np.array(255, np.float32), "white"),
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array([0], np.int64), "first"),
        numpy_helper.from_array(np.array([1], np.int64), "second"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
    ]
    if slow:
        matrix = np.random.default_rng(0).random((SLOW_ROWS, SLOW_ROWS), np.float32)
        constants += [
            numpy_helper.from_array(matrix, "matrix"),
            numpy_helper.from_array(np.array(0, np.float32), "none"),
            numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
        ]
        nodes += [
            helper.make_node("Unsqueeze", ["mean", "axes"], ["mean_matrix"]),
            helper.make_node("Add", ["mean_matrix", "matrix"], ["left"]),
            helper.make_node("MatMul", ["left", "matrix"], ["product"]),
            helper.make_node("ReduceMean", ["product"], ["work"], axes=[1, 2], keepdims=0),
            helper.make_node("Mul", ["work", "none"], ["nothing"]),
            helper.make_node("Add", ["mean", "nothing"], ["value"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["mean"], ["value"]))
    nodes += [
        helper.make_node("Div", ["value", "white"], ["bright"]),
        helper.make_node("Sub", ["one", "bright"], ["dark"]),
        helper.make_node("Unsqueeze", ["dark", "axis"], ["dark_column"]),
        helper.make_node("Unsqueeze", ["bright", "axis"], ["bright_column"]),
        helper.make_node("Concat", ["dark_column", "bright_column"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "brightness",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", "h", "w", "c"])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return str(path)


def environ(role: str, model: str, folder: Path, broker: MosquittoProcess) -> dict[str, str]:
    """Return a worker's environment: the defaults but for what it has to have."""
    return {
        "SERVICE_NAME": SERVICE,
        "WORKER_NAME": f"{SERVICE}-{role}",
        "NODE_NAME": role,
        "MODEL_URL": model,
        "MODEL_SPEC": json.dumps({"url": model, **SPEC}),
        "HEM_NAME": "Margin",
        "HALIMEDE_BROKER": broker.url,
        "HALIMEDE_STATE": str(folder / role),
        "HALIMEDE_HTTP": "off",
        "GRACE_S": "2",
    }


@contextlib.asynccontextmanager
async def workers(folder: Path, broker: MosquittoProcess, model: str) -> AsyncIterator[None]:
    """Run both workers within the block. Raises WorkersError where one ends before it."""
    stop = asyncio.Event()
    tasks = []
    for role in ("edge", "cloud"):
        settings = read(role, environ(role, model, folder, broker))
        work = serve(
            settings, connect_to(MqttSettings.from_url(broker.url)), stop, estimator=None, job=joint_inference(settings)
        )
        tasks.append(asyncio.create_task(work, name=role))
    body = asyncio.current_task()
    assert body is not None  # for the type checker
    ended: list[str] = []

    def on_end(task: asyncio.Task[None]) -> None:
        if stop.is_set():
            return
        stop.set()  # of two workers that end, the first one is reported
        error = None if task.cancelled() else task.exception()
        ended.append(f"the {task.get_name()} worker ended: {error or 'nobody stopped it'}")
        body.cancel()

    for task in tasks:
        task.add_done_callback(on_end)
    try:
        yield
    except asyncio.CancelledError:
        if ended:
            raise WorkersError(ended[0]) from None
        raise
    finally:
        stop.set()
        _, left = await asyncio.wait(tasks, timeout=STOP)
        for task in left:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_as_meant(kind: str, reply: Mapping[str, Any]) -> bool:
    """Whether a hard frame was answered by the cloud, or an easy one by the edge."""
    return bool(reply["by"] == ("cloud" if kind == "hard" else "edge") and not reply["degraded"])


async def until_offloading(camera: Client) -> None:
    """Wait until hard frames are answered by the cloud. Raises WorkersError."""
    clock = asyncio.get_running_loop()
    until = clock.time() + START
    while (reply := await camera.request(frame="hard"))["by"] != "cloud":
        if clock.time() > until:
            raise WorkersError(f"the cloud worker is not asked: {reply}")
        await asyncio.sleep(0.1)


async def measure(recorder: CallRecorder, count: int, *, slow: bool) -> Found:
    """Count the calls of frames of both kinds. Raises ClientError and WorkersError."""
    with tempfile.TemporaryDirectory(prefix="bench-hops-") as name:
        folder = Path(name)
        model = write_model(folder / "model.onnx", slow=slow)
        async with (
            MosquittoProcess(folder / "broker") as broker,
            workers(folder, broker, model),
            client("camera", broker.url) as camera,
        ):
            await until_offloading(camera)
            frames: dict[str, list[Cost]] = {}
            notes: list[str] = []
            for kind in KINDS:
                for _ in range(WARM):
                    await camera.request(frame=kind)
                windows = [await one(recorder, camera, kind) for _ in range(count)]
                frames[kind] = [cost for cost, reply in windows if is_as_meant(kind, reply)]
                notes += differences(windows, kind, slow=slow)
            await asyncio.sleep(1)
            idle = await recorder.record(lambda: asyncio.sleep(IDLE))
    return Found(frames, idle, notes)


async def one(recorder: CallRecorder, camera: Client, kind: str) -> tuple[Cost, dict[str, Any]]:
    """Count the calls of one frame, from before it is published to shortly after its result has arrived."""
    reply: dict[str, Any] = {}

    async def work() -> None:
        reply.update(await camera.request(frame=kind))
        await asyncio.sleep(QUIET)

    return await recorder.record(work), reply


def differences(windows: Sequence[tuple[Cost, Mapping[str, Any]]], kind: str, *, slow: bool) -> Iterator[str]:
    """Yield what was not as meant: who answered, and where the models ran. A slow or busy machine does that."""
    others = [reply for _, reply in windows if not is_as_meant(kind, reply)]
    if others:
        yield f"{len(others)} of {len(windows)} {kind} frames were answered so, and do not count: {others[0]}"
    counted = [cost for cost, reply in windows if is_as_meant(kind, reply)]
    elsewhere = sum(bool(cost.inline if slow else cost.threaded) for cost in counted)
    if elsewhere:
        place = "on the event loop, not in their threads" if slow else "in their threads, not on the event loop"
        model = "slow" if slow else "fast"
        yield f"of {elsewhere} of {len(counted)} {kind} frames with the {model} model, models ran {place}"
