"""A program: calls each API group that GM uses, through GM's own client, and prints what it has called.

    python -m tests.kubernetes.each_group KUBECONFIG NAMESPACE

It is a program of its own so that it can run with another tree of the Kubernetes client than the tests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing

import kubernetes

from services.gm.cluster.kubernetes import api_paths
from services.gm.cluster.kubernetes.api_paths import EVENTS, LEASES, NODES, OPENED, PODS, SECRETS, ApiResource
from services.gm.cluster.kubernetes.client import KubernetesClient, NotFoundError, load_configuration

EVERY = (*api_paths.MANAGED_KINDS, PODS, NODES, SECRETS, EVENTS, LEASES, *api_paths.resources())
LEASE = {"apiVersion": LEASES.version, "kind": LEASES.kind, "metadata": {"name": "cut"}, "spec": {}}


async def read(client: KubernetesClient, api: ApiResource, namespace: str) -> None:
    version = [version async for _, version in client.pages(api)][-1]
    async with aclosing(client.watch(api, version, seconds=5.0)) as events:
        assert await anext(events) == (OPENED, {})
    try:
        await client.get(api, "" if api is NODES else namespace, "none")
    except NotFoundError:
        return
    raise AssertionError(f"{api.plural} has an object that nobody made")


async def main(kubeconfig: str, namespace: str) -> None:
    async with KubernetesClient(await load_configuration(kubeconfig)) as client:
        for api in EVERY:
            await read(client, api, namespace)
        made = await client.create(LEASES, namespace, LEASE)
        made = await client.patch(LEASES, namespace, "cut", {"spec": {"holderIdentity": "me"}})
        assert made["spec"]["holderIdentity"] == "me"
        await client.delete(LEASES, namespace, "cut", uid=made["metadata"]["uid"])
    parts = sorted(name for name in sys.modules if ".client.api." in name or ".client.models." in name)
    called = [f"{api.version}/{api.plural}" for api in EVERY]
    print(json.dumps({"client": kubernetes.__file__, "generated": parts, "called": called}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
