"""Fault 14: watches end with 410, the API server answers 500, 429 and 409 or not at all. GM lists again, waits, tries
again, and in the end everything is as it was asked for: once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.api.base import SEDNA
from tests.integration.gm_world import SERVICES, model
from tests.kubernetes.apiserver import Api, on_double
from tests.kubernetes.double.control import Control, Request
from tests.kubernetes.world import RunningGm, World, world
from tests.simulated import eventually

pytestmark = pytest.mark.slow

EDGE = "helmet-deployment-edge"
SERVICE = f"{SERVICES}.{SEDNA}"
PATIENCE, STORM_S = 30.0, 2.5


def by_gm(request: Request) -> bool:
    return request.agent.startswith("halimede-gm") and request.resource != "leases"


def writes(request: Request) -> bool:
    return by_gm(request) and request.writes


def watches(request: Request) -> bool:
    return by_gm(request) and "watch" in request.query


class Running:
    """A service that runs, GM that keeps it, and the server's other side."""

    def __init__(self, api: Api, w: World, gm: RunningGm) -> None:
        self.api = api
        self.w = w
        self.gm = gm
        self.control: Control = api.control

    async def edit(self, value: str) -> int:
        """Have the edge worker find other examples hard; return the generation."""
        mining = {"name": "IBT", "parameters": [{"key": "threshold_img", "value": value}]}
        spec = {"spec": {"edgeWorker": {"hardExampleMining": mining}}}
        return int((await self.api.client.patch(SERVICE, self.w.namespace, "helmet", spec))["metadata"]["generation"])

    async def rolled_out(self, value: str, generation: int) -> None:
        """Wait until the Deployment asks for that and the status says that it is so."""

        async def holds() -> bool:
            made = await self.w.object("Deployment", EDGE)
            env = made["spec"]["template"]["spec"]["containers"][0]["env"] if made else []
            return any(each["name"] == "HEM_PARAMETERS" and value in each["value"] for each in env)

        await eventually(holds, PATIENCE)
        await self.w.reaches("Running", generation=generation)


@contextlib.asynccontextmanager
async def service(tmp_path: Path) -> AsyncIterator[Running]:
    async with on_double(tmp_path) as api, world(api) as w, w.gm() as gm, w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.reaches("Running")
        yield Running(api, w, gm)


async def test_what_happens_while_no_watch_works_is_found_by_comparing_lists(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        fault = s.control.fail(500, times=10**9, matches=watches)
        s.control.break_watches()
        await eventually(lambda: fault.struck > 0, PATIENCE)
        await eventually(lambda: s.gm.cluster is not None and "500" in s.gm.cluster.check(), PATIENCE)
        await s.w.delete()
        await s.w.apply(model("other"), s.w.service("second"))
        await s.api.client.delete("Deployment", s.w.namespace, EDGE)
        s.control.expire()
        fault.end()
        await s.w.reaches("Running", name="second")

        async def gone() -> bool:
            return await s.w.find() is None and await s.w.object("Deployment", EDGE) is None

        await eventually(gone, PATIENCE)
        await eventually(lambda: s.gm.cluster is not None and s.gm.cluster.check() == "", PATIENCE)


@pytest.mark.parametrize("how", ["drop", "lose"])
async def test_calls_whose_answer_is_lost_are_made_again_and_have_made_one_object(tmp_path: Path, how: str) -> None:
    async with on_double(tmp_path) as api, world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        fault = getattr(api.control, how)(times=4, matches=writes)
        await w.apply_all()
        await w.reaches("Running")
        assert fault.struck == 4
        made = (await api.client.list("Deployment", w.namespace))["items"]
        assert sorted(each["metadata"]["name"] for each in made) == ["helmet-deployment-cloud", EDGE]
        assert all(each["metadata"]["generation"] == 1 for each in made)


@pytest.mark.parametrize(("resource", "subresource"), [("deployments", ""), (SERVICES, "status"), (SERVICES, "")])
async def test_fault_14_a_storm_of_conflicts_is_taken_for_nothing_else(
    tmp_path: Path, resource: str, subresource: str
) -> None:
    """Whatever GM writes, somebody was faster, without end. It looks again, now and then."""
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
        reasons = set()
        for _ in range(10):
            await asyncio.sleep(STORM_S / 10)
            reasons |= {condition["reason"] for condition in (await w.status()).get("conditions", ())}
        assert not reasons & {"NotOurs", "NotAccepted"}
        # two models and a service, each some times a second
        assert 1 <= storm.struck <= 50
        storm.end()
        await w.reaches("Running", generation=2)
        [container] = (await w.made("Deployment", EDGE))["spec"]["template"]["spec"]["containers"]
        assert {"name": "DEADLINE_MS", "value": "700"} in container["env"]
        creates = [r for r in api.control.writes("deployments") if r.verb == "create" and r.code < 300]
        assert len(creates) == 2


async def test_a_resource_that_is_edited_all_the_time_gets_its_last_status_and_few_writes(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        before = len(s.control.writes(SERVICES))
        generation = 0
        for number in range(100):
            generation = await s.edit(f"0.1{number:02}")
        assert generation > 100
        await s.rolled_out("0.199", generation)
        by_us = [r for r in s.control.writes(SERVICES)[before:] if by_gm(r)]
        assert len(by_us) < 100


async def test_a_server_that_is_away_for_long_costs_the_lead_and_nothing_that_runs(tmp_path: Path) -> None:
    async with on_double(tmp_path) as api, world(api, play=False) as w:
        w.timing = {"duration_s": 4.0, "give_up_s": 2.0, "retry_s": 0.5}
        async with w.player, w.gm() as gm, w.node(w.edge) as edge, w.node(w.cloud):
            await w.apply_all()
            await w.reaches("Running")
            before = (await w.made("Deployment", EDGE))["metadata"]
            assert gm.elector is not None
            epoch = gm.elector.epoch
            await api.control.stop()
            await eventually(lambda: gm.lost and not gm.leads, PATIENCE)
            await asyncio.sleep(3.0)
            assert w.key() in edge.holds
            await api.control.start()
            await eventually(lambda: gm.leads, PATIENCE)
            assert gm.elector.epoch > epoch
            after = (await w.made("Deployment", EDGE))["metadata"]
            assert (after["uid"], after["generation"]) == (before["uid"], 1)
            await w.apply(w.service("second"))
            await w.reaches("Running", name="second")
