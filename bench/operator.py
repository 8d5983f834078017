"""GM on Kubernetes at size: many services on many nodes, against a strict double of the API server.

    python -m bench.operator                              500 services, 200 nodes
    python -m bench.operator --services 50 --nodes 20     the same in short

GM is the real process on a real Mosquitto; the API server is a process of its own (bench.apiserver). The nodes' local
controllers are played by one client that takes every insert and reports on it, kubelets by one that makes a pod for
every Deployment. Shown are the time from the creation of a service until its insert is at the node, GM's writes while
nothing happens and after it was killed and started again (but for its Lease), and its memory. Ends with 1 when a
figure misses its target; the targets are those for 500 services on 200 nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.ordering import SequenceNumber
from halimede.messages import NodeStatus, Output, Presence, ResourceBody, TaskInfo
from halimede.names import Key
from services.broker import MosquittoProcess
from tests.integration.gm_world import SERVICES, model, service
from tests.kubernetes.client import Client
from tests.kubernetes.kubeconfig import Config, write
from tests.kubernetes.podstates import running

WRITTEN = Path(__file__).parent.parent / "build" / "operator.json"
KIND = {"models": "models.sedna.io/v1alpha1", SERVICES: f"{SERVICES}.sedna.io/v1alpha1"}
NAMESPACE = "default"
#: services created a second while their way to the node is timed; seconds of quiet, and until all is quiet
RATE, QUIET, SETTLE = 10.0, 30.0, 10.0
P99_MS, RSS_MB = 200.0, 150.0


class ApiServer:
    """The double in its process."""

    def __init__(self) -> None:
        self.users: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ApiServer]:
        """Serve inside the block."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.apiserver", stdin=pipe, stdout=pipe
        )
        try:
            self.users = await self.ask("users")
            yield self
        finally:
            self._process.terminate()
            await self._process.wait()

    async def ask(self, word: str) -> dict[str, Any]:
        """Ask for something."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{word}\n".encode())
        answer: dict[str, Any] = json.loads(await process.stdout.readline())
        return answer


class Nodes:
    """All local controllers in one: it is told what each node is told, and says what each would."""

    def __init__(self, bus: MqttBus, names: list[str]) -> None:
        self.names = names
        self.inserted: dict[Key, float] = {}
        self._bus = bus
        self._number = 0
        self._waiting: asyncio.Queue[tuple[str, Key, ResourceBody]] = asyncio.Queue(100_000)

    async def run(self) -> None:
        """Report on whatever comes."""
        await self._bus.subscribe(topics.INSERT.filter(), self._insert, queue=20_000)
        for name in self.names:
            await self._bus.publish(topics.PRESENCE.at(node=name), Presence(node=name, epoch=1, online=True))
        while True:
            node, key, body = await self._waiting.get()
            metadata = body["metadata"]
            status = NodeStatus(phase="Running", uid=metadata["uid"], observed_generation=metadata["generation"])
            if body["spec"].get("edgeWorker", {}).get("template", {}).get("spec", {}).get("nodeName") == node:
                status.output = Output(task_info=TaskInfo(inference_number=1, edge_inference_number=1))
            self._number += 1
            at = topics.NODE_STATUS.at(node=node, ns=key.namespace, plural=key.plural, name=key.name)
            await self._bus.publish(at, status, properties=SequenceNumber(1, self._number).properties)

    async def _insert(self, delivery: Delivery[ResourceBody]) -> None:
        names = delivery.names
        key = Key(names["plural"], names["ns"], names["name"])
        self.inserted.setdefault(key, time.monotonic())
        await self._waiting.put((names["node"], key, delivery.body))


async def kubelets(client: Client) -> None:
    """Make a pod for every Deployment, once, and have it run: watching, as those do who do this in a cluster."""
    version = (await client.list("Deployment"))["metadata"]["resourceVersion"]
    while True:
        with contextlib.suppress(TimeoutError):
            async with client.watch("Deployment", resourceVersion=version, timeoutSeconds=600) as changes:
                while event := await changes.next(3600.0):
                    kind, deployment = event
                    version = deployment["metadata"]["resourceVersion"]
                    if kind == "ADDED":
                        await run_pod(client, deployment)


async def run_pod(client: Client, deployment: dict[str, Any]) -> None:
    """Be deployment controller, scheduler and kubelet of one Deployment."""
    meta, template = deployment["metadata"], deployment["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"]}
    metadata = {
        "name": f"{meta['name']}-0",
        "labels": template["metadata"]["labels"],
        "ownerReferences": [{**owner, "controller": True}],
    }
    pod = await client.create("Pod", NAMESPACE, {"metadata": metadata, "spec": template["spec"]})
    await client.patch("Pod", NAMESPACE, pod["metadata"]["name"], {"status": running(pod)}, "status")


@contextlib.asynccontextmanager
async def manager(broker: MosquittoProcess, kubeconfig: Path, folder: Path, name: str) -> AsyncIterator[psutil.Process]:
    """Run the real GM inside the block; killed at its end."""
    pods = folder / "pods.json"
    pods.write_text(json.dumps({"broker": broker.url, "credentials": False, "hostPaths": ["/models"]}))
    command = [sys.executable, "-m", "halimede", "gm", "--kubernetes", "--kubeconfig", str(kubeconfig)]
    command += ["--pods-config", str(pods), "--broker", broker.url, "--namespace", NAMESPACE, "--identity", name]
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, env={**os.environ, "HALIMEDE_HOME": str(folder)}
        )
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()
            await process.wait()


async def bench(services: int, nodes: int) -> dict[str, Any]:
    """Run all of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        async with (
            ApiServer().running() as api,
            Client(api.users["url"], api.users["admin"]) as client,
            MosquittoProcess(folder / "broker") as broker,
            MqttBus("bench-nodes", MqttSettings.from_url(broker.url)) as bus,
        ):
            kubeconfig = folder / "gm.yaml"
            write(kubeconfig, Config(url=api.users["url"], token=api.users["gm"]))
            names = [f"node{i:03}" for i in range(nodes)]
            for name in names:
                await client.create("Node", None, {"metadata": {"name": name}})
            lcs = Nodes(bus, names)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(lcs.run()), group.create_task(kubelets(client))]
                try:
                    return await measure(
                        api, client, lcs, services, broker=broker, kubeconfig=kubeconfig, folder=folder
                    )
                finally:
                    for task in tasks:
                        task.cancel()
    raise AssertionError("unreachable")


