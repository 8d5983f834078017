"""Fault 12: GM is killed between two of its writes, such as creating a Deployment and writing the status.

Whatever had been done by then, the next GM makes what is missing and nothing twice: names follow from the service's,
and what stands there is known by its owner.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from halimede.names import Key
from tests.faults.operators import operators
from tests.integration.gm_world import MODELS, SERVICES
from tests.kubernetes.apiserver import on_double
from tests.kubernetes.double.control import Control, Request
from tests.kubernetes.world import PATIENCE, World, world
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.slow

EDGE, CLOUD = "helmet-deployment-edge", "helmet-deployment-cloud"
#: what GM writes for two models and a service at least: three finalizers, a Service, two Deployments, three statuses
LEAST = 9
#: GMs of this process at a time: they share one event loop, and one that comes late loses its lease
AT_ONCE = 3


class Axe:
    """Falls at the first write of GM after so many; from then on nothing of it gets through."""

    def __init__(self, gm: str, writes: int) -> None:
        self.gm, self.writes = gm, writes
        self.fallen = asyncio.Event()
        self.written = 0

    def __call__(self, request: Request) -> bool:
        if request.user != self.gm:
            return False
        if request.writes and request.resource not in {"leases", "events"} and not self.fallen.is_set():
            if self.written == self.writes:
                self.fallen.set()
            else:
                self.written += 1
        return self.fallen.is_set()


async def killed(writes: int, folder: Path) -> int:
    """Kill GM between two writes, start it again; return how often the first had written."""
    folder.mkdir()
    async with on_double(folder) as api, world(api) as w, w.node(w.edge) as edge, w.node(w.cloud):
        first = await w.new_user("first")
        axe = Axe(first.name, writes)
        # the same name: a pod's container that is started anew need not wait for its own Lease
        async with w.gm(user=first) as gm:
            fault = api.control.drop(times=10**9, matches=axe)
            await w.apply_all()
            async with asyncio.timeout(patience(PATIENCE)):
                await axe.fallen.wait()
            if gm.bus is not None:  # the axe has cut its connection to the API server
                gm.bus.cut()
        async with w.gm():
            await w.reaches("Running")
            for name in ("small", "big"):
                await w.reaches("Ready", name=name, plural=MODELS)
            await once(w, api.control)
            key = Key(SERVICES, w.namespace, "helmet")
            await eventually(lambda: edge.holds.get(key, ("", 0))[1] == 1, PATIENCE)
        assert fault.struck
        return axe.written


def done(control: Control, verb: str, resource: str) -> list[Request]:
    """What was asked for and done."""
    return [r for r in control.log if (r.verb, r.resource) == (verb, resource) and 200 <= r.code < 300]


async def once(w: World, control: Control) -> None:
    """There is one Deployment and one pod of each role, nothing was made twice, and the status says so."""
    assert len(done(control, "create", "deployments")) == 2
    deployments = {d["metadata"]["name"]: d for d in (await w.api.client.list("Deployment", w.namespace))["items"]}
    assert deployments.keys() == {EDGE, CLOUD}
    assert {d["metadata"]["generation"] for d in deployments.values()} == {1}, "it was written once"
    pods = (await w.api.client.list("Pod", w.namespace))["items"]
    owners = sorted(pod["metadata"]["ownerReferences"][0]["name"] for pod in pods)
    assert owners == [CLOUD, EDGE]
    service = await w.find()
    assert service is not None
    status = service["status"]
    assert (status["phase"], status["active"], status["failed"], status["observedGeneration"]) == ("Running", 2, 0, 1)
    assert len({d["metadata"]["ownerReferences"][0]["uid"] for d in deployments.values()}) == 1
    assert service["metadata"]["finalizers"] == ["halimede.io/nodes"]


async def test_fault_12_killed_after_any_of_its_writes(tmp_path: Path) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def killed_after(writes: int) -> int:
        async with free:
            return await killed(writes, tmp_path / str(writes))

    assert await asyncio.gather(*(killed_after(n) for n in range(LEAST))) == list(range(LEAST))


async def test_fault_12_killed_right_after_the_first_deployment_appears(tmp_path: Path) -> None:
    async with operators(tmp_path) as o, o.gm("gm-0") as first:
        await o.led_by("gm-0")
        async with o.gm("gm-1"):
            await o.w.apply_all()
            await eventually(lambda: done(o.api.control, "create", "deployments"), PATIENCE, every_s=0.001)
            await asyncio.sleep(random.uniform(0.0, 0.05))
            first.kill()
            assert not [r for r in done(o.api.control, "patch", SERVICES) if r.subresource], "it was killed too late"
            assert await o.led_by("gm-1") == 2
            await o.w.reaches("Running")
            await once(o.w, o.api.control)
