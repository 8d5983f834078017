"""A service, what it names, and settings, for tests of pods."""

from __future__ import annotations

import copy
from typing import Any

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.neptune import to_sedna
from halimede.names import Key
from services.gm.workloads import object_names
from services.gm.workloads.deployments import Built, build
from services.gm.workloads.pod_settings import PodSettings

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
    body = {"apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": name, "uid": name}}
    return parse({**body, "spec": {"url": url, "format": "onnx", **spec}})


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
        "template": template() if edge is None else edge,
    }
    big: dict[str, Any] = {
        "model": {"name": "big"},
        "template": template(nodeName="cloud0") if cloud is None else cloud,
    }
    worker |= more.pop("edgeWorker", {})
    big |= more.pop("cloudWorker", {})
    body = {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "JointInferenceService",
        "metadata": {"name": name, "namespace": "default", "uid": UID, "generation": 1},
        "spec": {"edgeWorker": worker, "cloudWorker": big, **more},
    }
    return parse(copy.deepcopy(body))


def neptune() -> Resource[Any]:
    """Return a service that was written in the seed's form."""
    worker = {
        "scriptDir": "/data/code",
        "scriptBootFile": "run.py",
        "frameworkType": "tensorflow",
        "frameworkVersion": "1.18",
        "parameters": [{"key": "nms_threshold", "value": "0.6"}],
    }
    body = {
        "apiVersion": NEPTUNE,
        "kind": "JointInferenceService",
        "metadata": {"name": "helmet", "namespace": "default", "uid": UID},
        "spec": {
            "edgeWorker": {
                "name": "edgeworker",
                "model": {"name": "small"},
                "nodeName": "edge0",
                "hardExampleAlgorithm": {"name": "IBT"},
                "workerSpec": worker,
            },
            "cloudWorker": {"name": "work", "model": {"name": "big"}, "nodeName": "cloud0", "workerSpec": worker},
        },
    }
    return parse(to_sedna(parse(body)))


def known(*models: Resource[Any]) -> dict[Key, Resource[Any] | None]:
    """Return references: a small and a big model, or others in their place."""
    found = {m.key: m for m in (model(), model("big", "/data/models/big.onnx"))}
    return {**found, **{m.key: m for m in models}}


def built(
    of: Resource[Any] | None = None,
    *models: Resource[Any],
    settings: PodSettings = SETTINGS,
    secrets: dict[str, Any] | None = None,
) -> Built:
    of = of or service()
    sessions = {object_names.session_secret_name(of): {"ownerReferences": [object_names.owner(of)]}}
    return build(of, known(*models), {**SECRETS, **sessions} if secrets is None else secrets, settings)


def objects(of: Built) -> dict[str, dict[str, Any]]:
    """Return the objects by name; nothing may be wrong."""
    assert of.problems == ()
    return {f"{body['kind']}/{body['metadata']['name']}": body for body in of.objects}


def pod(of: Built, role: str = "edge") -> dict[str, Any]:
    """Return the pod's spec of a role."""
    spec: dict[str, Any] = objects(of)[f"Deployment/helmet-deployment-{role}"]["spec"]["template"]["spec"]
    return spec


def environment(of: Built, role: str = "edge") -> dict[str, Any]:
    """Return the environment of a role's worker: values, or where they are from."""
    given = pod(of, role)["containers"][0]["env"]
    assert len({v["name"] for v in given}) == len(given), "a name stands twice"
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in given}


def reasons(of: Built) -> list[str]:
    return [problem.reason for problem in of.problems]