async def measure(
    api: ApiServer,
    client: Client,
    lcs: Nodes,
    services: int,
    *,
    broker: MosquittoProcess,
    kubeconfig: Path,
    folder: Path,
) -> dict[str, Any]:
    """Create, wait, look, kill, look."""
    found: dict[str, Any] = {"services": services, "nodes": len(lcs.names)}
    async with manager(broker, kubeconfig, folder, "gm-0") as process:
        for number in range(services):
            for size in ("small", "big"):
                await client.create(KIND["models"], NAMESPACE, model(f"{size}-{number}"))
        await settled(api)
        found["created_to_inserted_ms"] = await create(client, lcs, services)
        print("all services are created", file=sys.stderr)
        await until_running(client, services)
        await settled(api)
        before = await api.ask("writes")
        cpu = process.cpu_times()
        await asyncio.sleep(QUIET)
        found["steady_writes"] = more(before, await api.ask("writes"))
        after = process.cpu_times()
        found["idle_cpu_pct"] = round(100 * (after.user + after.system - cpu.user - cpu.system) / QUIET, 2)
        found["rss_mb"] = round(process.memory_info().rss / 1e6, 1)
    before = await api.ask("writes")
    async with manager(broker, kubeconfig, folder, "gm-1") as process:
        await asyncio.sleep(QUIET)
        found["restart_writes"] = more(before, await api.ask("writes"))
        found["restart_rss_mb"] = round(process.memory_info().rss / 1e6, 1)
        extra = service("one-more", edge=lcs.names[0], cloud=lcs.names[-1])
        key = Key(SERVICES, NAMESPACE, "one-more")
        await client.create(KIND["models"], NAMESPACE, model("small"))
        await client.create(KIND["models"], NAMESPACE, model("big"))
        await client.create(KIND[SERVICES], NAMESPACE, extra)
        async with asyncio.timeout(30):
            while key not in lcs.inserted:
                await asyncio.sleep(0.01)
    return found


