"""Idle connections fill a health port and are renewed for ever: probes are answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.faults.control import PATIENCE, Child
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

HOST = "127.0.0.1"
PROBES = 20
#: seconds: a probe's time-out, and what a busy machine may add to it
PROMISED, LOAD = 1.0, 1.0
#: what a connection sends before it falls silent
BEGINNINGS = {
    "nothing": b"",
    "half a request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "one request": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


async def hold(port: int, beginning: bytes) -> None:
    """Hold a connection for ever: open it again whenever the server closes it."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(beginning)
            while await reader.read(4096):
                pass
            writer.close()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def idle_connections(port: int, count: int, beginning: bytes) -> AsyncIterator[None]:
    holding = [asyncio.create_task(hold(port, beginning)) for _ in range(count)]
    try:
        await asyncio.sleep(0.5)
        yield
    finally:
        for each in holding:
            each.cancel()
        await asyncio.gather(*holding, return_exceptions=True)


async def probed(url: str) -> float:
    """Probe once on a connection of its own, as kubelets do; return how long it took, in seconds."""
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=patience(PROMISED + LOAD))
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
        assert (await answer.json())["status"] in {"ok", "failed"}
    return time.monotonic() - began


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_fault_29_a_health_port_full_of_idle_connections_answers_probes(beginning: bytes, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "halimede", "lc", "--node", "edge0", "--home", str(tmp_path / "home")]
    command += ["--http", f"{HOST}:{port}", "--broker", f"mqtt://{HOST}:{free_port()}"]
    child = Child(command, tmp_path / "lc.log", {})
    url = f"http://{HOST}:{port}/healthz"

    async def answers() -> bool:
        try:
            return await probed(url) > 0
        except (aiohttp.ClientError, TimeoutError):
            return False

    try:
        await eventually(answers, PATIENCE)
        async with idle_connections(port, 64, beginning):
            took = [await probed(url) for _ in range(PROBES)]
        assert sorted(took)[PROBES // 2] < patience(PROMISED), took
        assert await child.stop() == 0
    finally:
        child.kill()
