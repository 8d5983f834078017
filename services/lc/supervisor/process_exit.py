"""How a worker's process ends: by itself, or when it is asked to, in the time that it has for that."""

from __future__ import annotations

import asyncio

import structlog

from services.lc.supervisor.process import Process
from services.lc.supervisor.worker_state import WorkerState

log = structlog.get_logger()

#: seconds beyond its grace until a process is killed, and until one that was killed is given up
EXTRA_S, KILL_S = 1.0, 10.0


async def until_end(entry: WorkerState, process: Process) -> int | None:
    """Wait for a process to end, and end it when its worker is stopped; return its exit code, None if unknown."""
    ended = asyncio.ensure_future(process.wait())
    asked = asyncio.ensure_future(entry.stop.wait())
    try:
        await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.terminate()
            await asyncio.wait({ended}, timeout=grace(entry) + EXTRA_S)
        if not ended.done():
            log.warning("worker did not stop in time, killed", worker=str(entry.worker))
            process.kill()
            await asyncio.wait({ended}, timeout=KILL_S)
        if not ended.done():
            log.error("worker cannot be killed, given up", worker=str(entry.worker), pid=process.record.pid)
            return None
        return ended.result()
    finally:
        ended.cancel()
        asked.cancel()


def grace(entry: WorkerState) -> float:
    """Return the seconds that a worker has to stop."""
    return entry.start.spec.grace_s if entry.start else 10.0


def ending(code: int | None) -> str:
    """Say how a process ended."""
    if code is None:
        return "ended (exit code unknown)"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
