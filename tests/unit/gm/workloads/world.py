"""A service, what it names, and settings, for tests of pods."""

from __future__ import annotations

import copy
from typing import Any

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.neptune import to_sedna
from halimede.names import Key
from services.gm.workloads.pod_settings import PodSettings
from tests.integration import gm_world

UID = "5f0c0a3e-0000-4000-8000-000000000001"
SETTINGS = PodSettings(
    broker="mqtts://broker.halimede:8883",
    worker_image="registry.example/halimede/worker:1",
    fetcher_image="registry.example/halimede/lc:1",
    images={"tensorflow:1.18": "registry.example/tf:1.18"},
    host_paths=("/data",),
)
SECRETS: dict[str, Any] = {"halimede-edge-worker": {}, "halimede-cloud-worker": {}}


def model(name: str = "small", url: str = "https://models.example/a/small.onnx?token=t", **spec: Any) -> Resource[Any]:
    return parse(gm_world.model(name, url=url, **spec))


def container(**more: Any) -> dict[str, Any]:
    return {"name": "worker", "image": "registry.example/mine:1", **more}


def template(first: dict[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": "edge0", "containers": [container() if first is None else first], **pod}}


def service(
    *, edge: dict[str, Any] | None = None, cloud: dict[str, Any] | None = None, name: str = "helmet", **more: Any
) -> Resource[Any]:
    """Return a service. ``edge`` and ``cloud`` are templates; ``more`` is of the spec, as ``edgeWorker={...}``."""
    worker: dict[str, Any] = {
        "model": {"name": "small"},
        "hardExampleMining": {"name": "IBT", "parameters": [{"key": "threshold_img", "value": "0.9"}]},
        "template": edge or template(),
    }
    big: dict[str, Any] = {"model": {"name": "big"}, "template": cloud or template(nodeName="cloud0")}
    worker |= more.pop("edgeWorker", {})
    big |= more.pop("cloudWorker", {})
    body = gm_world.resource("JointInferenceService", name, edgeWorker=worker, cloudWorker=big, **more)
    body["metadata"] |= {"namespace": "default", "uid": UID, "generation": 1}
    return parse(copy.deepcopy(body))


def neptune_form() -> dict[str, Any]:
    """Return a service in the seed's form."""
    worker = {
        "scriptDir": "/data/code",
        "scriptBootFile": "run.py",
        "frameworkType": "tensorflow",
        "frameworkVersion": "1.18",
        "parameters": [{"key": "nms_threshold", "value": "0.6"}],
    }
    edge = {"name": "edgeworker", "model": {"name": "small"}, "nodeName": "edge0", "workerSpec": worker}
    edge["hardExampleAlgorithm"] = {"name": "IBT"}
    cloud = {"name": "work", "model": {"name": "big"}, "nodeName": "cloud0", "workerSpec": worker}
    body = gm_world.resource("JointInferenceService", "helmet", edgeWorker=edge, cloudWorker=cloud)
    return {**body, "apiVersion": NEPTUNE, "metadata": {"name": "helmet", "namespace": "default", "uid": UID}}


def neptune() -> Resource[Any]:
    """Return a service that was written in the seed's form."""
    return parse(to_sedna(parse(neptune_form())))


def known(*models: Resource[Any]) -> dict[Key, Resource[Any] | None]:
    """Return references: a small and a big model, or others in their place."""
    found = {m.key: m for m in (model(), model("big", "/data/models/big.onnx"))}
    return {**found, **{m.key: m for m in models}}
