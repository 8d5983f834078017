"""A local controller as a process, seen over HTTP: when it is ready, and figures that agree with what it did."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from halimede.bus.mqtt import MqttBus
from halimede.messages import TaskInfo
from services.broker import MosquittoProcess
from tests.integration.lc_world import EDGE, HELMET, SMALL, FakeGm, model, service
from tests.scraping import asked, reaches, scrape, value
from tests.waiting import eventually, patience

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
SCRIPT = """
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    threading.Event().wait(3600)
"""


class Seen:
    """One LC, its broker and its GM."""

    def __init__(self, folder: Path, broker: MosquittoProcess, gm: FakeGm, session: aiohttp.ClientSession) -> None:
        self.folder, self.broker, self.gm, self.session = folder, broker, gm, session
        (folder / "steady.py").write_text(SCRIPT)
        (folder / "model.onnx").write_bytes(b"a model")

    @property
    def url(self) -> str:
        return [presence.http for presence in self.gm.presences if presence.online][-1]  # a will has no address

    async def becomes(self, status: int, path: str = "readyz") -> dict[str, str]:
        return await reaches(self.session, lambda: self.url, path, status)

    async def runs(self) -> int:
        """Have a service whose edge worker runs; return its process."""
        steady = {"command": ["python3", "steady.py"], "workingDir": str(self.folder)}
        await self.gm.insert(model(url=str(self.folder / "model.onnx")), service(edge=steady))
        await self.shows(1, "halimede_lc_workers", role="edge", phase="Running")
        return next(
            process.pid
            for process in psutil.process_iter(["cmdline", "cwd"])
            if "steady.py" in (process.info["cmdline"] or []) and process.info["cwd"] == str(self.folder)
        )

    async def shows(self, wanted: float, name: str, **labels: str) -> None:
        async def is_shown() -> bool:
            return value(await scrape(self.session, self.url), name, **labels) == wanted

        await eventually(is_shown, PATIENCE)


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "halimede", "lc", "--node", "edge0", "--home", str(folder / "home"), *options]


@pytest.fixture
async def seen(tmp_path: Path, own_broker: MosquittoProcess) -> AsyncIterator[Seen]:
    log = tmp_path / "lc.log"
    told = {k: v for k, v in os.environ.items() if k != "HALIMEDE_HTTP"}
    async with FakeGm(MqttBus("gm", own_broker.url)).running() as gm, aiohttp.ClientSession() as session:
        with log.open("ab") as file:
            arguments = command(tmp_path, "--broker", own_broker.url)
            lc = subprocess.Popen(arguments, cwd=ROOT, env=told, stdout=file, stderr=file)
        try:
            await eventually(lambda: gm.presences and gm.syncs, PATIENCE)
            yield Seen(tmp_path, own_broker, gm, session)
        finally:
            lc.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(lc.wait, patience(PATIENCE)) == 0, log.read_text()


async def test_it_is_ready_once_gm_has_answered_and_not_while_the_broker_is_away(seen: Seen) -> None:
    checks = await seen.becomes(503)
    assert checks["broker"] == checks["store"] == "ok"
    assert "GM has not answered" in checks["synced"]
    await seen.gm.synced()
    assert set((await seen.becomes(200)).values()) == {"ok"}

    url = seen.url
    await seen.broker.stop()
    checks = await seen.becomes(503)
    assert "not connected" in checks["broker"]
    assert (await asked(seen.session, url, "healthz"))[0] == 200
    before = len(seen.gm.syncs)
    await seen.broker.start()
    await eventually(lambda: len(seen.gm.syncs) > before, PATIENCE)
    status, checks = await asked(seen.session, url, "readyz")
    assert (status, checks["broker"]) == (503, "ok")  # an answer of before says nothing about what changed since
    await seen.gm.synced()
    assert set((await seen.becomes(200)).values()) == {"ok"}
    assert seen.url == url
    families = await scrape(seen.session, url)
    assert value(families, "halimede_bus_connects_total") >= 2
    assert value(families, "halimede_lc_syncs_total") >= 2
    assert 0 <= value(families, "halimede_lc_sync_age_seconds") < PATIENCE


@pytest.mark.slow
async def test_its_figures_agree_with_what_it_did(seen: Seen) -> None:
    pid = await seen.runs()
    families = await scrape(seen.session, seen.url)
    for name, number in {
        "held_resources": 2, "download_bytes_total": len(b"a model"), "download_seconds_count": 1,
        "worker_restarts_total": 0,
    }.items():  # fmt: skip
        assert value(families, f"halimede_lc_{name}") == number, name
    assert value(families, "halimede_lc_preparations", plural="models", phase="Ready") == 1
    assert value(families, "halimede_lc_store_bytes") > 0
    assert value(families, "halimede_build_info", role="lc") == 1
    assert value(families, "process_resident_memory_bytes") > 0
    await seen.gm.reaches(HELMET, "Running")
    taken = value(await scrape(seen.session, seen.url), "halimede_lc_reports_total")
    assert taken >= sum(seen.gm.reports.values()) >= 2

    os.kill(pid, signal.SIGKILL)
    await seen.shows(1, "halimede_lc_worker_restarts_total")

    await seen.gm.insert(model(generation=2, url=str(seen.folder / "nowhere.onnx")))
    await seen.gm.reaches(SMALL, "Failed", generation=2)
    failures = value(await scrape(seen.session, seen.url), "halimede_lc_preparation_failures_total", reason="NotFound")
    assert failures >= 1


@pytest.mark.slow
async def test_a_worker_is_reported_with_its_address_as_long_as_it_lives(seen: Seen) -> None:
    pid = await seen.runs()
    await seen.gm.says(EDGE, task_info=TaskInfo(), http="http://127.0.0.1:4711")
    await eventually(lambda: _address(seen.gm) == "http://127.0.0.1:4711", PATIENCE)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: _address(seen.gm) == "", PATIENCE)


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            command(tmp_path, "--broker", "127.0.0.1:1", "--http", address),
            cwd=ROOT, capture_output=True, text=True, timeout=patience(PATIENCE), check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert address in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def _address(gm: FakeGm) -> str:
    return gm.statuses[HELMET].workers[0].http if gm.statuses[HELMET].workers else "?"
