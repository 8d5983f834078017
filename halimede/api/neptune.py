"""JointInferenceService as the seed's neptune.io group writes it, and its translation to the sedna.io form.

The user's script folder becomes a hostPath mount, the working directory and PYTHONPATH; the script is run with
Python; parameters become environment variables; the framework pair chooses the image.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from halimede.api.base import NEPTUNE, SEDNA, Resource, Spec, register
from halimede.api.jointinference import PLURAL, ModelRef, Parameter
from halimede.errors import InvalidFieldError
from halimede.messages import ResourceBody
from halimede.names import check_name

#: on every translated object: where it came from
ORIGIN = "halimede.io/translated-from"


class Algorithm(Spec, kw_only=True):
    """The mining algorithm; this form knows no parameters."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]


class WorkerSpec(Spec, kw_only=True):
    """The user's script, and the framework that it needs."""

    script_dir: Annotated[str, Meta(min_length=1, max_length=4096)]
    script_boot_file: Annotated[str, Meta(min_length=1, max_length=4096)]
    framework_type: Annotated[str, Meta(min_length=1, max_length=64)]
    framework_version: Annotated[str, Meta(min_length=1, max_length=64)]
    parameters: Annotated[list[Parameter], Meta(max_length=64)] = []


class CloudWorker(Spec, kw_only=True):
    """The big model's worker."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    model: ModelRef
    node_name: str
    worker_spec: WorkerSpec


class EdgeWorker(CloudWorker, kw_only=True):
    """The small model's worker."""

    hard_example_algorithm: Algorithm


def check(spec: NeptuneSpec) -> None:
    """Check names and paths."""
    for role, worker in (("edgeWorker", spec.edge_worker), ("cloudWorker", spec.cloud_worker)):
        check_name(f"spec.{role}.model.name", worker.model.name)
        check_name(f"spec.{role}.nodeName", worker.node_name)
        script = worker.worker_spec
        if not script.script_dir.startswith("/") or ".." in script.script_dir.split("/"):
            raise InvalidFieldError(
                f"spec.{role}.workerSpec.scriptDir", script.script_dir, "write an absolute path without '..'"
            )
        if script.script_boot_file.startswith("/") or ".." in script.script_boot_file.split("/"):
            raise InvalidFieldError(
                f"spec.{role}.workerSpec.scriptBootFile", script.script_boot_file, "name a file below scriptDir"
            )


@register(NEPTUNE, "JointInferenceService", PLURAL, "jis", check=check)
class NeptuneSpec(Spec, kw_only=True):
    """What a user asks of joint inference, in the seed's words."""

    edge_worker: EdgeWorker
    cloud_worker: CloudWorker


def to_sedna(resource: Resource[NeptuneSpec], images: dict[str, str] | None = None) -> ResourceBody:
    """Return the same service in sedna.io form, with the same metadata.

    ``images`` maps ``<frameworkType>:<frameworkVersion>`` to an image; others are named after the pair itself.
    """
    spec = resource.spec
    metadata = dict(resource.body["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ORIGIN: NEPTUNE}
    edge = _worker(spec.edge_worker, images or {})
    edge["hardExampleMining"] = {"name": spec.edge_worker.hard_example_algorithm.name}
    return {
        "apiVersion": SEDNA,
        "kind": resource.kind.kind,
        "metadata": metadata,
        "spec": {"edgeWorker": edge, "cloudWorker": _worker(spec.cloud_worker, images or {})},
    }


def _worker(worker: CloudWorker, images: dict[str, str]) -> dict[str, Any]:
    script = worker.worker_spec
    framework = f"{script.framework_type}:{script.framework_version}"
    container = {
        "name": "worker",
        "image": images.get(framework, framework),
        "command": ["python3", script.script_boot_file],
        "workingDir": script.script_dir,
        "env": [
            *({"name": p.key, "value": p.value} for p in script.parameters),
            {"name": "PYTHONPATH", "value": script.script_dir},
        ],
        "volumeMounts": [{"name": "script", "mountPath": script.script_dir}],
    }
    volume = {"name": "script", "hostPath": {"path": script.script_dir}}
    pod = {"nodeName": worker.node_name, "containers": [container], "volumes": [volume]}
    return {"model": {"name": worker.model.name}, "template": {"spec": pod}}
