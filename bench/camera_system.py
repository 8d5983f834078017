"""The whole of bench.camera: live cameras of 1080p JPEG until their answers, by each system, with the same detector.

Each round starts all processes of a system anew on two cores, lets its cameras send at their rate, and counts answers,
what was dropped and by what, ages, and the processor time of each process. Systems take turns, every other round in
reverse. All models run with one thread, and OpenCV with one. What systems are is in ``SYSTEMS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import urllib.request
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.camera_live import LiveRound, fairness, joined, medians
from bench.camera_model import Detector
from bench.camera_senders import NAMESPACE
from bench.children import child
from bench.offload import ALONE, START, BrokenWayError, cpu_s, said
from halimede import programs
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from tests.ports import free_port

#: one thread of OpenCV as well
ENVIRONMENT = {**ALONE, "OPENCV_FOR_THREADS_NUM": "1"}
SERVICE, CAMERAS = "cameras", "cameras"
#: the film of H.264 that is played, in the folder of a run
FILM = "live.mp4"
#: seconds that a round may take beyond its own time
PATIENCE_S = 120.0
#: counters of a worker that name frames without an answer, with the texts that stand in the table
DROPS = {
    "skipped_frames": "skipped by the worker for a newer one",
    "rejected_frames": "refused by the worker",
    "lost_frames": "lost by the worker",
}
COUNTER = re.compile(r"^halimede_worker_(\w+)_total ([0-9.e+]+)$", re.MULTILINE)


@dataclass
class Running:
    """The processes of a system.

    Attributes:
        live: processes that run a round, each with its cameras.
        counted: processes whose processor time counts, by what they are.
        workers: edge workers, with the addresses of their metrics.

    """

    live: list[tuple[Process, list[str]]]
    counted: dict[str, list[int]]
    workers: dict[Process, str] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    """Processes from cameras to answers. ``opened`` runs them for cameras; ``only_many``: not for one camera."""

    name: str
    text: str
    opened: Callable[[Path, Sequence[str]], contextlib.AbstractAsyncContextManager[Running]]
    only_many: bool = False


@contextlib.asynccontextmanager
async def over_mqtt(kind: str, workers: int, folder: Path, cameras: Sequence[str]) -> AsyncIterator[Running]:
    """Run a broker, cameras and edge workers; of cameras with a URL each has a worker of its own."""
    async with contextlib.AsyncExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-camera-")))
        broker = await stack.enter_async_context(MosquittoProcess(state, port=free_port()))
        arguments = (kind, str(folder), broker.url, SERVICE, *cameras)
        senders = await stack.enter_async_context(child("bench.camera_senders", *arguments, env=ENVIRONMENT))
        urls = json.loads(await said(senders, kind, START))
        sources = [{"url": url} for url in urls.values()] or [{"cameras": list(cameras)}] * workers
        edges: dict[Process, str] = {}
        for number, source in enumerate(sources):
            port = free_port()
            environ = worker_environment(folder, state, broker.url, number, source) | {
                "HALIMEDE_HTTP": f"127.0.0.1:{port}"
            }
            worker = await stack.enter_async_context(child("bench.camera_worker", env=environ))
            edges[worker] = f"http://127.0.0.1:{port}/metrics"
        pids = {"edge": [worker.pid for worker in edges], "broker": [broker.pid or 0], CAMERAS: [senders.pid]}
        if kind == "film":
            player = await stack.enter_async_context(playing(folder / FILM, broker.url, cameras))
            pids[CAMERAS] = [player.pid]
        await until_ready(senders, kind)
        yield Running([(senders, list(cameras))], pids, edges)


@contextlib.asynccontextmanager
async def playing(film: Path, broker: str, cameras: Sequence[str]) -> AsyncIterator[Process]:
    """Let ``halimede camera`` play a film without end for each camera."""
    options = [option for camera in cameras for option in ("--camera", f"{camera}={film}")]
    command = programs.command("camera", *options, "--fps", "0", "--loop", "--broker", broker)
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **ENVIRONMENT})
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


def worker_environment(folder: Path, state: Path, broker: str, number: int, source: dict[str, Any]) -> dict[str, str]:
    """Return the environment of an edge worker that sends nothing to a cloud."""
    detector = Detector.load(folder)
    return {
        **ENVIRONMENT,
        "NAMESPACE": NAMESPACE,
        "SERVICE_NAME": SERVICE,
        "WORKER_NAME": f"edge-{number}",
        "NODE_NAME": f"node-{number}",
        "MODEL_URL": detector.path,
        "MODEL_SPEC": json.dumps(detector.spec),
        "MODEL_THREADS": "1",
        "HEM_NAME": "EdgeOnly",
        "SOURCE": json.dumps(source),
        "HALIMEDE_BROKER": broker,
        "HALIMEDE_FETCH_ALLOW": "loopback",
        "HALIMEDE_STATE": str(state / f"edge-{number}"),
        "GRACE_S": "1",
        "SESSION_KEY": "0" * 32,
        "CAMERA_FPS": "0",
        "CAMERA_STALL_S": "60",
    }


async def until_ready(process: Process, name: str) -> None:
    """Wait until a process prints that it is ready, after whatever an installation prints."""
    while (await said(process, name, START)).strip() != "ready":
        continue


@contextlib.asynccontextmanager
async def without_bus(kind: str, groups: int, folder: Path, cameras: Sequence[str]) -> AsyncIterator[Running]:
    """Run processes that read frames themselves: one, or with ``groups`` 0 one for each camera."""
    shares = [[camera] for camera in cameras] if groups == 0 else [list(cameras)]
    async with contextlib.AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(child("bench.camera_peers", kind, str(folder), env=ENVIRONMENT))
            for _ in shares
        ]
        for process in started:
            await until_ready(process, kind)
        yield Running(list(zip(started, shares, strict=True)), {kind: [process.pid for process in started]})


SYSTEMS = (
    System("halimede", "an edge worker; cameras publish JPEG over MQTT", partial(over_mqtt, "mqtt", 1)),
    System("halimede-2", "two edge workers of one service", partial(over_mqtt, "mqtt", 2), only_many=True),
    System("halimede-url", "an edge worker a camera reads it by source.url (MJPEG)", partial(over_mqtt, "http", 0)),
    System("halimede-h264", "an edge worker; halimede camera makes JPEG of H.264", partial(over_mqtt, "film", 1)),
    System("joint-model", "JointModel in one process, a thread a camera", partial(without_bus, "joint", 1)),
    System("opencv", "OpenCV and ONNX Runtime, a loop over all cameras", partial(without_bus, "opencv", 1)),
    System("opencv-processes", "the same, a process a camera", partial(without_bus, "opencv", 0), only_many=True),
    System("mlserver", "a client decodes by OpenCV, and sends floats by gRPC", partial(without_bus, "mlserver", 1)),
)


async def one_round(system: System, folder: Path, live: LiveRound) -> dict[str, Any]:
    """Start a system, run one round, and return its figures. Raises BrokenWayError."""
    async with system.opened(folder, live.cameras) as running:
        for worker in running.workers:
            await loop_calls(worker)  # those of its start do not count
        pids = [pid for name, pids in running.counted.items() if name not in {"broker", CAMERAS} for pid in pids]
        memory_mb = {"slow": sum(map(resident_mb, pids))}
        drops = [await dropped_by(url) for url in running.workers.values()]
        before = {name: cpu_s(pids) for name, pids in running.counted.items()}
        summaries = await asyncio.gather(
            *(ask(process, replace(live, cameras=cameras), system.name) for process, cameras in running.live)
        )
        spent = {name: cpu_s(pids) - before[name] for name, pids in running.counted.items()}
        figures = joined(summaries)
        for url, counted in zip(running.workers.values(), drops, strict=True):
            for name, count in (await dropped_by(url) - counted).items():
                figures["dropped"][name] = figures["dropped"].get(name, 0) + count
                figures["unexplained"] -= count
        calls = [await loop_calls(worker) for worker in running.workers]
        memory_mb["full"] = sum(map(resident_mb, pids))
        processed = max(1, figures["processed"])
        return figures | {
            "cpu_ms": {name: seconds * 1000 / processed for name, seconds in spent.items()},
            "memory_mb": memory_mb,
            "fairness": fairness(figures.pop("by_camera"), live.cameras),
            **({"loop": max(calls, key=lambda call: float(call["longest_cpu_ms"]))} if calls else {}),
        }


async def ask(process: Process, request: LiveRound, name: str) -> dict[str, Any]:
    """Let a process run its part of a round."""
    assert process.stdin is not None  # for the type checker
    process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
    answer: dict[str, Any] = json.loads(await said(process, name, request.seconds + PATIENCE_S))
    return answer


async def loop_calls(worker: Process) -> dict[str, Any]:
    """Return what calls of a worker's event loop took since the last time."""
    assert worker.stdin is not None  # for the type checker
    worker.stdin.write(b"\n")
    calls: dict[str, Any] = json.loads(await said(worker, "edge worker", START))
    return calls


