"""Merges what a worker needs into the user's pod template (``pod_template``).

The user's fields stay, apart from those that ``_complete`` sets, mounts of the node's folders (``_protect_node``), and
the registry of halimede's images.

The first container is the worker. Of its environment variables, facts override the user's of the same name, defaults do
not. Sidecars, init containers, volumes, probes and scheduling are the user's own. Only containers of halimede's images
get security settings, and probes if they run halimede's worker: their needs are known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halimede.api import Resource, worker_environment
from halimede.api.jointinference import EdgeWorkerSpec, JointInferenceServiceSpec
from halimede.api.placement import Placement, Program
from halimede.api.podtemplate import OWN_IMAGE
from halimede.api.trainingmodel import TrainingSpec
from halimede.api.worker_environment import SESSION_KEY, WorkerEnvironment, common
from halimede.errors import InvalidFieldError
from halimede.hard_samples import FOLDER as HARD_SAMPLES
from services.gm.service_status import Problem
from services.gm.workloads import object_names
from services.gm.workloads.model_init_container import (
    CONFINED,
    DATA,
    NODE_NAME,
    Models,
    PodModel,
    literal,
    mount_folder,
)
from services.gm.workloads.node_placement import bind_pod
from services.gm.workloads.object_names import OURS, TEMPLATE, Body
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.template_policy import may_write

#: folder in the pod with a worker's state
STATE = "/var/lib/halimede/state"
#: most bytes of that folder: of a worker (a few kilobytes), of a joint (the findings that it compares with), and of a
#: worker that trains (some files of all weights)
STATE_SIZE, JOINT_STATE_SIZE, TRAINING_STATE_SIZE = "16Mi", "1Gi", "8Gi"
#: folder in the pod with the worker's credentials for the broker
BROKER = "/etc/halimede/broker"
#: the port of Sedna's cloud workers
BIG_MODEL_PORT = 5000
#: the name of the port with health and metrics
METRICS = "metrics"
#: fraction of a pod's grace period that a worker may use; the rest is for Kubernetes
GRACE_SHARE = 0.8
#: the variable with the name of a worker: that of its pod
WORKER_NAME: Body = {"name": "WORKER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """The paths of samples on a worker's node; empty: it uses none.

    Attributes:
        data: samples to train on.
        reference: samples of the stream as it was, with which a trained model is compared.
        hard_samples: the folder where an edge worker keeps hard samples for training. The local controller makes it
            before, so that it belongs to the user of the workers: one that kubelet makes is root's.

    """

    data: str = ""
    reference: str = ""
    hard_samples: str = ""


NO_FILES = NodeFiles()


def pod_template(
    service: Resource[Any], placement: Placement, brought: Models, settings: PodSettings, files: NodeFiles = NO_FILES
) -> Body:
    """Return the template of a worker's pods, with its digest as a label.

    ``placement``: the worker in the service's spec, with the user's template. ``brought``: its Models by purpose, each
    with how it gets into the pod. ``files``: paths of samples on its node.
    """
    pod_models = _pod_models(brought)
    template = _without_nulls(placement.worker.template)
    pod: Body = template["spec"]
    _protect_node(pod, settings)
    volumes, mounts = _volumes(placement, settings, files)
    worker: Body = pod["containers"][0]
    worker["name"] = worker.get("name") or "worker"
    worker["image"] = _image(service, worker, settings)
    _locate_images(pod, settings)
    if isinstance(service.spec, TrainingSpec):
        _request_share(worker, service.spec.as_training().cpu_share)
    worker["volumeMounts"] = _once([
        *worker.get("volumeMounts", []), *mounts, *(mount for model in pod_models for mount in model.mounts),
    ])  # fmt: skip
    if _is_ours(worker, settings):
        _make_ours(worker, pod, placement.program, settings)
        volumes += _writable(worker)
    environment = _worker_environment(service, placement, brought, settings, files)
    worker["env"] = [*_merge_variables(environment, worker.get("env", [])), *_session_key(service, placement)]
    init = [copy.deepcopy(container) for pod_model in pod_models for container in pod_model.init]
    pod["initContainers"] = [*init, *pod.get("initContainers", [])]
    volumes += [volume for pod_model in pod_models for volume in pod_model.volumes]
    pod["volumes"] = [*pod.get("volumes", []), *_once(volumes)]
    _complete(pod, placement, settings)
    return _with_labels(object_names.labels(service, placement.role, placement.part), template.get("metadata", {}), pod)


def _pod_models(brought: Models) -> list[PodModel]:
    """Return how each model gets into the pod."""
    return [pod_model for _, pod_model in brought.values()]


def check_mounts(placement: Placement, brought: Models, at: str, settings: PodSettings) -> Iterator[Problem]:
    """Yield a problem for each mount of the user's worker container at the path of one of halimede's own mounts.

    ``brought``: as of ``pod_template``. ``at``: path of the template in the resource.
    """
    mounts = [*_volumes(placement, settings)[1], *(mount for d in _pod_models(brought) for mount in d.mounts)]
    ours = {mount["mountPath"].rstrip("/") for mount in mounts}
    for i, mount in enumerate(placement.pod.containers[0].volume_mounts):
        if mount.mount_path.rstrip("/") in ours:
            fix = "a worker stores its own files there: use another mountPath"
            error = InvalidFieldError(f"{at}.spec.containers[0].volumeMounts[{i}].mountPath", mount.mount_path, fix)
            yield Problem("PodNotAllowed", str(error))


def _request_share(container: Body, share: float) -> None:
    """Add a request for ``share`` of a core (a fraction) to a container, unless its resources name the CPU."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    if share and "cpu" not in {*requests, *limits}:
        container["resources"] = {**resources, "requests": {**requests, "cpu": f"{max(1, round(1000 * share))}m"}}


