"""Fault 14, conflicts without end: whatever GM writes, somebody was faster. It looks again, now and then, and takes it
for nothing else; when the storm is over everything is as it was asked for, once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.gm_world import SERVICES
from tests.kubernetes.apiserver import on_double
from tests.kubernetes.double.control import Request
from tests.kubernetes.world import world
from tests.simulated import eventually

pytestmark = pytest.mark.slow

STORM_S = 2.5
EDGE = "helmet-deployment-edge"


@pytest.mark.parametrize(("resource", "subresource"), [("deployments", ""), (SERVICES, "status"), (SERVICES, "")])
async def test_fault_14_a_storm_of_conflicts(tmp_path: Path, resource: str, subresource: str) -> None:
    async with on_double(tmp_path) as api, world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        if resource == "deployments":
            await w.apply_all()
            await w.reaches("Running")

        def caught(request: Request) -> bool:
            ours = request.user == w.known_user.name and request.verb == "patch"
            return ours and (request.resource, request.subresource) == (resource, subresource)

        storm = api.control.fail(409, times=10**9, matches=caught)
        body = w.service()
        body["spec"]["edgeWorker"]["deadlineMs"] = 700
        await w.apply_all()
        await w.apply(body)
        await eventually(lambda: storm.struck, 20)
        seen = set()
        for _ in range(10):
            await asyncio.sleep(STORM_S / 10)
            seen |= {condition["reason"] for condition in (await w.status()).get("conditions", ())}
        assert not seen & {"NotOurs", "NotAccepted"}
        # two models and a service, each some times a second
        assert 1 <= storm.struck <= 50
        storm.end()
        await w.reaches("Running", generation=2)
        made = await w.object("Deployment", EDGE)
        assert made is not None
        [container] = made["spec"]["template"]["spec"]["containers"]
        assert {"name": "DEADLINE_MS", "value": "700"} in container["env"]
        creates = [r for r in api.control.writes("deployments") if r.verb == "create" and r.code < 300]
        assert len(creates) == 2