async def dropped_by(url: str) -> Counter[str]:
    """Return what a worker has counted as dropped so far, by its metrics."""

    def read() -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())

    counts = {name: float(value) for name, value in COUNTER.findall(await asyncio.to_thread(read))}
    return Counter({text: int(counts[name]) for name, text in DROPS.items() if name in counts})


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = sum(int(kilobytes) for kilobytes in re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)) / 1000
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(resident_mb(int(child_pid)) for child_pid in children)


async def measure(
    folder: Path, systems: Sequence[System], counts: Sequence[int], rounds: int, live: LiveRound
) -> dict[str, Any]:
    """Run all systems in turn; return medians over rounds, by number of cameras and system.

    ``live``: rate and seconds of a round.
    """
    figures: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for count in counts:
            request = replace(live, cameras=[f"cam{i}" for i in range(count)])
            for system in systems if number % 2 else systems[::-1]:
                if system.only_many and count == 1:
                    continue
                try:
                    figures.setdefault((count, system.name), []).append(await one_round(system, folder, request))
                except (BrokenWayError, OSError, HalimedeError) as error:
                    print(f"{system.name}, {count} cameras: left out of a round: {error}", file=sys.stderr, flush=True)
        print(f"cameras: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return {
        str(count): {
            system.name: {"rounds": len(rows), **medians(rows)}
            for system in systems
            if (rows := figures.get((count, system.name)))
        }
        for count in counts
    }