def _complete(pod: Body, placement: Placement, settings: PodSettings) -> None:
    """Set the fields of a pod's spec that a worker needs, apart from containers and volumes."""
    bind_pod(pod, placement.pod.node_name, edge=placement.role == "edge")
    pod["restartPolicy"] = "Always"
    pod["terminationGracePeriodSeconds"] = placement.pod.termination_grace_period_seconds
    pod.setdefault("automountServiceAccountToken", False)
    # the deprecated name of a field: the server copies the new one's value into both
    if (account := pod.pop("serviceAccount", None)) and not pod.get("serviceAccountName"):
        pod["serviceAccountName"] = account
    if pulled := [*pod.get("imagePullSecrets", []), *({"name": name} for name in settings.pull_secrets)]:
        pod["imagePullSecrets"] = _once(pulled)


def _protect_node(pod: Body, settings: PodSettings) -> None:
    """Make mounts of the node's folders read-only unless the operator allows writes.

    A container that writes to such a folder can create a link there and mount the link's target as a path below the
    folder. A template's ``subPath`` has no such risk: the kubelet resolves it within the volume.
    """
    folders = {
        v["name"] for v in pod.get("volumes", []) if "hostPath" in v and not may_write(v["hostPath"]["path"], settings)
    }
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        mounts = container.get("volumeMounts")
        for mount in mounts if isinstance(mounts, list) else ():
            if isinstance(mount, dict) and str(mount.get("name")) in folders:
                mount["readOnly"] = True
                if mount.get("mountPropagation") in (None, "", "None") and mount.get("recursiveReadOnly") != "Enabled":
                    # otherwise file systems that the node has mounted below the folder stay writable
                    mount["recursiveReadOnly"] = "IfPossible"


def _with_labels(ours: dict[str, str], metadata: Mapping[str, Any], pod: Body) -> Body:
    """Return a template of a pod's spec: GM's labels override the user's; other metadata but annotations is dropped."""
    labels = {name: value for name, value in metadata.get("labels", {}).items() if name not in OURS} | ours
    annotations = metadata.get("annotations", {})
    described = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    labels[TEMPLATE] = object_names.digest([described, pod])
    return {"metadata": described, "spec": pod}


def _writable(worker: Body) -> list[Body]:
    """Mount a folder for temporary files into a container whose root is read-only; return its volume."""
    path = "/tmp"  # noqa: S108  # the pod's own
    if any(mount.get("mountPath", "").rstrip("/") == path for mount in worker["volumeMounts"]):
        return []
    worker["volumeMounts"].append({"name": "halimede-tmp", "mountPath": path})
    return [{"name": "halimede-tmp", "emptyDir": {}}]


