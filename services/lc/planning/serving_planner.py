"""An InferenceModel on a node that runs workers itself: one server process, which takes new versions while it runs.

Which version it answers with is in the file beside it (``halimede.models.desired_state``); the process is started anew
only for what concerns the process itself. While a new version is on its way the one before is served.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import msgspec

from halimede.api import Resource, matches
from halimede.api.inferencemodel import InferenceModelSpec, ServedVersionSpec, is_ours, model_spec, pod, target, wanted
from halimede.api.placement import worker_name
from halimede.api.quantity import quantity
from halimede.api.worker_environment import LC_PERIOD, OWN_IMAGE
from halimede.errors import InvalidFieldError
from halimede.messages import ModelFacts
from halimede.models.desired_state import Desired, DesiredModel
from halimede.names import check_name
from services.lc.models.preparation import Phase, Preparation, RequiredFile
from services.lc.paths import NodePaths, Worker
from services.lc.planning.resource_state import Lack, ResourceState
from services.lc.planning.template_process import Host
from services.lc.store.database import NodeResource
from services.lc.supervisor.process import SERVER, ProcessSpec, Start

GRACE_S = 10.0
#: the file beside the process that says which model it answers with
DESIRED = "model.json"


def want(held: NodeResource, resource: Resource[InferenceModelSpec]) -> RequiredFile | None:
    """Return the file that an InferenceModel needs on this node; None if it needs none."""
    version = target(resource.spec)
    if version is None or not version.has_digest or not is_ours(resource.spec):
        return None
    spec = msgspec.structs.replace(model_spec(resource.spec, version), url="/", credential_name="")
    told = msgspec.json.encode(spec).decode()
    return RequiredFile(held.key, held.uid, held.generation, version.url, version.sha256.lower(), spec.format, told)


def serve(
    held: NodeResource,
    resource: Resource[InferenceModelSpec],
    preparation: Preparation | None,
    *,
    node: str,
    folders: NodePaths,
    told: dict[str, str],
    host: Host,
    address: str,
) -> tuple[ResourceState, dict[Worker, Start]]:
    """Return how an InferenceModel stands on this node, and its server if it can run.

    ``told`` is what every worker of the node is told; ``address`` is what the server listens on.
    """
    worker = Worker(held.key.namespace, worker_name(held.key.name, "serve", node))
    facts = preparation.facts if preparation and isinstance(preparation.facts, ModelFacts) else None
    outcome = _start(held, resource, preparation, worker, node=node, folders=folders, told=told, host=host,
                     address=address)  # fmt: skip
    if isinstance(outcome, Lack):
        standing = ResourceState(held.key, held.uid, held.generation, {worker: "serve"}, {worker: outcome}, facts=facts)
        return standing, {}
    return ResourceState(held.key, held.uid, held.generation, {worker: "serve"}, facts=facts), {worker: outcome}


def here(resource: Resource[InferenceModelSpec], node: str, labels: Mapping[str, str]) -> bool:
    """Whether it is to be served on this node."""
    return wanted(resource.spec) > 0 and matches(pod(resource.spec), node, labels)


def _start(
    held: NodeResource,
    resource: Resource[InferenceModelSpec],
    preparation: Preparation | None,
    worker: Worker,
    *,
    node: str,
    folders: NodePaths,
    told: dict[str, str],
    host: Host,
    address: str,
) -> Start | Lack:
    spec = resource.spec
    try:
        check_name("worker name", worker.name)
    except InvalidFieldError as error:
        return Lack("Failed", "NameTooLong", str(error))
    version = target(spec)
    if version is None and not OWN_IMAGE.fullmatch(spec.image or ""):
        text = f"spec.image: {spec.image!r} needs a container engine: give a manifest, or use Kubernetes"
        return Lack("Failed", "FrameworkNotSupported", text)
    if version is None:
        return Lack("Failed", "FrameworkNotSupported", "spec.manifest: our own server needs a version to serve")
    if not is_ours(spec):
        text = f"spec.frameworkType: {spec.framework_type!r} is not served without Kubernetes: export it to ONNX"
        return Lack("Failed", "FrameworkNotSupported", text)
    if not version.has_digest:
        text = f"spec.manifest: version {version.version!r}: {version.sha256!r} is no SHA-256: write 64 hex digits"
        return Lack("Failed", "InvalidDigest", text)
    if preparation is None or preparation.phase != "Ready" or preparation.path is None:
        known = preparation or Preparation(RequiredFile(held.key, held.uid, held.generation, version.url))
        phase: Phase = "Failed" if known.phase == "Failed" else "Pending"
        return Lack(phase, known.reason, f"version {version.version!r}: {known.message or 'on its way to this node'}")
    desired = _desired(spec, version, preparation)
    folder = folders.worker(worker)
    env = {
        **{variable.name: variable.value for variable in spec.env},
        **told,
        "NAMESPACE": held.key.namespace,
        "SERVICE_NAME": held.key.name,
        "SERVICE_UID": held.uid,
        "WORKER_NAME": worker.name,
        "NODE_NAME": node,
        "HALIMEDE_STATE": str(folder),
        "GRACE_S": f"{GRACE_S:g}",
        "LC_PERIOD": LC_PERIOD,
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(host.library)])),
    }
    argv = [host.python, "-m", SERVER, "--file", str(folder / DESIRED)]
    argv += ["--http", f"{address}:{spec.serving_port}", "--grpc", f"{address}:0"]
    process = ProcessSpec(tuple(argv), env, str(folder), memory_bytes=_memory(spec), grace_s=GRACE_S)
    return Start(worker, held.key, held.uid, "serve", process, preparation.path, desired)


def _desired(spec: InferenceModelSpec, version: ServedVersionSpec, preparation: Preparation) -> Desired:
    model = DesiredModel(
        name=spec.model_name,
        path=str(preparation.path),
        version=version.version,
        digest=preparation.facts.digest if isinstance(preparation.facts, ModelFacts) else "",
        spec=msgspec.json.decode(preparation.want.spec),
        canary_percent=spec.rollout.canary_percent if spec.rollout else 100,
    )
    return Desired(models=[model])


def _memory(spec: InferenceModelSpec) -> int | None:
    given = (spec.resources.get("limits") or {}).get("memory")
    return None if given is None else math.ceil(quantity("spec.resources.limits.memory", given))
