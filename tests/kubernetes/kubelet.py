"""A small kubelet that really runs what is in pods, and the scheduler and deployment controller that send it pods.

It knows the API server only through HTTP and carries out what a pod says: volumes, variables, init containers one after
the other, containers under the user and with the rights that are asked for, probes, restarts, termination with its
grace. What it cannot do, it says in the pod's status. Images are those of this repository.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.kubernetes.client import Body, Client, RefusedError
from tests.kubernetes.containers import BACK_OFF, Image, Run
from tests.kubernetes.placed import named_node
from tests.kubernetes.player import HASH, Player, Rounds, exactly, has_owner, is_ready, mark_of
from tests.kubernetes.podstates import conditions, now
from tests.kubernetes.sandbox import Network, Sandbox
from tests.kubernetes.volumes import Giver, NotYetError
from tests.waiting import eventually

PATIENCE = 60.0


class Kubelet(Rounds):
    """One node, from ``async with`` on. ``root`` stands for its file system, as far as pods may mount it."""

    def __init__(self, client: Client, namespace: str, node: str, root: Path, network: Network) -> None:
        self.node = node
        self.root = root / "fs"
        self.pods: dict[str, Pod] = {}
        #: by the name of the pod, then of the container: the last exit code of pods that are gone
        self.ended: dict[str, dict[str, int]] = {}
        self.images: dict[str, Image] = {}
        self._client = client
        self._namespace = namespace
        self._folder = root / "pods"
        self._network = network

    async def __aenter__(self) -> Self:
        self.root.mkdir(parents=True)
        # containers are other users: they pass through, as through a node's own folders
        for folder in (self.root, *self.root.parents):
            if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        """The node dies, with all that runs on it."""
        await super().__aexit__()
        for pod in self.pods.values():
            await pod.kill()

    async def _step(self) -> None:
        asked = (await self._client.list("Pod", self._namespace, fieldSelector=f"spec.nodeName={self.node}"))["items"]
        bodies = {body["metadata"]["uid"]: body for body in asked}
        for uid in self.pods.keys() - bodies.keys():  # somebody has deleted it by force
            pod = self.pods.pop(uid)
            await pod.kill()
        for uid, body in bodies.items():
            if uid not in self.pods:
                giver = Giver(self._client, body, self.root, self._folder / uid)
                self.pods[uid] = Pod(body, giver, self._folder / uid, self._network, self.images)
            pod = self.pods[uid]
            pod.see(body)
            if pod.over:
                self.ended[pod.name] = pod.exit_codes
                await pod.kill()
                del self.pods[uid]
                await self._report(pod)
                meant = exactly(body["metadata"], gracePeriodSeconds=0)
                await self._client.delete("Pod", self._namespace, pod.name, meant)
            else:
                await self._report(pod)

    async def _report(self, pod: Pod) -> None:
        status = pod.status()
        if status != pod.reported:
            body = {"metadata": {"uid": pod.body["metadata"]["uid"]}, "status": status}
            await self._client.patch("Pod", self._namespace, pod.name, body, "status")
            pod.reported = status


class Pod:
    """One pod on this node: a task that brings it up and holds it up, until it is to end."""

    def __init__(self, body: Body, giver: Giver, folder: Path, network: Network, images: dict[str, Image]) -> None:
        self.body = body
        self.name: str = body["metadata"]["name"]
        self.node: str = body["spec"]["nodeName"]
        self.folder = folder
        self.reported: Body = {}
        self.started_at = now()
        spec = body["spec"]
        self.init = [Run(each, spec, giver, folder, images) for each in spec.get("initContainers", ())]
        self.runs = [Run(each, spec, giver, folder, images) for each in spec["containers"]]
        self._giver = giver
        self._sandbox = Sandbox(network)
        self._waiting = ("ContainerCreating", "")
        self._task: asyncio.Task[None] = asyncio.create_task(self._live(), name=self.name)
        self._end: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._sandbox.address

    @property
    def ending(self) -> bool:
        return self._end is not None

    @property
    def over(self) -> bool:
        """Whether all that ran has ended because it had to."""
        if self._end is not None and self._end.done():
            self._end.result()
            return True
        return False

    @property
    def exit_codes(self) -> dict[str, int]:
        return {run.name: run.exit_code for run in (*self.init, *self.runs) if run.exit_code is not None}

    def run(self, name: str = "") -> Run:
        """Return one of its containers, by default the first that is no init container."""
        return next(run for run in (*self.runs, *self.init) if name in {"", run.name})

    def see(self, body: Body) -> None:
        """Take what the API server says of it now."""
        self.body = body
        if body["metadata"].get("deletionTimestamp") and self._end is None:
            grace = body["metadata"].get("deletionGracePeriodSeconds", 30)
            self._end = asyncio.create_task(self._terminate(grace))

    async def _live(self) -> None:
        while True:
            try:
                await self._giver.prepare()
                break
            except NotYetError as error:
                self._waiting = ("ContainerCreating", f"{error.reason}: {error}")
            except (RefusedError, aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(BACK_OFF)
        await self._sandbox.open()
        self._giver.address = self._sandbox.address
        for run in self.init:
            await run.once(self._sandbox)
        async with asyncio.TaskGroup() as group:
            for run in self.runs:
                group.create_task(run.always(self._sandbox))

    async def _terminate(self, grace: float) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        async with asyncio.TaskGroup() as group:
            for run in (*self.init, *self.runs):
                group.create_task(run.stop(grace))

    async def kill(self) -> None:
        for task in (self._task, self._end):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._sandbox.close)
            for run in (*self.init, *self.runs):
                await run.stop(0)

    def status(self) -> Body:
        """Return it as kubelet reports it."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()  # a mistake of this kubelet's own
        initialized = all(run.succeeded for run in self.init)
        ready = initialized and all(run.ready for run in self.runs)
        status: Body = {
            "phase": "Running" if initialized and any(run.was_started for run in self.runs) else "Pending",
            "startTime": self.started_at,
            "conditions": conditions(ready=ready, initialized=initialized),
            "containerStatuses": [run.status(self._waiting) for run in self.runs],
        }
        if self.init:
            status["initContainerStatuses"] = [run.status(("PodInitializing", "")) for run in self.init]
        if self.address:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        return status