def _image(service: Resource[Any], container: Mapping[str, Any], settings: PodSettings) -> str:
    """Return the worker's image: halimede's if none is named; in a neptune.io service that of the framework's name."""
    image: str = container.get("image") or settings.worker_image
    return settings.images.get(image, image) if object_names.is_translated(service) else image


def _locate_images(pod: Body, settings: PodSettings) -> None:
    """Write the registry before the names of halimede's images, also of sidecars and init containers."""
    for container in (*pod["containers"], *pod.get("initContainers", [])):
        if isinstance(container.get("image"), str):
            container["image"] = settings.with_registry(container["image"])


def _worker_environment(
    service: Resource[Any], placement: Placement, brought: Models, settings: PodSettings, files: NodeFiles
) -> WorkerEnvironment:
    """Return the variables that GM gives to a worker."""
    grace = placement.pod.termination_grace_period_seconds * GRACE_SHARE
    broker = (settings.edge_broker if placement.role == "edge" else "") or settings.broker
    models = {
        purpose: worker_environment.MountedModel(model, pod_model.url)
        for purpose, (model, pod_model) in brought.items()
    }
    environment = common(
        service,
        placement,
        models,
        broker=broker,
        state=STATE,
        grace_s=grace,
        fetch_allow=",".join(settings.fetch_allow),
        data=DATA + files.data if files.data else "",
        reference=DATA + files.reference if files.reference else "",
    )
    facts = dict(environment.facts)
    if placement.alone:
        facts["WORKER_NAME"] = placement.on(service.metadata.name, placement.pod.node_name)
    if settings.credentials:
        facts["HALIMEDE_CREDENTIALS"] = BROKER
    defaults = {"DATA_PATH_PREFIX": DATA, "HALIMEDE_HTTP": f"0.0.0.0:{settings.port}", **settings.env}
    if placement.role == "edge":
        defaults["LC_SERVER"] = broker
    if not isinstance(service.spec, JointInferenceServiceSpec):
        return WorkerEnvironment(facts, environment.defaults | defaults)
    if placement.role == "edge":
        meta = service.metadata
        defaults["BIG_MODEL_IP"] = f"{object_names.network_name(meta.name)}.{meta.namespace}"
        defaults["BIG_MODEL_PORT"] = str(BIG_MODEL_PORT)
    elif placement.program == "cloud":
        facts["BIG_MODEL_BIND_PORT"] = str(BIG_MODEL_PORT)
    return WorkerEnvironment(facts, environment.defaults | defaults)


def _merge_variables(environment: WorkerEnvironment, variables: list[Body]) -> Iterator[Body]:
    """Yield GM's variables first, so that the user's may refer to them; GM's values are escaped."""
    theirs = {variable.get("name") for variable in variables}
    facts = {"WORKER_NAME", "NODE_NAME", SESSION_KEY, *environment.facts}
    yield from (variable for variable in (WORKER_NAME, NODE_NAME) if variable["name"] not in environment.facts)
    for name, value in environment.facts.items():
        yield {"name": name, "value": literal(value)}
    for name, value in environment.defaults.items():
        if name not in theirs | facts:
            yield {"name": name, "value": literal(value)}
    yield from (variable for variable in variables if variable.get("name") not in facts)


def _session_key(service: Resource[Any], placement: Placement) -> Iterator[Body]:
    """Yield the variable with the key of MQTT sessions, for a worker with cameras; the last one, so that the user's
    variables cannot refer to it.

    A pod starts without the Secret as well: the service's status says why it is missing.
    """
    if worker_environment.needs_session_key(placement):
        source = {"name": object_names.session_secret_name(service), "key": SESSION_KEY, "optional": True}
        yield {"name": SESSION_KEY, "valueFrom": {"secretKeyRef": source}}


