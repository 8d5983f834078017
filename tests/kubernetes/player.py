"""Plays the parts that no test server has: the kubelets, and (but for a whole cluster) the deployment controller and,
on a bare `kube-apiserver`, the garbage collector.

It knows the API server only through HTTP, looks at everything anew in each round, and writes only what is not so yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from contextlib import suppress
from typing import Any, Self

import aiohttp
import msgspec

from tests.kubernetes.client import Body, Client, RefusedError, contains
from tests.kubernetes.garbage import collect
from tests.kubernetes.placed import named_node
from tests.kubernetes.podstates import State, running

HASH = "pod-template-hash"
ROUND = 0.1


class Rounds:
    """Takes one step after the other inside ``async with``."""

    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            # the server may be away for a while, and others write at the same time
            with suppress(RefusedError, aiohttp.ClientError, TimeoutError, OSError):
                await self._step()
            await asyncio.sleep(ROUND)

    async def _step(self) -> None:
        raise NotImplementedError


class Player(Rounds):
    """``async with Player(...)`` plays in one namespace until the end of the block."""

    def __init__(self, client: Client, namespace: str, *, deploys: bool = True, collects: bool) -> None:
        self._client = client
        self._namespace = namespace
        self._deploys = deploys
        self._collects = collects
        self._states: list[tuple[str, State]] = []
        #: pods wait for a node of this name unless they name one
        self.node = "player-node"
        #: False: nobody deletes pods for good (the kubelet is away)
        self.alive = True
        #: whether pods of an earlier template stay until new ones are ready, as Deployments do by default
        self.keeps_old = False

    def behave(self, state: State, prefix: str = "") -> None:
        """From now on pods whose names begin so are in this state (the last call wins)."""
        self._states.insert(0, (prefix, state))

    async def _step(self) -> None:
        deployments = (await self._client.list("Deployment", self._namespace))["items"]
        pods = (await self._client.list("Pod", self._namespace))["items"]
        for pod in pods:
            await self._play(pod)
        if self._deploys:
            for deployment in deployments:
                await self._deploy(deployment, pods)
        if self._collects:
            await collect(self._client, self._namespace)

    async def _play(self, pod: Body) -> None:
        """Be the kubelet of one pod."""
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            if self.alive:
                await self._client.delete("Pod", self._namespace, meta["name"], exactly(meta, gracePeriodSeconds=0))
            return
        if pod.get("status", {}).get("phase") == "Failed":
            return  # for good
        state = next((state for prefix, state in self._states if meta["name"].startswith(prefix)), running)
        status = state(pod)
        if not contains(pod.get("status", {}), status, "startTime", "startedAt"):
            body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
            await self._client.patch("Pod", self._namespace, meta["name"], body, "status")

    async def _deploy(self, deployment: Body, pods: list[Body]) -> None:
        """Be the deployment controller: as many pods of the newest template as are wanted, and no others."""
        meta, spec = deployment["metadata"], deployment["spec"]
        if meta.get("deletionTimestamp"):
            return
        mark = mark_of(deployment)
        own = [pod for pod in pods if has_owner(pod, meta["uid"]) and _is_active(pod)]
        new = [pod for pod in own if pod["metadata"].get("labels", {}).get(HASH) == mark]
        wanted = spec.get("replicas", 1)
        for _ in range(wanted - len(new)):
            await self._client.create("Pod", self._namespace, self._pod(deployment, mark))
        old = [pod for pod in own if pod not in new]
        if self.keeps_old and sum(map(is_ready, new)) < wanted:
            old = []
        for pod in old + new[wanted:]:
            name = pod["metadata"]["name"]
            await self._client.delete("Pod", self._namespace, name, exactly(pod["metadata"]))
        await self._report(deployment, new[:wanted])

    async def _report(self, deployment: Body, pods: list[Body]) -> None:
        meta = deployment["metadata"]
        ready = sum(is_ready(pod) for pod in pods)
        wanted = deployment["spec"].get("replicas", 1)
        status: Body = {"observedGeneration": meta["generation"], "replicas": len(pods), "updatedReplicas": len(pods)}
        status |= {"readyReplicas": ready, "availableReplicas": ready, "unavailableReplicas": wanted - ready}
        old = deployment.get("status", {})
        if any(old.get(name, 0) != value for name, value in status.items()):
            body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
            await self._client.patch("Deployment", self._namespace, meta["name"], body, "status")

    def _pod(self, deployment: Body, mark: str) -> Body:
        meta, template = deployment["metadata"], deployment["spec"]["template"]
        labels = {**template["metadata"].get("labels", {}), HASH: mark}
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"]}
        spec = {**template["spec"], "nodeName": named_node(template["spec"]) or self.node}
        name = f"{meta['name'][:200]}-{mark}-{secrets.token_hex(3)[:5]}"
        annotations = template["metadata"].get("annotations", {})
        owners = [{**owner, "controller": True, "blockOwnerDeletion": True}]
        return {
            "metadata": {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": owners},
            "spec": spec,
        }


def mark_of(deployment: Body) -> str:
    """Return what tells pods of the present template from others."""
    return hashlib.sha256(msgspec.json.encode(deployment["spec"]["template"], order="sorted")).hexdigest()[:10]


def exactly(meta: Body, **more: Any) -> Body:
    return {"preconditions": {"uid": meta["uid"]}, **more}


def has_owner(pod: Body, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))


def _is_active(pod: Body) -> bool:
    """Whether a pod is one of its Deployment's: a failed one stays for inspection, and another takes its place."""
    return not pod["metadata"].get("deletionTimestamp") and pod.get("status", {}).get("phase") != "Failed"


def is_ready(pod: Body) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