class Controllers(Player):
    """The scheduler and the deployment controller: kubelets play their own part."""

    async def _play(self, pod: Body) -> None:
        """Kubelets do."""

    async def _deploy(self, deployment: Body, pods: list[Body]) -> None:
        """Roll over as Deployments do by default: one more than wanted, and not one fewer that is ready."""
        meta, spec = deployment["metadata"], deployment["spec"]
        if meta.get("deletionTimestamp"):
            return
        mark = mark_of(deployment)
        own = [pod for pod in pods if has_owner(pod, meta["uid"]) and not pod["metadata"].get("deletionTimestamp")]
        new = [pod for pod in own if pod["metadata"]["labels"].get(HASH) == mark]
        old = [pod for pod in own if pod not in new]
        wanted = spec.get("replicas", 1)
        for _ in range(min(wanted - len(new), wanted + 1 - len(own))):
            body = self._pod(deployment, mark)
            if node := await self._node(spec["template"]["spec"], pods):
                body["spec"] = {**body["spec"], "nodeName": node}
                await self._client.create("Pod", self._namespace, body)
        spare = sum(map(is_ready, own)) - wanted
        for pod in old + new[wanted:]:
            if not is_ready(pod) or spare > 0:
                spare -= is_ready(pod)
                await self._client.delete("Pod", self._namespace, pod["metadata"]["name"], exactly(pod["metadata"]))
        await self._report(deployment, new[:wanted])

    async def _node(self, spec: Body, pods: list[Body]) -> str:
        """Choose a node that fits, the one that had the fewest pods; empty: there is none."""
        nodes = (await self._client.list("Node"))["items"]
        wanted = spec.get("nodeSelector", {}).items()
        if named := named_node(spec):
            return named
        fits = [node["metadata"]["name"] for node in nodes if wanted <= node["metadata"].get("labels", {}).items()]
        return min(fits, key=lambda name: sum(pod["spec"].get("nodeName") == name for pod in pods), default="")


async def until(what: str, done: Any, seconds: float = PATIENCE) -> Any:
    """Wait for a condition, a function or a coroutine function; return what it returned."""
    return await eventually(done, seconds, 0.05, lambda: what)
