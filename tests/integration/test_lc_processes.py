"""A real local controller with real workers and a real broker: what survives what."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from halimede.bus.mqtt import MqttBus
from services.broker import MosquittoProcess
from tests.integration.lc_world import HELMET, FakeGm, model, service
from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0

STEADY = """
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("steady", flush=True)
while True:
    threading.Event().wait(3600)
"""
STUBBORN = STEADY.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
FAMILY = "sleep 3600 & sleep 3600 & exec python3 steady.py"


class Node:
    """One node on a machine of its own, as far as its files go."""

    def __init__(self, folder: Path, broker: MosquittoProcess, gm: FakeGm) -> None:
        self.folder, self.broker, self.gm = folder, broker, gm
        self.home = folder / "home"
        self.process: subprocess.Popen[bytes] | None = None
        for name, text in (("steady", STEADY), ("stubborn", STUBBORN)):
            (folder / f"{name}.py").write_text(text)
        (folder / "model.onnx").write_bytes(b"a model")

    def command(self) -> list[str]:
        options = ["--node", "edge0", "--home", str(self.home), "--broker", self.broker.url]
        return [sys.executable, "-m", "halimede", "lc", *options]

    def start(self) -> None:
        env = {**os.environ, "HALIMEDE_TEST_HOME": str(self.home)}
        with (self.folder / "lc.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        assert self.process
        self.process.kill()
        self.process.wait(patience(PATIENCE))

    async def killed(self) -> int:
        """Kill; return how many syncs GM has had, once it has heard all that was still on its way."""
        self.kill()
        await eventually(lambda: not self.gm.presences[-1].online, PATIENCE)
        return len(self.gm.syncs)

    def stop(self) -> int:
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patience(PATIENCE))

    def leftovers(self) -> list[psutil.Process]:
        """Everything that this node has started and that still runs, its controller aside."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("HALIMEDE_TEST_HOME") == str(self.home)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return [p for p in found if not self.process or p.pid != self.process.pid]

    def workers(self) -> list[int]:
        """Those of them that lead a process group: what they start does not; a model's trial is no worker."""
        found = []
        for process in self.leftovers():
            with contextlib.suppress(ProcessLookupError, psutil.Error):  # it may end while we look
                if "WORKER_NAME" in process.environ() and os.getpgid(process.pid) == process.pid:
                    found.append(process.pid)
        return found

    def runs(self, *command: str) -> dict[str, Any]:
        """Return the container of an edge worker in this node's folder."""
        return {"image": "any", "command": [*command], "workingDir": str(self.folder)}

    async def insert(self, *services: dict[str, Any]) -> None:
        """Send the Model, and services."""
        await self.gm.insert(model(url=str(self.folder / "model.onnx")), *services)

    async def has_worker(self, *, other_than: int = 0) -> int:
        """Wait until exactly one worker runs, which is not that one; return its process."""

        def one() -> list[int]:
            pids = self.workers()
            return pids if len(pids) == 1 and pids != [other_than] else []

        return (await eventually(one, PATIENCE))[0]

    async def follows(self, syncs: int) -> None:
        """Start the controller again, and wait until GM has had more syncs than these."""
        self.start()
        await eventually(lambda: len(self.gm.syncs) > syncs, PATIENCE)


@pytest.fixture
async def node(tmp_path: Path, own_broker: MosquittoProcess) -> AsyncIterator[Node]:
    async with FakeGm(MqttBus("gm", own_broker.url)).running() as gm:
        made = Node(tmp_path, own_broker, gm)
        await made.follows(0)
        try:
            yield made
        finally:
            if made.process and made.process.poll() is None:
                made.process.kill()
                made.process.wait()
            made.process = None
            for process in made.leftovers():
                with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself just now
                    process.kill()


@pytest.mark.slow
async def test_workers_survive_a_killed_controller_and_are_adopted(node: Node) -> None:
    await node.insert(service(edge=node.runs("python3", "steady.py")))
    pid = await node.has_worker()
    await node.gm.reaches(HELMET, "Running")

    before = await node.killed()
    assert node.workers() == [pid]

    await node.follows(before)
    assert node.gm.presences[-1].online
    assert node.gm.presences[-1].epoch > node.gm.presences[0].epoch
    assert node.gm.held() == {("small", "uid-small", 1), ("helmet", "u1", 1)}
    await node.gm.reaches(HELMET, "Running")
    assert node.workers() == [pid]

    os.kill(pid, signal.SIGKILL)
    await node.has_worker(other_than=pid)

    assert node.stop() == 0
    assert node.leftovers() == []


@pytest.mark.slow
async def test_a_clean_stop_leaves_no_process_whatever_the_workers_are(node: Node) -> None:
    stubborn = service("stubborn", uid="u2", edge=node.runs("python3", "stubborn.py"))
    stubborn["spec"]["edgeWorker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    await node.insert(service(edge=node.runs("sh", "-c", FAMILY)), stubborn)
    await eventually(lambda: len(node.leftovers()) == 4, PATIENCE)
    log = node.home / "nodes/edge0/workers/default/stubborn-edge-edge0/worker.log"
    await eventually(lambda: "steady" in log.read_text(), PATIENCE)
    assert node.stop() == 0
    assert node.leftovers() == []
    await eventually(lambda: not node.gm.presences[-1].online, PATIENCE)


async def test_a_worker_that_dies_takes_its_family_with_it_before_the_next_one(node: Node) -> None:
    await node.insert(service(edge=node.runs("sh", "-c", FAMILY)))
    log = node.home / "nodes/edge0/workers/default/helmet-edge-edge0/worker.log"
    await eventually(lambda: log.exists() and "steady" in log.read_text(), PATIENCE)  # all three are there
    first = {p.pid for p in node.leftovers()}
    assert len(first) == 3
    os.kill(node.workers()[0], signal.SIGKILL)
    await eventually(lambda: len(node.leftovers()) == 3 and not first & {p.pid for p in node.leftovers()}, PATIENCE)


async def test_a_second_controller_of_a_node_is_refused(node: Node) -> None:
    done = await asyncio.to_thread(
        subprocess.run, node.command(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "another local controller uses" in done.stderr
    assert "Traceback" not in done.stderr
    assert node.process
    assert node.process.poll() is None


async def test_a_worker_inherits_no_secret_and_holds_no_file_of_the_controller(node: Node) -> None:
    await node.insert(service(edge=node.runs("python3", "steady.py")))
    worker = psutil.Process(await node.has_worker())
    await eventually(lambda: worker.cmdline()[-1] == "steady.py", PATIENCE)
    files = {f.path for f in worker.open_files()}
    assert not {path for path in files if "store.db" in path or "lc.lock" in path}
    assert worker.net_connections() == []
    environment = worker.environ()
    assert environment["MODEL_URL"].startswith(str(node.home / "nodes/edge0/models/sha256/"))
    assert json.loads(environment["MODEL_SPEC"])["format"] == "onnx"
    assert not {name for name in environment if name.startswith("PYTEST")}


async def test_an_idle_controller_is_small_and_imports_nothing_heavy(node: Node) -> None:
    assert node.process
    process = psutil.Process(node.process.pid)
    assert process.memory_info().rss < 60e6
    maps = {m.path for m in process.memory_maps()}
    assert not [path for path in maps if any(word in path for word in ("numpy", "onnxruntime", "PIL", "cryptography"))]
