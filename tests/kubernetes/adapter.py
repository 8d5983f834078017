"""The adapter alone on an API server: a cluster that leads, and what it said has happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from halimede.names import Key
from services.gm.cluster.kubernetes.client import KubernetesClient, load_configuration
from services.gm.cluster.kubernetes.cluster import KubernetesCluster
from services.gm.cluster.kubernetes.leader_election import LeaderElection
from services.gm.cluster.port import Happening, StoredResource
from tests.integration.gm_world import SERVICES, model, service
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.kubernetes.world import definitions, gm_rules, path_of
from tests.simulated import eventually

PATIENCE = 30.0
MODELS = "models"


class Adapter:
    """``cluster`` leads in the test's namespace under the manifests' role."""

    def __init__(self, api: Api, client: KubernetesClient, cluster: KubernetesCluster, elector: LeaderElection) -> None:
        self.api = api
        self.client = client
        self.cluster = cluster
        self.elector = elector
        self.happened: list[Happening] = []

    async def listen(self) -> None:
        async for what in self.cluster.changes():
            self.happened.append(what)

    def key(self, name: str, plural: str = MODELS) -> Key:
        return Key(plural, self.api.namespace, name)

    async def make(self, body: Body) -> Body:
        """Create a resource as a user does."""
        body["metadata"]["namespace"] = self.api.namespace
        return await self.api.client.create(path_of(body), self.api.namespace, body)

    async def stored(self, name: str, plural: str = MODELS, version: str = "") -> StoredResource:
        """Wait until the cluster has a resource (in that version)."""

        def there() -> bool:
            found = self.cluster.get(self.key(name, plural))
            return found is not None and version in {"", found.resource_version}

        await eventually(there, PATIENCE)
        found = self.cluster.get(self.key(name, plural))
        assert found is not None
        return found

    async def heard(self, what: Happening, times: int = 1) -> None:
        """Wait until something was said to have happened."""
        await eventually(lambda: self.happened.count(what) >= times, PATIENCE)

    async def model(self, name: str = "m") -> StoredResource:
        made = await self.make(model(name))
        return await self.stored(name, version=made["metadata"]["resourceVersion"])

    async def service(self, name: str = "helmet") -> StoredResource:
        await self.make(service(name))
        return await self.stored(name, SERVICES)


@asynccontextmanager
async def adapter(api: Api, identity: str = "gm-0", **timing: Any) -> AsyncIterator[Adapter]:
    """Lead, and open the cluster."""
    for definition in definitions():
        await api.install(definition)
    user = await api.user("gm", gm_rules(api.namespace))
    opened: asyncio.Future[Adapter] = asyncio.get_running_loop().create_future()
    async with KubernetesClient(await load_configuration(str(user.kubeconfig))) as client:
        elector = LeaderElection(client, api.namespace, identity, **timing)

        async def work() -> None:
            async with KubernetesCluster(client, elector) as cluster:
                made = Adapter(api, client, cluster, elector)
                opened.set_result(made)
                await made.listen()

        task = asyncio.create_task(elector.lead(work))
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            yield await opened
        finally:
            if task.done():
                task.result()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
