"""GM on an API server: under the manifests' own role, with scripted nodes on a memory broker, and kubelets played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
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
from services.gm.app import GlobalManager
from services.gm.cluster.kubernetes.client import KubernetesClient, load_configuration
from services.gm.cluster.kubernetes.cluster import KubernetesCluster
from services.gm.cluster.kubernetes.leader_election import LeaderElection, LeadershipLostError
from services.gm.workloads import pod_settings
from services.gm.workloads.pod_settings import PodSettings
from tests.integration.gm_world import SERVICES, FakeNode, model, service
from tests.kubernetes.apiserver import Api, User, kind_of_server
from tests.kubernetes.client import Body, RefusedError
from tests.kubernetes.player import Player
from tests.rendering import documents as read
from tests.simulated import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
PLURALS = {
    "Model": "models", "Dataset": "datasets", "JointInferenceService": SERVICES, "InferenceModel": "inferencemodels",
    "MultiEdgeInferenceService": "multiedgeinferenceservices", "TrainingModel": "trainingmodels",
    "FederatedLearningJob": "federatedlearningjobs", "IncrementalLearningJob": "incrementallearningjobs",
}  # fmt: skip
PATIENCE = 30.0


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
    """The kind as the test client names it."""
    return f"{PLURALS[body['kind']]}.{body['apiVersion']}" if body["kind"] in PLURALS else body["kind"]


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
        self.player = Player(api.client, api.namespace, deploys=kind_of_server() != "cluster", collects=not api.managed)
        #: of the elector
        self.timing: dict[str, float] = {}
        self._user: User | None = None

    @property
    def namespace(self) -> str:
        """The test's own."""
        return self.api.namespace

    def node(self, name: str) -> FakeNode:
        """A node's local controller."""
        return FakeNode(self.broker, name)

    @property
    def known_user(self) -> User:
        """GM's user, once there is a GM."""
        assert self._user is not None
        return self._user

    async def user(self) -> User:
        """GM's user."""
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
            body = deepcopy(body)  # noqa: PLW2901
            body["metadata"]["namespace"] = self.namespace
            kind, name = path_of(body), body["metadata"]["name"]
            for _ in range(100):
                found = await self.api.client.find(kind, self.namespace, name)
                try:
                    if found is None:
                        await self.api.client.create(kind, self.namespace, body)
                    else:
                        await self.api.client.replace(
                            kind, self.namespace, {**found, **body, "metadata": found["metadata"]}
                        )
                except RefusedError as refused:
                    if refused.code != 409:
                        raise
                    continue
                break

    async def delete(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> None:
        """Ask for deletion."""
        await self.api.client.delete(f"{plural}.{version}", self.namespace, name)

    async def find(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> Body | None:
        """A resource as it is now."""
        return await self.api.client.find(f"{plural}.{version}", self.namespace, name)

    async def status(self, name: str = "helmet", plural: str = SERVICES, version: str = SEDNA) -> Body:
        """Its status."""
        found = await self.find(name, plural, version)
        return (found or {}).get("status") or {}

    async def object(self, kind: str, name: str) -> Body | None:
        """An object that GM made."""
        return await self.api.client.find(kind, self.namespace, name)

    async def made(self, kind: str, name: str) -> Body:
        """An object that GM has made."""
        found = await self.object(kind, name)
        assert found is not None, f"there is no {kind} {name}"
        return found

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
        payload = self.broker.retained(f"{self.namespace}/sedna/status/{plural}/{name}")
        return msgspec.json.decode(payload, type=StatusDocument) if payload else None

    # --- a whole service --------------------------------------------------------------------------------------

    def service(self, name: str = "helmet", **more: Any) -> Body:
        """A service on the two nodes."""
        return service(name, **{"edge": self.edge, "cloud": self.cloud, **more})

    async def apply_all(self) -> None:
        """Two models and a service."""
        await self.apply(model("small"), model("big"), self.service())


def shipped(folder: str) -> dict[str, Any]:
    """Return the settings of pods of a folder of ``deploy``, as they are shipped."""
    read_settings = pod_settings.read(DEPLOY / folder / "pods.json", {"HALIMEDE_PODS_BROKER": "mqtt://broker:1883"})
    return {each.name: getattr(read_settings, each.name) for each in fields(read_settings)}


@asynccontextmanager
async def world(api: Api, *, play: bool = True, **settings: Any) -> AsyncIterator[World]:
    """A world with our definitions, two Node objects, and (``play``) somebody who runs pods."""
    for definition in definitions():
        await api.install(definition)
    chosen = {
        "broker": "mqtt://broker:1883",
        "credentials": False,
        "host_paths": ("/models", "/data", "/code"),
    } | settings
    made = World(api, PodSettings(**chosen))
    for name in (made.edge, made.cloud):
        await api.node(name, {"pool": name.split("-")[0], "kubernetes.io/hostname": name})
    async with contextlib.AsyncExitStack() as stack:
        if play:
            await stack.enter_async_context(made.player)
        yield made
