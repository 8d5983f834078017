"""A node in Kubernetes mode over a real broker. The test is kubelet: init containers and workers are its processes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from aiohttp import ClientSession, web

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.bus.rpc import RpcClient
from halimede.messages import LogsReply, LogsRequest, NodeStatus
from services.broker import MosquittoProcess
from tests.digits import Digits
from tests.integration.lc_world import HELMET, FakeGm, model, service
from tests.integration.workers import Site, site
from tests.ports import serve_app
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
POD, ITS_SUCCESSOR = "helmet-deployment-edge-7d9f8-abcde", "helmet-deployment-edge-7d9f8-fghij"


class Kubelet:
    """One node: its LC as a DaemonSet would run it, and the pods of one service."""

    def __init__(self, folder: Path, gm: FakeGm, pods: Site, url: str, sha256: str) -> None:
        self.home, self.gm, self.pods, self.url, self.sha256 = folder / "home", gm, pods, url, sha256
        self.log = folder / "lc.log"
        self.lc: subprocess.Popen[bytes] | None = None

    @property
    def cache(self) -> Path:
        return self.home / "nodes" / "edge0" / "models"

    async def start(self) -> None:
        """Start its LC, and wait for its sync."""
        command = [sys.executable, "-m", "halimede", "lc", "--node", "edge0", "--home", str(self.home)]
        command += ["--fetch-allow", "loopback"]
        environ = {**os.environ, "HALIMEDE_PODS": "1", "HALIMEDE_BROKER": self.pods.broker.url}
        with self.log.open("ab") as log:
            self.lc = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        syncs = len(self.gm.syncs)
        await eventually(lambda: len(self.gm.syncs) > syncs, PATIENCE)

    def end(self, number: int) -> int:
        assert self.lc
        self.lc.send_signal(number)
        return self.lc.wait(PATIENCE)

    async def pod(self, name: str) -> None:
        """Run a pod: its init container, then its worker."""
        out = self.home.parent / name / "downloads" / "small.onnx"
        command = [sys.executable, "-m", "halimede.models", "--url", self.url, "--sha256", self.sha256]
        command += ["--cache", str(self.cache), "--out", str(out), "--allow", "loopback"]
        await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, timeout=PATIENCE)
        told = {"NODE_NAME": "edge0", "SERVICE_UID": "u1", "DEADLINE_MS": "200"}
        self.pods.start("edge", name, out, **told)
        await self.pods.running(name)
        await self.gm.reaches(HELMET, "Running")
        assert self.named() == {name}

    async def insert(self) -> NodeStatus:
        """Send the Model and the service, which no pod runs yet; return what the node reports."""
        await self.gm.insert(model(url=self.url, sha256=self.sha256), service())
        return await self.gm.reaches(HELMET, "Pending", "NoWorkerHere")

    def counted(self) -> int | None:
        status = self.gm.statuses.get(HELMET)
        info = status.output.task_info if status and status.output else None
        return info.inference_number if info else None

    async def counts(self, number: int) -> None:
        def shown() -> str:
            return f"{self.counted()} is counted, not {number}: {self.gm.statuses.get(HELMET)}"

        await eventually(lambda: self.counted() == number, PATIENCE, shown=shown)

    def named(self) -> set[str]:
        return {worker.name for worker in self.gm.statuses[HELMET].workers}


@pytest.fixture
async def downloads(digits: Digits) -> AsyncIterator[tuple[str, list[str]]]:
    """Where the small model comes from, and who has asked for it."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=digits.small.read_bytes())

    app = web.Application()
    app.router.add_get("/small.onnx", answer)
    async with serve_app(app) as address:
        yield f"http://{address}/small.onnx", asked


@pytest.fixture
async def node(
    tmp_path: Path, own_broker: MosquittoProcess, digits: Digits, downloads: tuple[str, list[str]]
) -> AsyncIterator[Kubelet]:
    sha256 = hashlib.sha256(digits.small.read_bytes()).hexdigest()
    async with (
        site(own_broker, "helmet", tmp_path) as pods,
        FakeGm(MqttBus("gm", own_broker.url)).running() as gm,
    ):
        made = Kubelet(tmp_path, gm, pods, downloads[0], sha256)
        try:
            await made.start()
            yield made
        finally:
            if made.lc and made.lc.poll() is None:
                made.lc.kill()
                made.lc.wait()


async def test_pods_come_and_go_and_their_counts_stay(
    node: Kubelet, digits: Digits, downloads: tuple[str, list[str]]
) -> None:
    status = await node.insert()
    assert (status.uid, status.observed_generation) == ("u1", 1)
    assert (node.cache / "sha256" / node.sha256).exists()

    await node.pod(POD)
    await node.pods.send_all(digits.pictures[:40])
    await node.counts(40)

    # the pod is deleted, another one takes its place
    await node.pods.workers[0].terminate()
    await eventually(lambda: node.named() == set(), PATIENCE)
    await node.counts(40)
    await node.pod(ITS_SUCCESSOR)
    await node.pods.send_all(digits.pictures[40:60])
    await node.counts(60)
    assert downloads[1] == ["/small.onnx"]  # LC has brought it ahead of time, for all of them

    # the controller is updated; nobody who runs is stopped
    assert node.end(signal.SIGTERM) == 0
    assert node.pods.workers[1].process.poll() is None
    node.gm.statuses.clear()
    await node.start()
    await node.gm.reaches(HELMET, "Running")
    await node.counts(60)

    # and killed: what was on disk and what the pod tells again is all there is
    await asyncio.sleep(6)
    node.end(signal.SIGKILL)
    node.gm.statuses.clear()
    await node.start()
    await node.pods.send_all(digits.pictures[60:70])
    await node.counts(70)

    assert node.lc
    assert psutil.Process(node.lc.pid).children() == []
    await node.gm.delete(HELMET, "u1")
    await node.gm.forgotten(HELMET)
    assert node.pods.workers[1].process.poll() is None  # pods are not its to stop


async def test_logs_are_answered_with_what_to_use(node: Kubelet) -> None:
    async with MqttBus("operator-logs", node.pods.broker.url) as bus:
        await bus.wait_connected(patience(PATIENCE))
        requests: RpcClient[LogsReply] = RpcClient(bus, topics.LOGS_REPLY.at(client="operator-logs"))
        await requests.start()
        address = topics.LOGS_REQUEST.at(node="edge0", client="operator-logs")
        reply = await requests.ask(address, LogsRequest(namespace="default", worker=POD), timeout_s=PATIENCE)
        assert f"kubectl logs --namespace default {POD}" in reply.body.error


async def test_it_is_well_and_has_its_cache_before_any_pod(node: Kubelet) -> None:
    """Kubelet kills a controller that says otherwise, and makes a cache that is not there: as root."""
    await eventually(lambda: node.gm.presences, PATIENCE)
    async with ClientSession() as session, session.get(f"{node.gm.presences[-1].http}/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok", "checks": {"tasks": "ok"}})
    assert node.cache.is_dir()
