"""The objects of an InferenceModel on Kubernetes (``build``): a Deployment, a Service, and maybe an Ingress.

At the edge it is one pod on its node, also with a Deployment: a lost pod is replaced, and a new version runs next to
the old one until it is ready. That drops no request: no pod is removed before another is ready, and a pod that is
ending still answers until routers have noticed.

An init container brings the model; the operator's table (``PodSettings.serving``) has the server that loads it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from halimede.api import Resource
from halimede.api.inferencemodel import (
    InferenceModelSpec,
    Ingress,
    ServedVersionSpec,
    desired_servers,
    is_ours,
    model_spec,
    pod,
    target,
)
from halimede.api.model import ModelSpec
from halimede.api.processing import scripts_of
from halimede.errors import InvalidFieldError
from halimede.models.desired_state import Desired, DesiredModel
from services.gm.service_status import Problem
from services.gm.workloads import object_names
from services.gm.workloads.deployments import Built, check_service_name, new_object, with_digest
from services.gm.workloads.model_init_container import (
    CONFINED,
    NODE_NAME,
    PodModel,
    host_file,
    literal,
    needs_secret,
    pod_model_of,
)
from services.gm.workloads.node_placement import bind_pod
from services.gm.workloads.object_names import TEMPLATE, Body, SecretsMetadata
from services.gm.workloads.pod_settings import OUR_SERVER, PLACEHOLDER, PodSettings
from services.gm.workloads.template_policy import check_host_path, check_image

#: default ports of a server: HTTP, and gRPC
PORT, GRPC_PORT = 8080, 8081
#: the lowest port on which containers may listen without a privilege
FIRST_FREE_PORT = 1024
#: annotations of pods: their model version, and the desired state (models to serve, JSON) for halimede's own server
VERSION, DESIRED_STATE = "halimede.io/model-version", "halimede.io/desired"
#: folder and name of the file with the desired state
FOLDER, FILE = "/etc/halimede/serve", "model.json"
#: seconds that a pod which is ending still answers, and its grace period, which begins at the same time
LINGER_S, GRACE_S = 5, 35
LINGER: Body = {"preStop": {"exec": {"command": ["sleep", str(LINGER_S)]}}}
#: times of the liveness probe, and of the readiness probe
PATIENT: Body = {"periodSeconds": 10, "timeoutSeconds": 5, "initialDelaySeconds": 10, "failureThreshold": 6}
EAGER: Body = {"periodSeconds": 2, "timeoutSeconds": 5}
#: name of the server's container
SERVER = "server"
#: what a user can do about a format without a server, and about a script
FRAMEWORK_FIX = "export it to onnx, set spec.image, or ask the operator to configure a server for it (pods.serving)"
SCRIPT_FIX = "on Kubernetes only halimede's server calls scripts: export the model to onnx, or remove the script"


def build(service: Resource[InferenceModelSpec], secrets: SecretsMetadata, settings: PodSettings) -> Built:
    """Return the objects of an InferenceModel in sedna.io form; with problems none, and the existing ones stay.

    ``secrets``: metadata of the Secrets that ``secret_names`` returns, by name; None: it does not exist.
    """
    problems = tuple(_problems(service, secrets, settings))
    if problems:
        return Built(unchanged=frozenset({"serve"}), problems=problems)
    name, spec = service.metadata.name, service.spec
    deployment: Body = {
        "replicas": desired_servers(spec),
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": object_names.selector(service, "serve")},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": _template(service, secrets, settings),
    }
    objects = [new_object(service, "serve", "Deployment", name, deployment), _network(service)]
    if spec.ingress:
        objects.append(_ingress(service, spec.ingress))
    return Built(tuple(map(with_digest, objects)))


def secret_names(service: Resource[InferenceModelSpec]) -> frozenset[str]:
    """Return the names of the Secrets of its namespace that ``build`` needs."""
    return frozenset(_secrets(service))


def service_type(spec: InferenceModelSpec) -> str:
    """Return the type of its Service; by default ``ClusterIP``, which is reached only within the cluster."""
    return spec.service_type or "ClusterIP"


def service_port(spec: InferenceModelSpec) -> int:
    """Return the port of its Service for HTTP."""
    return spec.serving_port or PORT


def container_port(spec: InferenceModelSpec) -> int:
    """Return the port on which the container listens for HTTP: that of the Service.

    It is 8080 if that port needs a privilege and the image is not the user's own.
    """
    return service_port(spec) if spec.image or service_port(spec) >= FIRST_FREE_PORT else PORT


# --- objects --------------------------------------------------------------------------------------------------


def _template(service: Resource[InferenceModelSpec], secrets: SecretsMetadata, settings: PodSettings) -> Body:
    """Return the template of its pods, with its digest as a label."""
    spec, version, edge = service.spec, target(service.spec), service.spec.deploy_to_layer == "edge"
    parts = _from_image(spec) if version is None else _from_files(spec, version, secrets, settings)
    container: Body = parts.container
    container["image"] = settings.with_registry(container["image"])
    container["env"] = [NODE_NAME, *container.get("env", []), *msgspec.to_builtins(spec.env)]
    if spec.resources:
        container["resources"] = spec.resources
    pod_spec: Body = {
        "containers": [container],
        "initContainers": list(parts.init),
        "volumes": list(parts.volumes),
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
        # in the cloud the scheduler chooses unless the spec selects nodes
        "nodeSelector": pod(spec).node_selector if spec.node_selector or edge else {},
    }
    bind_pod(pod_spec, spec.node_name, edge=edge)
    pod_spec = {name: value for name, value in pod_spec.items() if value not in ([], {})}
    labels = object_names.labels(service, "serve")
    described: Body = {"labels": labels, "annotations": parts.annotations}
    labels[TEMPLATE] = object_names.digest([described, pod_spec])
    return {"metadata": described, "spec": pod_spec}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a pod, as Kubernetes has them: the server's container, annotations, init containers and volumes."""

    container: Body
    annotations: dict[str, str]
    init: tuple[Body, ...] = ()
    volumes: tuple[Body, ...] = ()


