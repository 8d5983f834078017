"""The bodies of seed 001 as they are on the wire: every field that it names is there, whatever its value."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import services.gm.reconciler
from halimede import topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from tests.inbox import Inbox
from tests.integration import lc_world
from tests.integration.gm_world import metric, model, service, world
from tests.integration.lc_world import HELMET
from tests.simulated import eventually
from tests.unit.worker.world import HARD
from tests.unit.worker.world import world as worker_world

pytestmark = pytest.mark.simulated

STATUS_OF_HELMET = "default/sedna/upstream/jointinferenceservices/helmet/status"


async def test_a_workers_report_names_its_kind_and_that_of_its_owner_and_counts(tmp_path: Path) -> None:
    infos: Inbox[Any] = Inbox()
    async with worker_world(tmp_path) as w, MemoryBus("ear", w.broker) as ear:
        await ear.subscribe(topics.WORKER_INFO.filter(), infos)
        async with w.worker("edge", "e0"):
            await w.answer(await w.send(HARD))
    bodies = [json.loads(bytes(delivery.packet.payload)) for delivery in infos.deliveries]
    names = {
        "name": "e0", "namespace": "default", "ownerName": "helmet", "ownerKind": "jointinferenceservice",
        "kind": "inference",
    }  # fmt: skip
    assert all(names.items() <= body.items() for body in bodies)
    assert [body["status"] for body in (bodies[0], bodies[-1])] == ["starting", "completed"]
    counts = bodies[-1]["taskInfo"]
    assert (counts["inferenceNumber"], counts["hardExampleNumber"], counts["uploadCloudRatio"]) == (1, 1, 0.0)
    assert "" < counts["startTime"] <= counts["updateTime"] == counts["currentTime"]


async def test_a_nodes_report_has_its_models_and_counts_before_there_are_any(tmp_path: Path) -> None:
    def report() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(w.broker.retained_payload(f"node/edge0/{STATUS_OF_HELMET}") or b"{}")
        return found

    async with lc_world.world(tmp_path) as w:
        await w.gm.insert(lc_world.service())
        await w.gm.reaches(HELMET, "Pending")
        assert (report()["phase"], report()["status"]) == ("Pending", "pending")
        assert report()["output"] == {"models": [], "taskInfo": None}
        await w.gm.insert(lc_world.model())
        await eventually(lambda: report()["output"]["models"])
        (found,) = report()["output"]["models"]
        assert found == {"format": "onnx", "url": "/models/small.onnx"}


COUNTS = {
    "inferenceNumber": 1000, "hardExampleNumber": 100, "uploadCloudRatio": 0.1,
    "startTime": "2026-11-03T08:39:22.517Z", "currentTime": "2026-11-03T08:50:22.517Z",
}  # fmt: skip
OUTPUT = {"models": [{"format": "onnx", "url": "/models/small.onnx"}], "taskInfo": COUNTS}
LITERAL = {"phase": "Running", "status": "running", "output": OUTPUT}


async def test_a_status_without_a_uid_is_of_the_resource_that_has_the_name_now(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"), w.gm():
        edge.reports = False
        await w.apply(model("small"), model("big"), service())
        await eventually(lambda: edge.sent("insert")[-1:] == [("insert", "jointinferenceservices/helmet", 1)])
        await edge.bus.send(Packet(f"node/edge0/{STATUS_OF_HELMET}", json.dumps(LITERAL).encode(), retain=True))
        status = await w.reaches("Running")
        assert status.active == 2
        values = ("inferenceNumber", "hardExampleNumber", "uploadCloudRatio")
        assert [metric(status, key) for key in values] == ["1000", "100", "0.1"]
        # it names no generation, so it acknowledges none: the node is sent what it may have missed
        edge.log.clear()
        await eventually(lambda: ("insert", "jointinferenceservices/helmet", 1) in edge.log)


async def test_a_status_without_a_uid_on_a_name_that_nobody_has_is_ignored(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.gm():
        await edge.bus.send(Packet(f"node/edge0/{STATUS_OF_HELMET}", json.dumps(LITERAL).encode()))
        await asyncio.sleep(5)
        assert not edge.sent("delete")


async def test_the_time_at_which_gm_accepted_a_service_is_its_start_and_never_changes(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await w.apply(service())
        accepted = (await w.reaches("Pending", "ModelNotFound")).start_time
        assert accepted
        async with w.node("edge0"), w.node("cloud0"):
            await w.apply(model("small"), model("big"))
            assert (await w.reaches("Running")).start_time == accepted


async def test_a_service_is_pending_until_its_cloud_worker_has_started_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0"):
        await w.apply(model("small"), model("big"), service())
        await eventually(lambda: (document := w.status()) is not None and document.status.active == 1)
        status = await w.reaches("Pending", "NodeNotFound")
        assert "cloud0" in status.conditions[-1].message
        async with w.node("cloud0"):
            await w.reaches("Running")
        await w.reaches("Degraded", "NodeOffline")


async def test_a_condition_is_checked_and_published_again_at_least_every_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, began = asyncio.get_running_loop(), datetime(2026, 1, 1, tzinfo=UTC)

    def clock() -> str:
        return (began + timedelta(seconds=loop.time())).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    monkeypatch.setattr(services.gm.reconciler, "utc_now", clock)
    async with world(tmp_path) as w, w.gm(), w.node("edge0"), w.node("cloud0"):
        before = (await w.deploy()).conditions[-1]
        for _ in range(10):
            await asyncio.sleep(300)
            now = (await w.reaches("Running")).conditions[-1]
            assert now.last_heartbeat_time > before.last_heartbeat_time
            assert loop.time() - (datetime.fromisoformat(now.last_heartbeat_time) - began).total_seconds() <= 300
            assert now.last_transition_time == before.last_transition_time
            before = now
        assert w.manager._plane.reconciler.writes < 100, "3 resources, each written every 120 s"
