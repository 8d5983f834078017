"""JointInferenceService in the form of the older group neptune.io, and its translation to the sedna.io form.

The user's script folder becomes a hostPath mount, the working directory and PYTHONPATH; Python runs the script;
parameters become environment variables; the framework pair names the image.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from halimede.api.base import NEPTUNE, SEDNA, Resource, Spec, register
from halimede.api.deferral import ModelRef, Parameter
from halimede.api.jointinference import COLUMNS, NAME_LIMIT, PLURAL
from halimede.api.schema import PHASE, ObjectName, PrinterColumn, ValidationRule
from halimede.errors import InvalidFieldError, check_all, refuse
from halimede.messages import ResourceBody
from halimede.names import check_name

#: annotation of every translated object: its original group
ORIGIN = "halimede.io/translated-from"
#: texts of errors: what to write
FOLDER_FIX = "write an absolute path without '..'"
FILE_FIX = "use a file below scriptDir"
#: column of ``kubectl get`` with the last condition, which is the present one
STATUS = PrinterColumn("status", ".status.conditions[-1].type", "The current condition.")
NEPTUNE_COLUMNS = (PHASE, STATUS, *COLUMNS[1:])
#: plural and short names of the kind
NAMES = (PLURAL, "jis", "jointinferenceservice")


class Algorithm(Spec, kw_only=True):
    """The mining algorithm; this form knows no parameters."""

    name: Annotated[str, Meta(min_length=1, max_length=128, description="The algorithm, such as IBT or CrossEntropy.")]


class WorkerSpec(Spec, kw_only=True):
    """The user's script, and the framework that it needs."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "self.scriptDir.startsWith('/') && !self.scriptDir.matches('(^|/)[.][.](/|$)')", FOLDER_FIX, ".scriptDir"
        ),
        ValidationRule(
            "!self.scriptBootFile.startsWith('/') && !self.scriptBootFile.matches('(^|/)[.][.](/|$)')",
            FILE_FIX,
            ".scriptBootFile",
        ),
    )

    script_dir: Annotated[
        str, Meta(min_length=1, max_length=4096, description="The script's folder on the node: an absolute path.")
    ]
    script_boot_file: Annotated[
        str, Meta(min_length=1, max_length=4096, description="The script, run with Python: a file in scriptDir.")
    ]
    framework_type: Annotated[
        str, Meta(min_length=1, max_length=64, description="The framework; with its version it selects the image.")
    ]
    framework_version: Annotated[str, Meta(min_length=1, max_length=64, description="The framework's version.")]
    parameters: Annotated[list[Parameter], Meta(max_length=64, description="Environment variables of the script.")] = []


class NeptuneCloudWorker(Spec, kw_only=True):
    """The big model's worker."""

    name: Annotated[str, Meta(min_length=1, max_length=253, description="A name of the worker, only for display.")]
    model: Annotated[ModelRef, Meta(description="The model that the worker loads.")]
    node_name: Annotated[ObjectName, Meta(description="The node that the worker runs on.")]
    worker_spec: Annotated[WorkerSpec, Meta(description="The script that is the worker.")]


class NeptuneEdgeWorker(NeptuneCloudWorker, kw_only=True):
    """The small model's worker."""

    hard_example_algorithm: Annotated[Algorithm, Meta(description="The algorithm that finds hard samples.")]


def check(spec: NeptuneSpec) -> None:
    """Check names and paths. Raises InvalidFieldError with all errors."""
    check_all(
        partial(_check_worker, "spec.edgeWorker", spec.edge_worker),
        partial(_check_worker, "spec.cloudWorker", spec.cloud_worker),
    )


def _check_worker(at: str, worker: NeptuneCloudWorker) -> None:
    """Check names and paths of the worker at the path ``at``. Raises InvalidFieldError."""
    script, errors = worker.worker_spec, []
    if not script.script_dir.startswith("/") or ".." in script.script_dir.split("/"):
        errors.append(InvalidFieldError(f"{at}.workerSpec.scriptDir", script.script_dir, FOLDER_FIX))
    if script.script_boot_file.startswith("/") or ".." in script.script_boot_file.split("/"):
        errors.append(InvalidFieldError(f"{at}.workerSpec.scriptBootFile", script.script_boot_file, FILE_FIX))
    check_all(
        partial(check_name, f"{at}.model.name", worker.model.name),
        partial(check_name, f"{at}.nodeName", worker.node_name),
        partial(refuse, errors),
    )


@register(NEPTUNE, "JointInferenceService", *NAMES, check=check, columns=NEPTUNE_COLUMNS, name_limit=NAME_LIMIT)
class NeptuneSpec(Spec, kw_only=True):
    """Joint inference in neptune.io's form: two scripts on two nodes, a small model's and a big one's."""

    edge_worker: Annotated[
        NeptuneEdgeWorker, Meta(description="The worker with the small model, on the node with the frames.")
    ]
    cloud_worker: Annotated[NeptuneCloudWorker, Meta(description="The worker with the big model, for hard samples.")]


def to_sedna(resource: Resource[NeptuneSpec]) -> ResourceBody:
    """Return the same service in sedna.io form; the annotation ``ORIGIN`` names its original group.

    Images are named after the framework pair: ``<frameworkType>:<frameworkVersion>``.
    """
    spec = resource.spec
    metadata = dict(resource.body["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ORIGIN: NEPTUNE}
    edge = _worker(spec.edge_worker)
    edge["hardExampleMining"] = {"name": spec.edge_worker.hard_example_algorithm.name}
    return {
        "apiVersion": SEDNA,
        "kind": resource.kind.kind,
        "metadata": metadata,
        "spec": {"edgeWorker": edge, "cloudWorker": _worker(spec.cloud_worker)},
    }


def native(resource: Resource[Any]) -> Resource[Any]:
    """Return a resource without the annotation ``ORIGIN``, which marks translated ones: a user may have written it."""
    if ORIGIN not in resource.metadata.annotations:
        return resource
    annotations = {name: text for name, text in resource.metadata.annotations.items() if name != ORIGIN}
    return replace(resource, metadata=msgspec.structs.replace(resource.metadata, annotations=annotations))


def _worker(worker: NeptuneCloudWorker) -> dict[str, Any]:
    """Return a worker of sedna.io's form: its model, and a pod that runs the script."""
    script = worker.worker_spec
    container = {
        "name": "worker",
        "image": f"{script.framework_type}:{script.framework_version}",
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
