"""A node whose workers are pods: it starts none, prepares what it can, and reports what they say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.messages import LogsRequest
from halimede.models import FetchError, FetchReason
from services.lc.paths import NodePaths
from services.lc.worker_files import PodLogs
from tests.integration.lc_world import HELMET, SMALL, service
from tests.simulated import eventually, simulated
from tests.unit.lc.pods_world import PODS, counted, model, named, ready, says, world


@simulated
async def test_it_prepares_models_and_starts_nothing(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        status = await node.gm.reaches(SMALL, "Ready")
        assert status.uid == "uid-small"
        status = node.gm.statuses[HELMET]
        assert (status.uid, status.observed_generation, status.workers) == ("u1", 1, [])
        assert status.output
        assert [output.url for output in status.output.models] == ["https://models.example/small.onnx"]
        assert "edge0" in status.message
        await asyncio.sleep(60)
        assert node.launcher.started == []


@simulated
async def test_a_pod_is_reported_as_it_says(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], "starting")
        await node.gm.reaches(HELMET, "Pending", "Starting")
        await says(node, PODS[0], http="http://10.0.0.7:9101", number=3)
        status = await node.gm.reaches(HELMET, "Running")
        (worker,) = status.workers
        assert (worker.name, worker.role, worker.http) == (PODS[0].name, "edge", "http://10.0.0.7:9101")
        await says(node, PODS[1], "failed", reason="NoCamera", message="there is none")
        status = await node.gm.reaches(HELMET, "Failed", "NoCamera")
        assert status.message == "there is none"
        assert named(status) == {PODS[0].name: "Running", PODS[1].name: "Failed"}


@simulated
@pytest.mark.parametrize("reason", ["EdgeModelFailing", "DiskFull"])
async def test_a_pod_that_runs_in_trouble_is_reported_with_its_reason(reason: str, tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], reason=reason, message="its own words")
        status = await node.gm.reaches(HELMET, "Running", reason)
        assert status.message == "its own words"
        await says(node, PODS[0])
        await node.gm.reaches(HELMET, "Running", "")


@simulated
@pytest.mark.parametrize("wrong", [{"owner_uid": "u0"}, {"owner_uid": ""}, {"role": ""}, {"owner": "other"}])
async def test_who_is_not_of_a_service_that_is_held_does_not_count(wrong: dict[str, Any], tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], number=7, **wrong)
        await asyncio.sleep(5)
        await says(node, PODS[1], number=2)
        status = await node.gm.reaches(HELMET, "Running")
        assert named(status) == {PODS[1].name: "Running"}
        assert counted(node) == 2


@simulated
async def test_a_silent_pod_leaves_the_list_and_may_come_back(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], number=10, period_s=20.0)
        await node.gm.reaches(HELMET, "Running")
        await asyncio.sleep(55)
        assert node.gm.statuses[HELMET].phase == "Running"
        await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        assert counted(node) == 10
        await says(node, PODS[0], number=11)
        await node.gm.reaches(HELMET, "Running")
        await eventually(lambda: counted(node) == 11)


@simulated
async def test_a_short_period_still_leaves_half_a_minute(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0], period_s=1.0)
        await node.gm.reaches(HELMET, "Running")
        await asyncio.sleep(25)
        assert node.gm.statuses[HELMET].phase == "Running"
        await asyncio.sleep(10)
        assert node.gm.statuses[HELMET].phase == "Pending"


@simulated
async def test_nobody_is_silent_while_there_is_no_broker(tmp_path: Path) -> None:
    async with ready(tmp_path) as node:
        await says(node, PODS[0])
        await node.gm.reaches(HELMET, "Running")
        node.broker.stop()
        await asyncio.sleep(120)
        node.broker.start()
        await node.bus.wait_connected(60)
        await asyncio.sleep(15)
        assert node.gm.statuses[HELMET].phase == "Running"


@simulated
async def test_a_model_that_is_not_ready_is_why(tmp_path: Path) -> None:
    async def fails(*_: Any) -> Any:
        raise FetchError(FetchReason.NOT_FOUND, "it does not exist")

    async with world(tmp_path) as node:
        node.fetch = fails
        async with node.lc():
            await node.gm.insert(model(), service())
            status = await node.gm.reaches(HELMET, "Failed", "ModelNotReady")
            assert "does not exist" in status.message
            await says(node, PODS[0])
            await eventually(lambda: bool(node.gm.statuses[HELMET].workers))
            assert node.gm.statuses[HELMET].phase == "Failed"


@simulated
@pytest.mark.parametrize(
    "spec", [{"url": "/models/small.onnx"}, {"url": "s3://models/small.onnx", "credentialName": "s3-key"}]
)
async def test_what_only_pods_can_bring_is_left_to_them(spec: dict[str, str], tmp_path: Path) -> None:
    async def fails(*_: Any) -> Any:
        raise FetchError(FetchReason.NOT_FOUND, "this controller has no business with it")

    async with world(tmp_path) as node:
        node.fetch = fails
        async with node.lc():
            await node.gm.insert(model(**spec), service())
            await node.gm.reaches(SMALL, "Ready", "LeftToPods")
            status = await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
            assert status.output
            assert [output.url for output in status.output.models] == [spec["url"]]


@simulated
async def test_a_model_that_has_not_arrived_is_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as node, node.lc():
        await node.gm.insert(service())
        await node.gm.reaches(HELMET, "Pending", "ModelNotFound")
        await node.gm.synced()
        before = len(node.gm.syncs)
        await eventually(lambda: len(node.gm.syncs) > before, 60)


@simulated
async def test_a_role_that_asks_for_another_node_needs_nothing_here(tmp_path: Path) -> None:
    async with world(tmp_path) as node, node.lc():
        body = service(cloud_node="")
        body["spec"]["cloudWorker"]["template"]["spec"]["nodeSelector"] = {"role": "cloud"}
        await node.gm.insert(model(), body)
        await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        await node.gm.insert(service(generation=2, edge_node="edge1"))
        await node.gm.reaches(HELMET, "Pending", "NoPlacement")


async def test_logs_are_kubectls(tmp_path: Path) -> None:
    logs = PodLogs(NodePaths(tmp_path, "edge0"), None)  # type: ignore[arg-type]
    names = {"node": "edge0", "client": "operator"}
    body = LogsRequest(namespace="default", worker="helmet-edge-edge0", offset=0, limit=1)
    request = Delivery(topics.LOGS_REQUEST.at(**names), names, body, Packet("x", b""))
    reply = await logs._answer(request)
    assert "kubectl logs --namespace default --selector app.kubernetes.io/managed-by=halimede" in reply.error
    assert "spec.nodeName=edge0" in reply.error