async def create(client: Client, lcs: Nodes, services: int) -> dict[str, float]:
    """Create services at a steady pace; return how long each took to its edge node."""
    created: dict[Key, float] = {}
    began = time.monotonic()
    for number in range(services):
        await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
        nodes = lcs.names
        body = service(f"s{number}", edge=nodes[number % len(nodes)], cloud=nodes[(number + 1) % len(nodes)])
        body["spec"]["edgeWorker"]["model"]["name"] = f"small-{number}"
        body["spec"]["cloudWorker"]["model"]["name"] = f"big-{number}"
        key = Key(SERVICES, NAMESPACE, f"s{number}")
        created[key] = time.monotonic()
        await client.create(KIND[SERVICES], NAMESPACE, body)
    async with asyncio.timeout(60):
        while any(key not in lcs.inserted for key in created):
            await asyncio.sleep(0.1)
    took = sorted(1000 * (lcs.inserted[key] - at) for key, at in created.items())
    return {
        "p50": round(took[len(took) // 2], 1),
        "p99": round(took[min(len(took) - 1, int(len(took) * 0.99))], 1),
        "max": round(took[-1], 1),
    }


async def until_running(client: Client, services: int) -> None:
    """Wait until every service says so."""
    async with asyncio.timeout(300):
        while True:
            found = (await client.list(KIND[SERVICES], NAMESPACE))["items"]
            up = sum((each.get("status") or {}).get("phase") == "Running" for each in found)
            print(f"{up} of {services} run", file=sys.stderr)
            if up == services:
                return
            await asyncio.sleep(5)


async def settled(api: ApiServer) -> None:
    """Wait until GM has written nothing for a while."""
    async with asyncio.timeout(300):
        last: dict[str, Any] | None = None
        while (now := await api.ask("writes")) != last:
            last = now
            await asyncio.sleep(SETTLE)


def more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was written in between."""
    return {what: number - before.get(what, 0) for what, number in after.items() if number > before.get(what, 0)}


def main() -> int:
    """Run, print, write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--services", type=int, default=500, metavar="N")
    parser.add_argument("--nodes", type=int, default=200, metavar="N")
    options = parser.parse_args()
    gc.disable()  # the nodes' part is played here: GM is measured, not our own pauses
    found = asyncio.run(bench(options.services, options.nodes))
    WRITTEN.parent.mkdir(exist_ok=True)
    WRITTEN.write_text(json.dumps(found, indent=2) + "\n")
    took = found["created_to_inserted_ms"]
    rows = [
        ("created to insert at the node, ms (p50 / p99 / max)", f"{took['p50']} / {took['p99']} / {took['max']}"),
        ("writes in 30 s of quiet", found["steady_writes"] or "none"),
        ("writes after kill -9 and restart", found["restart_writes"] or "none"),
        ("memory, MB (running, after restart)", f"{found['rss_mb']} / {found['restart_rss_mb']}"),
        ("CPU while nothing happens, % of a core", found["idle_cpu_pct"]),
    ]
    print(f"{found['services']} services on {found['nodes']} nodes")
    for what, figure in rows:
        print(f"  {what:55} {figure}")
    print(f"written to {WRITTEN.relative_to(Path.cwd()) if WRITTEN.is_relative_to(Path.cwd()) else WRITTEN}")
    met = took["p99"] <= P99_MS and not found["steady_writes"] and not found["restart_writes"]
    return 0 if met and max(found["rss_mb"], found["restart_rss_mb"]) <= RSS_MB else 1


if __name__ == "__main__":
    sys.exit(main())
