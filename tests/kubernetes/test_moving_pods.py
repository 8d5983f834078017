"""A worker's pod that moves to another node: the old node lets go once the pod has said its last words, not before."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.gm_world import SERVICES
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import PATIENCE, world
from tests.simulated import eventually

pytestmark = pytest.mark.slow

HELD = f"{SERVICES}/helmet"


async def test_a_node_keeps_a_service_while_a_pod_of_it_ends_there(api: Api) -> None:
    async with world(api) as made:
        other = api.unique("edge")
        await api.node(other, {"pool": "edge"})
        made.player.node = made.edge
        async with made.node(made.edge) as old, made.node(other) as new, made.node(made.cloud), made.gm():
            await made.apply_all(made.service(edge={"pool": "edge"}))
            await made.reaches("Running")

            def told() -> list[str]:
                return [what for what, key, _ in old.log if key == HELD]

            made.player.alive, made.player.node = False, other
            pods = (await api.client.list("Pod", made.namespace))["items"]
            (moving,) = (pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == made.edge)
            await api.client.delete("Pod", made.namespace, moving)
            await eventually(lambda: ("insert", HELD, 1) in new.log, PATIENCE)
            await asyncio.sleep(1)
            assert told() == ["insert"]
            made.player.alive = True
            await eventually(lambda: told() == ["insert", "delete"], PATIENCE)
