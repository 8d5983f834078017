"""GM on an API server: under the manifests' own role, with scripted nodes on a memory broker, and kubelets played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from halimede.api.base import SEDNA
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import StatusDocument
from halimede.names import Key
from services.gm.app import GlobalManager
from services.gm.cluster.kubernetes.client import KubernetesClient, load_configuration
from services.gm.cluster.kubernetes.cluster import KubernetesCluster
from services.gm.cluster.kubernetes.leader_election import LeaderElection, LeadershipLostError
from services.gm.workloads import pod_settings
from services.gm.workloads.pod_settings import PodSettings
from tests.integration.gm_world import SERVICES, FakeNode, model, service
from tests.kubernetes.apiserver import Api, User
from tests.kubernetes.client import PATHS, TABLE, Body, RefusedError
from tests.rendering import documents as read
from tests.simulated import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE = 30.0
#: the Deployments of the service
EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"


def documents(path: Path) -> list[Body]:
    """The documents of a YAML file as the API server reads it."""
    return deepcopy(_documents(path))


@cache
def _documents(path: Path) -> list[Body]:
    """Some tests ask for the same ones for dozens of servers."""
    return list(read(path.read_text()))


def definitions() -> Iterator[Body]:
    """Our CustomResourceDefinitions, the same ones each time: whoever edits one makes a copy."""
    for path in sorted((DEPLOY / "crds").glob("*.yaml")):
        yield from (body for body in _documents(path) if body["kind"] == "CustomResourceDefinition")


def gm_rules(namespace: str) -> list[dict[str, Any]]:
    """What the manifests let GM do, its own namespace being this one."""
    found: list[dict[str, Any]] = []
    for body in documents(DEPLOY / "base" / "gm-rbac.yaml"):
        if body["kind"] == "ClusterRole":
            found += body["rules"]
        elif body["kind"] == "Role":
            found += [{**rule, "namespaces": [namespace]} for rule in body["rules"]]
    return found


def path_of(body: Body) -> str:
    """Return the kind as the test client names it."""
    return body["kind"] if body["kind"] in PATHS else f"{body['kind'].lower()}s.{body['apiVersion']}"


class RunningGm:
    """One GM that is a candidate or leads. ``cluster`` and ``manager`` are there while it leads."""

    def __init__(self, world: World, identity: str, user: User) -> None:
        self.identity = identity
        self.user = user
        self.cluster: KubernetesCluster | None = None
        self.manager: GlobalManager | None = None
        self.bus: MemoryBus | None = None
        self.elector: LeaderElection | None = None
        self.lost = 0
        self._world = world

    @property
    def leads(self) -> bool:
        """Whether it works, connected to the broker."""
        return self.manager is not None and self.bus is not None and self.bus.connected

    async def run(self) -> None:
        """As services/gm/leader.py does it."""
        async with KubernetesClient(await load_configuration(str(self.user.kubeconfig))) as client:
            self.elector = LeaderElection(client, self._world.api.namespace, self.identity, **self._world.timing)
            while True:
                try:
                    await self.elector.lead(lambda: self._work(client))
                except LeadershipLostError:
                    self.lost += 1

    async def _work(self, client: KubernetesClient) -> None:
        assert self.elector is not None
        try:
            async with KubernetesCluster(client, self.elector) as self.cluster:
                self.bus = MemoryBus("gm", self._world.broker)
                self.manager = GlobalManager(self.bus, self.cluster, pods=self._world.settings)
                await self.manager.run()
        finally:
            self.cluster = self.manager = None


class World:
    """One cluster, one broker. ``edge`` and ``cloud`` are the names of its nodes."""

    def __init__(self, api: Api, settings: PodSettings) -> None:
        self.api = api
        self.settings = settings
        self.broker = MemoryBroker()
        self.edge, self.cloud = api.unique("edge"), api.unique("cloud")
        self.player = api.player()
        #: of the elector
        self.timing: dict[str, float] = {}
        self._user: User | None = None

    @property
    def namespace(self) -> str:
        return self.api.namespace

    def node(self, name: str) -> FakeNode:
        return FakeNode(self.broker, name)

    @property
    def known_user(self) -> User:
        """GM's user, once there is a GM."""
        assert self._user is not None
        return self._user

    async def user(self) -> User:
        if self._user is None:
            self._user = await self.new_user("gm")
        return self._user

    async def new_user(self, stem: str) -> User:
        """Another user with GM's rights."""
        return await self.api.user(stem, gm_rules(self.namespace))

    @asynccontextmanager
    async def gm(
        self, identity: str = "gm-0", *, wait: bool = True, user: User | None = None
    ) -> AsyncIterator[RunningGm]:
        """Run a GM inside the block; leaving it is a clean stop."""
        gm = RunningGm(self, identity, user or await self.user())
        task = asyncio.create_task(gm.run(), name=identity)
        try:
            if wait:
                await eventually(lambda: gm.leads or task.done(), PATIENCE)
            if task.done():
                task.result()
            yield gm
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    # --- kubectl ----------------------------------------------------------------------------------------------

    async def apply(self, *bodies: Body) -> None:
        """Create objects, or bring their specs to this."""
        for body in bodies:
            sent = {**body, "metadata": {**body["metadata"], "namespace": self.namespace}}
            kind, name = path_of(body), body["metadata"]["name"]
            for _ in range(100):
                found = await self.api.client.find(kind, self.namespace, name)
                try:
                    if found is None:
                        await self.api.client.create(kind, self.namespace, sent)
                    else:
                        newer = {**found, **body, "metadata": found["metadata"]}
                        await self.api.client.replace(kind, self.namespace, newer)
                except RefusedError as refused:
                    if refused.code != 409:
                        raise
                    continue
                break

    async def delete(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> None:
        await self.api.client.delete(f"{plural}.{version}", self.namespace, name)

    async def find(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> Body | None:
        return await self.api.client.find(f"{plural}.{version}", self.namespace, name)

    async def status(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> Body:
        found = await self.find(name, plural, version)
        return (found or {}).get("status") or {}

    async def until_gone(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> None:
        await self.api.until_gone(f"{plural}.{version}", name)

    async def row(self, plural: str = SERVICES) -> Body:
        """Return what `kubectl get` shows of the one resource that there is, by column."""
        table = await self.api.client.list(f"{plural}.{SEDNA}", self.namespace, accept=TABLE)
        names = [column["name"].lower() for column in table["columnDefinitions"]]
        return dict(zip(names, table["rows"][0]["cells"], strict=True))

    async def object(self, kind: str, name: str) -> Body | None:
        return await self.api.client.find(kind, self.namespace, name)

    async def made(self, kind: str, name: str) -> Body:
        """An object that GM has made."""
        found = await self.object(kind, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

    async def becomes(self, kind: str, name: str, holds: Callable[[Body], Any]) -> None:
        """Wait until there is an object that is so."""

        async def is_so() -> bool:
            found = await self.object(kind, name)
            return found is not None and bool(holds(found))

        await eventually(is_so, PATIENCE)

    async def shows(
        self, holds: Callable[[Body], Any], name: str = "helmet", plural: str = SERVICES, version: str = SEDNA
    ) -> Body:
        """Wait until a status is so, and return it."""

        async def is_so() -> Body | None:
            status = await self.status(name, plural, version)
            return status if holds(status) else None

        return dict(await eventually(is_so, 3 * PATIENCE))

    async def pods(self, prefix: str = "") -> list[str]:
        """Return the names of the pods that begin so."""
        pods = (await self.api.client.list("Pod", self.namespace))["items"]
        return [name for pod in pods if (name := pod["metadata"]["name"]).startswith(prefix)]

    async def pod_of(self, deployment: str) -> Body:
        """Return the spec of the pods of a Deployment that GM has made."""
        spec: Body = (await self.made("Deployment", deployment))["spec"]["template"]["spec"]
        return spec

    async def variables(self, deployment: str) -> dict[str, Any]:
        """Return the variables of its container."""
        env = (await self.pod_of(deployment))["containers"][0]["env"]
        return {each["name"]: each.get("value", each.get("valueFrom")) for each in env}

    async def reaches(
        self,
        phase: str,
        reason: str = "",
        *,
        name: str = "helmet",
        plural: str = SERVICES,
        version: str = SEDNA,
        generation: int = 0,
    ) -> Body:
        """Wait until a status says so (of that generation at least), and return it."""
        last: Body = {}

        async def holds() -> bool:
            nonlocal last
            last = await self.status(name, plural, version)
            if last.get("phase") != phase or last.get("observedGeneration", 0) < generation:
                return False
            return reason in {"", last["conditions"][-1].get("reason")}

        try:
            await eventually(holds, PATIENCE, every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{name} is not {phase} {reason} but {last}") from error
        return last

    def shown(self, name: str = "helmet", plural: str = SERVICES) -> StatusDocument | None:
        """The status as a monitoring tool finds it on the broker."""
        payload = self.broker.retained_payload(f"{self.namespace}/sedna/status/{plural}/{name}")
        return msgspec.json.decode(payload, type=StatusDocument) if payload else None

    async def worker_secrets(self) -> None:
        """Create the Secrets of workers' credentials for the broker."""
        for role in ("edge", "cloud"):
            body = {"metadata": {"name": f"halimede-{role}-worker"}, "stringData": {"username": role, "password": "x"}}
            await self.api.client.create("Secret", self.namespace, body)

    # --- a whole service --------------------------------------------------------------------------------------

    def service(self, name: str = "helmet", **more: Any) -> Body:
        """A service on the two nodes."""
        return service(name, **{"edge": self.edge, "cloud": self.cloud, **more})

    async def apply_all(self, body: Body | None = None) -> None:
        """Two models and a service."""
        await self.apply(model("small"), model("big"), body or self.service())

    async def edit(self, deadline_ms: int = 500) -> None:
        """Give the edge worker another deadline."""
        body = self.service()
        body["spec"]["edgeWorker"]["deadlineMs"] = deadline_ms
        await self.apply(body)

    def key(self, name: str = "helmet", plural: str = SERVICES) -> Key:
        return Key(plural, self.namespace, name)


def message(status: Body) -> str:
    """Return what the present condition of a status says."""
    return str(status["conditions"][-1]["message"])


@asynccontextmanager
async def running_service(api: Api) -> AsyncIterator[tuple[World, FakeNode, FakeNode]]:
    """A world with GM, a service that runs, and its two nodes."""
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        await w.apply_all()
        await w.reaches("Running")
        yield w, edge, cloud


def shipped(folder: str) -> dict[str, Any]:
    """Return the settings of pods of a folder of ``deploy``, as they are shipped."""
    read_settings = pod_settings.read(DEPLOY / folder / "pods.json", {"HALIMEDE_PODS_BROKER": "mqtt://broker:1883"})
    return {each.name: getattr(read_settings, each.name) for each in fields(read_settings)}


@asynccontextmanager
async def world(api: Api, *, play: bool = True, **settings: Any) -> AsyncIterator[World]:
    """A world with our definitions, two Node objects, and (``play``) somebody who runs pods."""
    for definition in definitions():
        await api.install(definition)
    chosen: dict[str, Any] = {
        "broker": "mqtt://broker:1883",
        "credentials": False,
        "host_paths": ("/models", "/data", "/code"),
    }
    made = World(api, PodSettings(**chosen | settings))
    for name in (made.edge, made.cloud):
        await api.node(name, {"pool": name.split("-")[0], "kubernetes.io/hostname": name})
    async with contextlib.AsyncExitStack() as stack:
        if play:
            await stack.enter_async_context(made.player)
        yield made