def _from_image(spec: InferenceModelSpec) -> _Parts:
    """Return the parts for the user's own image, which contains the model."""
    image = spec.image or ""
    container: Body = {
        "name": SERVER,
        "image": image,
        "ports": [{"name": "http", "containerPort": container_port(spec)}],
    }
    if spec.serving_port:
        opened = {"tcpSocket": {"port": container_port(spec)}}
        container |= {"livenessProbe": {**opened, **PATIENT}, "readinessProbe": {**opened, **EAGER}}
    container["lifecycle"] = LINGER
    return _Parts(container, {VERSION: image[-256:]})


def _from_files(
    spec: InferenceModelSpec, version: ServedVersionSpec, secrets: SecretsMetadata, settings: PodSettings
) -> _Parts:
    """Return the parts for a version's files and the server of its format."""
    server, described = settings.server(spec.framework_type), model_spec(spec, version)
    assert server is not None  # noqa: S101  # checked by _problems
    pod_model = pod_model_of(described, {}, secrets.get(needs_secret(described)), settings, unpack=True)
    put = {
        "{name}": spec.model_name, "{version}": version.version, "{model}": pod_model.url,
        "{port}": str(container_port(spec)), "{grpcPort}": str(GRPC_PORT), "{file}": f"{FOLDER}/{FILE}",
    }  # fmt: skip
    mount = {"name": "halimede-wish", "mountPath": FOLDER, "readOnly": True}
    container: Body = {
        "name": SERVER,
        "image": server.image,
        "ports": [
            {"name": "http", "containerPort": container_port(spec)},
            {"name": "grpc", "containerPort": GRPC_PORT},
        ],
        "volumeMounts": [*pod_model.mounts, mount],
        "livenessProbe": {**_probe(_fill(server.live, put), spec), **PATIENT},
        "readinessProbe": {**_probe(_fill(server.ready, put), spec), **EAGER},
        "lifecycle": LINGER,
        # the last output has the reason of a failure
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if server.command:
        container["command"] = [literal(_fill(part, put)) for part in server.command]
    if server.args:
        container["args"] = [literal(_fill(part, put)) for part in server.args]
    if settings.pull_policy:
        container["imagePullPolicy"] = settings.pull_policy
    volumes: list[Body] = [*pod_model.volumes, _desired_volume()]
    if server.command == OUR_SERVER.command:  # its needs are known
        container["securityContext"] = dict(CONFINED)
        container["volumeMounts"].append({"name": "halimede-tmp", "mountPath": "/tmp"})  # noqa: S108  # the pod's own
        volumes.append({"name": "halimede-tmp", "emptyDir": {}})
    annotations = {VERSION: version.version, DESIRED_STATE: _desired_state(spec, version, described, pod_model)}
    return _Parts(container, annotations, pod_model.init, tuple(volumes))


def _desired_state(
    spec: InferenceModelSpec, version: ServedVersionSpec, described: ModelSpec, pod_model: PodModel
) -> str:
    """Return the desired state (JSON) for halimede's own server: its only model, which answers all requests.

    ``described``: the spec of the version as a Model. ``pod_model``: what the pod needs for it.
    """
    plain = msgspec.to_builtins(msgspec.structs.replace(described, url="/", credential_name=""))
    model = DesiredModel(
        name=spec.model_name, path=pod_model.url, version=version.version, digest=described.sha256, spec=plain
    )
    return msgspec.json.encode(Desired(models=[model])).decode()


def _desired_volume() -> Body:
    """Return a volume that has the desired state, an annotation of the pod, as a file."""
    field = {"path": FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{DESIRED_STATE}']"}}
    return {"name": "halimede-wish", "downwardAPI": {"items": [field]}}


def _probe(path: str, spec: InferenceModelSpec) -> Body:
    """Return a probe of an HTTP path; of the port if the path is empty."""
    port = container_port(spec)
    return {"httpGet": {"path": path, "port": port}} if path else {"tcpSocket": {"port": port}}


def _fill(text: str, put: Mapping[str, str]) -> str:
    """Replace placeholders such as ``{port}`` by the values in ``put``, in one pass: values are not searched."""
    return PLACEHOLDER.sub(lambda match: put.get(match[0], match[0]), text)


def _network(service: Resource[InferenceModelSpec]) -> Body:
    """Return the Service, with a port for HTTP and one for gRPC unless the image is the user's own."""
    spec = service.spec
    ports = [{"name": "http", "port": service_port(spec), "targetPort": container_port(spec), "protocol": "TCP"}]
    if not spec.image and service_port(spec) != GRPC_PORT:
        ports.append({"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP"})
    network_spec = {"type": service_type(spec), "selector": object_names.selector(service, "serve"), "ports": ports}
    return new_object(service, "serve", "Service", service.metadata.name, network_spec)


def _ingress(service: Resource[InferenceModelSpec], ingress: Ingress) -> Body:
    """Return the Ingress, which leads to the Service."""
    backend = {"service": {"name": service.metadata.name, "port": {"name": "http"}}}
    paths = {"paths": [{"path": ingress.path, "pathType": "Prefix", "backend": backend}]}
    rule: Body = {**({"host": ingress.host} if ingress.host else {}), "http": paths}
    spec: Body = {"rules": [rule]}
    if ingress.class_name:
        spec["ingressClassName"] = ingress.class_name
    if ingress.tls_secret:
        spec["tls"] = [{"secretName": ingress.tls_secret, **({"hosts": [ingress.host]} if ingress.host else {})}]
    return new_object(service, "serve", "Ingress", service.metadata.name, spec)


# --- what is in the way -----------------------------------------------------------------------------------------


def _problems(
    service: Resource[InferenceModelSpec], secrets: SecretsMetadata, settings: PodSettings
) -> Iterator[Problem]:
    """Yield what prevents new objects."""
    spec = service.spec
    if problem := check_service_name(service.metadata.name):
        yield problem
    if spec.image:
        yield from check_image("spec.image", spec.image, settings, located=True)
    elif version := target(spec):
        yield from unusable(spec, settings.server(spec.framework_type) is not None)
        if not is_ours(spec) and (script := next(scripts_of(spec.preprocess, spec.postprocess), None)):
            text = str(InvalidFieldError(script[0], script[1].file, SCRIPT_FIX))
            yield Problem("FrameworkNotSupported", text)
        if path := host_file(version.url):
            folder = posixpath.dirname(posixpath.normpath(path))  # the whole folder is mounted
            yield from check_host_path(f"spec.manifest: version {version.version}", folder, settings)
    yield from _exposure_problems(spec, settings)
    for name in _secrets(service):
        if secrets.get(name) is None:
            text = f"spec.credentialName: there is no Secret {service.metadata.namespace}/{name}: create it"
            yield Problem("SecretNotFound", text)


def _exposure_problems(spec: InferenceModelSpec, settings: PodSettings) -> Iterator[Problem]:
    """Yield problems with access from outside that the operator forbids: users who apply models may not expose them."""
    ask = "in GM's settings for pods"
    if spec.service_type and spec.service_type not in settings.service_types:
        fix = f"use one of {', '.join(settings.service_types)} (serviceTypes {ask})"
        yield Problem("ExposureNotAllowed", str(InvalidFieldError("spec.serviceType", spec.service_type, fix)))
    if spec.ingress and settings.ingress_hosts and not _is_allowed(spec.ingress.host, settings.ingress_hosts):
        fix = f"use one of {', '.join(settings.ingress_hosts)} (ingressHosts {ask})"
        yield Problem("ExposureNotAllowed", str(InvalidFieldError("spec.ingress.host", spec.ingress.host, fix)))


def _is_allowed(host: str, hosts: tuple[str, ...]) -> bool:
    """Whether a host name is one of ``hosts``, or below one with ``*.``."""
    return any(host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:])) for pattern in hosts)


def unusable(spec: InferenceModelSpec, supported: bool, fix: str = FRAMEWORK_FIX) -> Iterator[Problem]:  # noqa: FBT001
    """Yield why a model's files cannot be served; nothing: they can.

    ``supported``: whether a server for its format exists. ``fix``: what the user can do if not.
    """
    version = target(spec)
    if not supported:
        yield Problem("FrameworkNotSupported", str(InvalidFieldError("spec.frameworkType", spec.framework_type, fix)))
    if version and not version.is_checksum_valid:
        field = f"spec.manifest: version {version.version}: sha256sum"
        yield Problem("InvalidDigest", str(InvalidFieldError(field, version.sha256, "write 64 hexadecimal digits")))


def _secrets(service: Resource[InferenceModelSpec]) -> Iterator[str]:
    """Yield the name of the Secret that the download of the version needs, if it needs one."""
    version = target(service.spec)
    if version and (name := needs_secret(model_spec(service.spec, version))):
        yield name
