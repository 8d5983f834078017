"""What one node's parts weigh while nothing happens: a real local controller, and a real edge worker with its model."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench.control_run import end_process, start_gm
from services.broker import MosquittoProcess
from tests.integration.workers import site
from tests.ports import free_port

MODEL = Path(__file__).parent.parent / "examples" / "digits" / "models" / "small.onnx"
#: seconds until a process has started and is quiet, and over which its processor time is taken
SETTLE, IDLE = 6.0, 15.0


async def idle(seconds: float = IDLE, settle: float = SETTLE) -> dict[str, float | None]:
    """Return the resident memory of both, and the processor time of the controller in percent of a core.

    The worker's is None where ``make train`` has not been run.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        async with (
            MosquittoProcess(folder / "broker", port=free_port()) as broker,
            site(broker, "digits", folder) as workers,
        ):
            command = [sys.executable, "-m", "halimede", "lc", "--node", "edge0", "--home", str(folder)]
            started = [await start_gm(broker, folder)]
            try:
                with (folder / "lc.log").open("wb") as log:
                    lc = await asyncio.create_subprocess_exec(*command, "--broker", broker.url, stdout=log, stderr=log)
                started.append(lc)
                await asyncio.sleep(settle)
                before, began = nanoseconds(lc.pid), time.monotonic()
                await asyncio.sleep(seconds)
                used = (nanoseconds(lc.pid) - before) / 1e9 / (time.monotonic() - began)
                found: dict[str, float | None] = {"lc_rss_mb": rss_mb(lc.pid), "lc_idle_cpu_pct": round(100 * used, 3)}
                found["edge_worker_rss_mb"] = None
                if MODEL.exists():
                    worker = workers.start("edge", "digits-edge-edge0", MODEL, LC_PERIOD="1")
                    await workers.running("digits-edge-edge0")
                    await asyncio.sleep(min(1.0, settle))
                    found["edge_worker_rss_mb"] = rss_mb(worker.process.pid)
            finally:
                for process in started:
                    await end_process(process)
    return found


def rss_mb(pid: int) -> float:
    """Return resident memory in MB (10^6 bytes)."""
    resident: int = psutil.Process(pid).memory_info().rss
    return round(resident / 1e6, 1)


def nanoseconds(pid: int) -> int:
    """Return a process's time on processors, finer than in ticks of the clock."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)