def _make_ours(container: Body, pod: Mapping[str, Any], program: Program, settings: PodSettings) -> None:
    """Complete a container of halimede's image. Without a command of its own it runs halimede's worker ``program``."""
    if settings.pull_policy:
        container.setdefault("imagePullPolicy", settings.pull_policy)
    # the last output has the reason of a failure
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    # a container's security context would override what the user has set for the whole pod
    whole = pod.get("securityContext") or {}
    ours = {name: value for name, value in CONFINED.items() if name not in whole}
    if whole.get("runAsUser") == 0 or (container.get("securityContext") or {}).get("runAsUser") == 0:
        ours.pop("runAsNonRoot", None)
    container["securityContext"] = {**copy.deepcopy(ours), **(container.get("securityContext") or {})}
    if container.get("command"):
        return
    args = container.get("args") or []
    container["args"] = args if args[:1] == [program] else [program, *args]
    variables = {variable.get("name") for variable in container.get("env") or []} | settings.env.keys()
    if "HALIMEDE_HTTP" not in variables:
        alive = {"httpGet": {"path": "/healthz", "port": settings.port}, "periodSeconds": 10, "timeoutSeconds": 5}
        container.setdefault("livenessProbe", {**alive, "initialDelaySeconds": 10, "failureThreshold": 6})
        ready = {"httpGet": {"path": "/readyz", "port": settings.port}, "periodSeconds": 5, "timeoutSeconds": 5}
        container.setdefault("readinessProbe", ready)
        if not pod.get("hostNetwork"):  # with the host's network it would be a port of the node, which is there once
            _name_port(container, settings)


def _name_port(container: Body, settings: PodSettings) -> None:
    """Name the port of the metrics, for tools that find ports by name, unless a port has its number or name."""
    ports = container.get("ports") or []
    if isinstance(ports, list) and all(
        isinstance(port, Mapping) and port.get("containerPort") != settings.port and port.get("name") != METRICS
        for port in ports
    ):
        container["ports"] = [*ports, {"name": METRICS, "containerPort": settings.port, "protocol": "TCP"}]


def _is_ours(container: Mapping[str, Any], settings: PodSettings) -> bool:
    """Whether a container has an image of halimede's."""
    image = container.get("image") or ""
    return image == settings.worker_image or OWN_IMAGE.fullmatch(image) is not None


def _state_size(placement: Placement) -> str:
    """Return the size limit of a worker's state as a quantity, with its hard samples: 2**20 bytes for each megabyte."""
    if placement.program in {"member", "joint"}:
        return JOINT_STATE_SIZE
    if placement.alone:
        return TRAINING_STATE_SIZE
    keep = placement.worker.keep_hard_samples if isinstance(placement.worker, EdgeWorkerSpec) else None
    return f"{int(STATE_SIZE.removesuffix('Mi')) + keep.max_megabytes}Mi" if keep else STATE_SIZE


def _volumes(placement: Placement, settings: PodSettings, files: NodeFiles = NO_FILES) -> tuple[list[Body], list[Body]]:
    """Return the pod's volumes and the worker's mounts, without those of its models."""
    volumes: list[Body] = [{"name": "halimede-state", "emptyDir": {"sizeLimit": _state_size(placement)}}]
    mounts: list[Body] = [{"name": "halimede-state", "mountPath": STATE}]
    if settings.credentials:
        secret = settings.edge_secret if placement.role == "edge" else settings.cloud_secret
        volumes.append({"name": "halimede-broker", "secret": {"secretName": secret}})
        mounts.append({"name": "halimede-broker", "mountPath": BROKER, "readOnly": True})
    if files.hard_samples:
        volumes.append({"name": "halimede-kept", "hostPath": {"path": files.hard_samples, "type": "DirectoryOrCreate"}})
        mounts.append({"name": "halimede-kept", "mountPath": f"{STATE}/{HARD_SAMPLES}"})
    for path, name, kind in (
        (placement.folder, "halimede-source", "Directory"),
        (files.data, "halimede-samples", "Directory" if placement.keeper else ""),
        (files.reference, "halimede-reference", ""),
    ):
        if path:
            volume, mount = mount_folder(path, name, kind)
            volumes.append(volume)
            mounts.append(mount)
    return volumes, mounts


def _once(items: Iterable[Body]) -> list[Body]:
    """Return volumes, mounts or named items, each path or name once: a model in the source's folder is mounted once."""
    unique: dict[str, Body] = {}
    for item in items:
        unique.setdefault(str(item.get("mountPath") or item.get("name")), item)
    return list(unique.values())


def _without_nulls(value: Any) -> Any:
    """Return a copy without nulls: they have no meaning here but mean removal in a patch."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value if item is not None] if isinstance(value, list) else value
