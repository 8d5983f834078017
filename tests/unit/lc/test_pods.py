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
from tests.integration.lc_world import HELMET, SMALL, World, service
from tests.simulated import eventually
from tests.unit.lc.pods_world import PODS, counted, model, named, says
from tests.unit.lc.test_preparer import Origin

pytestmark = pytest.mark.simulated


async def test_it_prepares_models_and_starts_nothing(pods_node: World) -> None:
    status = await pods_node.gm.reaches(SMALL, "Ready")
    assert status.uid == "uid-small"
    status = pods_node.gm.statuses[HELMET]
    assert (status.uid, status.observed_generation, status.workers) == ("u1", 1, [])
    assert [output.url for output in status.output.models] == ["https://models.example/small.onnx"]
    assert "edge0" in status.message
    await asyncio.sleep(60)
    assert pods_node.launcher.started == []


async def test_a_pod_is_reported_as_it_says(pods_node: World) -> None:
    await says(pods_node, PODS[0], "starting")
    await pods_node.gm.reaches(HELMET, "Pending", "Starting")
    await says(pods_node, PODS[0], http="http://10.0.0.7:9101", number=3)
    status = await pods_node.gm.reaches(HELMET, "Running")
    (worker,) = status.workers
    assert (worker.name, worker.role, worker.http) == (PODS[0].name, "edge", "http://10.0.0.7:9101")
    await says(pods_node, PODS[1], "failed", reason="NoCamera", message="there is none")
    status = await pods_node.gm.reaches(HELMET, "Failed", "NoCamera")
    assert (status.message, named(status)) == ("there is none", {PODS[0].name: "Running", PODS[1].name: "Failed"})


@pytest.mark.parametrize("reason", ["EdgeModelFailing", "DiskFull"])
async def test_a_pod_that_runs_in_trouble_is_reported_with_its_reason(pods_node: World, reason: str) -> None:
    await says(pods_node, PODS[0], reason=reason, message="its own words")
    status = await pods_node.gm.reaches(HELMET, "Running", reason)
    assert status.message == "its own words"
    await says(pods_node, PODS[0])
    await pods_node.gm.reaches(HELMET, "Running", "")


@pytest.mark.parametrize("wrong", [{"owner_uid": "u0"}, {"owner_uid": ""}, {"role": ""}, {"owner": "other"}])
async def test_who_is_not_of_a_service_that_is_held_does_not_count(pods_node: World, wrong: dict[str, Any]) -> None:
    await says(pods_node, PODS[0], number=7, **wrong)
    await asyncio.sleep(5)
    await says(pods_node, PODS[1], number=2)
    status = await pods_node.gm.reaches(HELMET, "Running")
    assert named(status) == {PODS[1].name: "Running"}
    assert counted(pods_node) == 2


@pytest.mark.parametrize(("period_s", "quiet_s"), [(20.0, 55), (1.0, 25)], ids=["three periods", "half a minute"])
async def test_a_silent_pod_leaves_the_list_and_may_come_back(
    pods_node: World, period_s: float, quiet_s: float
) -> None:
    await says(pods_node, PODS[0], number=10, period_s=period_s)
    await pods_node.gm.reaches(HELMET, "Running")
    await asyncio.sleep(quiet_s)
    assert pods_node.gm.statuses[HELMET].phase == "Running"
    await asyncio.sleep(10)
    assert (pods_node.gm.statuses[HELMET].reason, counted(pods_node)) == ("NoWorkerHere", 10)
    await says(pods_node, PODS[0], number=11)
    await pods_node.gm.reaches(HELMET, "Running")
    await eventually(lambda: counted(pods_node) == 11)


async def test_nobody_is_silent_while_there_is_no_broker(pods_node: World) -> None:
    await says(pods_node, PODS[0])
    await pods_node.gm.reaches(HELMET, "Running")
    pods_node.broker.stop()
    await asyncio.sleep(120)
    pods_node.broker.start()
    await pods_node.bus.wait_connected(60)
    await asyncio.sleep(15)
    assert pods_node.gm.statuses[HELMET].phase == "Running"


async def test_a_model_that_is_not_ready_is_why(stopped_pods_node: World) -> None:
    stopped_pods_node.fetch = Origin(FetchError(FetchReason.NOT_FOUND, "it does not exist"))
    async with stopped_pods_node.lc():
        await stopped_pods_node.gm.insert(model(), service())
        status = await stopped_pods_node.gm.reaches(HELMET, "Failed", "ModelNotReady")
        assert "does not exist" in status.message
        await says(stopped_pods_node, PODS[0])
        await eventually(lambda: bool(stopped_pods_node.gm.statuses[HELMET].workers))
        assert stopped_pods_node.gm.statuses[HELMET].phase == "Failed"


@pytest.mark.parametrize(
    "spec", [{"url": "/models/small.onnx"}, {"url": "s3://models/small.onnx", "credentialName": "s3-key"}]
)
async def test_what_only_pods_can_bring_is_left_to_them(stopped_pods_node: World, spec: dict[str, str]) -> None:
    stopped_pods_node.fetch = origin = Origin()
    async with stopped_pods_node.lc():
        await stopped_pods_node.gm.insert(model(**spec), service())
        await stopped_pods_node.gm.reaches(SMALL, "Ready", "LeftToPods")
        status = await stopped_pods_node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        assert [output.url for output in status.output.models] == [spec["url"]]
        assert origin.asked == []


async def test_a_model_that_has_not_arrived_is_asked_for(stopped_pods_node: World) -> None:
    async with stopped_pods_node.lc():
        await stopped_pods_node.gm.insert(service())
        await stopped_pods_node.gm.reaches(HELMET, "Pending", "ModelNotFound")
        await stopped_pods_node.gm.synced()
        before = len(stopped_pods_node.gm.syncs)
        await eventually(lambda: len(stopped_pods_node.gm.syncs) > before, 60)


async def test_a_role_that_asks_for_another_node_needs_nothing_here(stopped_pods_node: World) -> None:
    async with stopped_pods_node.lc():
        body = service(cloud_node="")
        body["spec"]["cloudWorker"]["template"]["spec"]["nodeSelector"] = {"role": "cloud"}
        await stopped_pods_node.gm.insert(model(), body)
        await stopped_pods_node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        await stopped_pods_node.gm.insert(service(generation=2, edge_node="edge1"))
        await stopped_pods_node.gm.reaches(HELMET, "Pending", "NoPlacement")


async def test_logs_are_kubectls(tmp_path: Path) -> None:
    logs = PodLogs(NodePaths(tmp_path, "edge0"), None)  # type: ignore[arg-type]
    names = {"node": "edge0", "client": "operator"}
    body = LogsRequest(namespace="default", worker="helmet-edge-edge0", offset=0, limit=1)
    request = Delivery(topics.LOGS_REQUEST.at(**names), names, body, Packet("x", b""))
    reply = await logs._answer(request)
    assert "kubectl logs --namespace default --selector app.kubernetes.io/managed-by=halimede" in reply.error
    assert "spec.nodeName=edge0" in reply.error


async def test_the_folder_for_hard_samples_is_made_before_the_pod_and_goes_with_the_service(
    stopped_pods_node: World,
) -> None:
    async with stopped_pods_node.lc():
        folder = stopped_pods_node.config.folders.hard_samples("default", "helmet")
        await stopped_pods_node.gm.insert(model(), service(keepHardSamples={}))
        await eventually(folder.is_dir)
        (folder / "sample").write_text("1")
        await stopped_pods_node.gm.delete(HELMET, "u1")
        await eventually(lambda: not folder.exists())
