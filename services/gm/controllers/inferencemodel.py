"""The controller of InferenceModels: models that a server offers over HTTP and gRPC.

If nodes run workers, GM sends the resource to the nodes that serve it; else GM makes Kubernetes objects of it. A
version that cannot be served stops no running server: nodes and Deployments keep the present one. Users may write the
resource in the group ai.kubeedge.io; nodes receive only that of sedna.io.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.base import SEDNA
from halimede.api.inferencemodel import (
    LAYER_LABELS,
    PLURAL,
    ROLE,
    SHA256,
    InferenceModelSpec,
    Ingress,
    ModelFile,
    can_run_on_nodes,
    desired_servers,
    pod,
    target,
    to_sedna,
)
from halimede.api.model_formats import FORMAT_NAMES
from halimede.api.neptune import native
from halimede.errors import InvalidFieldError, hide_secrets
from halimede.messages import ModelInUse, ServedVersion, Status
from services.gm.cluster.port import Ref
from services.gm.controllers.base import Controller, Keep, NodeAction, Observed, Send, forget, node_problems, register
from services.gm.controllers.model import remember_version
from services.gm.reference_index import ReferenceEntry, WorkerPlacement
from services.gm.service_status import Problem, Readiness, Share, conclude, service_status
from services.gm.workloads.deployments import Built, References, replicas
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import PodView, pod_views
from services.gm.workloads.serving_objects import VERSION, build, secret_names, service_port, service_type, unusable

#: what a user can do about a format that nodes cannot serve, and about an image
NODES_FIX = f"without Kubernetes use one of {FORMAT_NAMES}, or export it to onnx"
IMAGE_FIX = "an image needs Kubernetes: remove it, and list the model's versions in spec.manifest"
#: the field with the number of servers, and what a user can do about too many
REPLICAS, REPLICAS_FIX = "spec.replicas", "at the edge one server runs: set 1, or deployToLayer: cloud"
#: the phase of a model that no server shall serve
NO_REPLICAS = Readiness("Stopped", "NoReplicas", "spec.replicas is 0: no server runs")
#: Kubernetes objects by their names
Objects = Mapping[Ref, Mapping[str, Any]]


@register(PLURAL)
class InferenceModelController(Controller):
    """The ``Controller`` of InferenceModels. Their only worker has the role ``serve``."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in sedna.io form; its server needs no other resource, and stays on its present nodes.

        A resource that a user wrote in this form must not be marked as translated: ``native`` removes the mark.
        """
        resource = native(resource) if resource.kind.api_version == SEDNA else parse(to_sedna(resource))
        return ReferenceEntry(resource, _roles(resource, status))

    def node_actions(self, desired: Resource[Any], observed: Observed) -> Iterator[NodeAction]:
        """Send it to the nodes that serve it, unless the cluster runs pods or no server is desired.

        If its version cannot be served, nodes keep the one that they have.
        """
        if observed.as_pods or not desired_servers(desired.spec):
            yield from forget(desired, replace(observed, placed={}))
            return
        useless = any(_serving_problems(desired.spec))
        for node in observed.placed:
            yield Keep(node, desired.key, desired.metadata.uid) if useless else Send(node, desired)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return a Deployment, a Service, and an Ingress if the spec has one; None: nodes run the servers."""
        if observed.workload is None:
            return None
        workload = observed.workload
        built = build(desired, workload.workers.secrets, workload.settings)
        return built.with_backoffs(workload.backoffs, workload.workers.objects, desired_servers(desired.spec))

    def secret_names(self, desired: Resource[Any], *_: References | PodSettings) -> frozenset[str]:
        """Return the names of the Secrets that the download of its version needs."""
        return secret_names(desired)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its servers, by nodes' reports or pods; add their URL and the version that they serve."""
        if built is None or observed.workload is None:
            return _with_address(desired, observed, *_by_nodes(desired, observed))
        return _with_address(desired, observed, *_by_pods(desired, observed, built))


def _roles(resource: Resource[InferenceModelSpec], status: Status | None = None) -> tuple[WorkerPlacement, ...]:
    """Return its one worker: the server. ``status``: the last written one, with the present nodes."""
    spec = resource.spec
    present = frozenset(node.node for node in status.nodes) if status else frozenset[str]()
    # with no replicas, nothing is delivered to the node
    most, layer = max(1, desired_servers(spec)), LAYER_LABELS[spec.deploy_to_layer]
    return (WorkerPlacement(ROLE, pod(spec), (), "spec", most=most, layer=layer, present=present),)


def _by_nodes(desired: Resource[Any], observed: Observed) -> tuple[Status, str, ModelInUse]:
    """Return the status by the nodes' reports, the URL of the first server (empty: none runs), and its model."""
    shares = observed.shares
    missing = [*_serving_problems(desired.spec), *node_problems(_roles(desired), observed)]
    status = _sum_up(desired, observed, shares if desired_servers(desired.spec) else [], missing)
    for share in shares:
        for worker in share.reported.workers if share.reported and share.online else ():
            if worker.role == ROLE and worker.phase == "Running" and worker.url:
                return status, worker.url, worker.model or ModelInUse()
    return status, "", ModelInUse()


def _by_pods(desired: Resource[Any], observed: Observed, built: Built) -> tuple[Status, str, ModelInUse]:
    """Return the status by the cluster's pods, the URL (empty: no server is desired), and the model served there."""
    assert observed.workload is not None  # noqa: S101
    workers = observed.workload.workers
    shall = observed.workload.merge(built)
    objects = {**workers.objects, **shall}
    number = replicas(built, workers.objects)
    missing = [*observed.workload.troubles, *built.problems, *node_problems(_roles(desired), observed)]
    pods = pod_views(objects, workers.pods, observed.pod_facts)
    status = _sum_up(desired, observed, [], missing, pods=pods, number=number, held_back=built.held_back)
    if not number.get(ROLE):
        return status, "", ModelInUse()
    before = observed.status.serving_version if observed.status else ""
    done = is_rolled_out(objects, workers.pods, number[ROLE])
    using = ModelInUse(version=served_version(objects) if done else before or "")
    # an existing object has addresses in its status; a desired one has no status
    return status, address(desired, {**shall, **workers.objects}, workers.pods), using


def _sum_up(
    desired: Resource[Any],
    observed: Observed,
    shares: Sequence[Share],
    missing: Sequence[Problem],
    *,
    pods: Sequence[PodView] | None = None,
    number: Mapping[str, int] | None = None,
    held_back: Mapping[str, Problem] | None = None,
) -> Status:
    """Return the status of the servers, with the phases that only InferenceModels have.

    ``missing``, ``pods``, ``held_back``: as ``service_status`` takes them; ``number`` is its ``numbers``.
    """
    status = service_status(
        generation=desired.metadata.generation,
        shares=shares,
        former=(),
        missing=missing,
        previous=observed.status,
        now=observed.now,
        pods=pods,
        numbers=number,
        held_back=held_back,
    )
    verdict = None
    if not desired_servers(desired.spec) and not missing:
        verdict = NO_REPLICAS
    elif status.phase == "Running":
        verdict = _difference(desired.spec, observed, status.conditions[-1].message)
    if verdict is None:
        return status
    return conclude(status, verdict, observed.status, desired.metadata.generation, observed.now)


def _difference(spec: InferenceModelSpec, observed: Observed, message: str) -> Readiness | None:
    """Return the phase of a running model that is not served exactly as its spec has it; None: it is.

    ``message``: about its running workers.
    """
    error = _unmet(spec, observed)
    if error is not None:
        return Readiness("Degraded", "ReplicasNotSupported" if error.field == REPLICAS else "NodeMismatch", str(error))
    if observed.as_pods or not (unused := list(_unused_fields(spec))):
        return None
    return Readiness("Running", "AllWorkersRun", f"{message}; without Kubernetes not used: {', '.join(unused)}")


def _unmet(spec: InferenceModelSpec, observed: Observed) -> InvalidFieldError | None:
    """Return the first difference between the spec and the number or the nodes of the servers; None: there is none."""
    number, nodes, named = spec.replicas or 0, sorted(observed.placed), observed.nodes.get(spec.node_name)
    if number > desired_servers(spec):
        return InvalidFieldError(REPLICAS, number, REPLICAS_FIX)
    if named and not spec.node_selector.items() <= named.labels.items():
        fix = f"spec.nodeName is used, and node {named.name} has other labels: remove one of the two"
        return InvalidFieldError("spec.nodeSelector", spec.node_selector, fix)
    if observed.as_pods:
        return None
    if number > len(nodes):
        fix = f"each node runs one server: set {len(nodes)}, the number of matching nodes, or label more nodes"
        return InvalidFieldError(REPLICAS, number, fix)
    layer, layers = LAYER_LABELS[spec.deploy_to_layer], set(LAYER_LABELS.values())
    for name in nodes:
        labels = observed.nodes[name].labels if name in observed.nodes else {}
        if layer not in labels and not layers.isdisjoint(labels):
            fix = f"node {name} has another layer: change it, or spec.nodeName or spec.nodeSelector"
            return InvalidFieldError("spec.deployToLayer", spec.deploy_to_layer, fix)
    return None


def _unused_fields(spec: InferenceModelSpec) -> Iterator[str]:
    """Yield the fields of the spec that have no effect where nodes run the servers themselves."""
    if spec.service_type:
        yield "spec.serviceType"
    if spec.ingress:
        yield "spec.ingress"
    if any(resource != "memory" for resource in spec.resources.get("limits") or {}) or spec.resources.get("requests"):
        yield "spec.resources (except limits.memory)"
    if any(variable.value_from for variable in spec.env):
        yield "valueFrom in spec.env"


def _with_address(desired: Resource[Any], observed: Observed, status: Status, url: str, using: ModelInUse) -> Status:
    """Return a status with the servers' URL and version, and with that version in the list of served ones.

    ``url``: empty if no server runs. ``using``: the model that the servers have. While none of the desired servers
    runs, the last URL and version stay.
    """
    before = observed.status
    versions = before.versions if before else []
    name = using.version or using.digest[:12]
    if url and name and status.active:
        file = next((file for file in desired.spec.manifest if file.version == using.version), ModelFile())
        digest = using.digest or (file.sha256sum.lower() if SHA256.fullmatch(file.sha256sum) else "")
        served = ServedVersion(version=name, url=hide_secrets(file.download_url), digest=digest, since=observed.now)
        versions = remember_version(versions, served)
    if before and not url and status.active == 0 and desired_servers(desired.spec):
        url, name = before.url or "", before.serving_version or ""  # the server will return there with that version
    return msgspec.structs.replace(
        status, metrics=[], url=url[:256] or None, serving_version=name[:256] or None, versions=versions
    )


def _serving_problems(spec: InferenceModelSpec) -> Iterator[Problem]:
    """Yield why nodes cannot serve the model themselves; nothing: they can."""
    if target(spec) is None:
        yield Problem("ImageNotSupported", str(InvalidFieldError("spec.image", spec.image, IMAGE_FIX)))
    else:
        yield from unusable(spec, can_run_on_nodes(spec), NODES_FIX)


def address(service: Resource[InferenceModelSpec], objects: Objects, pods: Iterable[Mapping[str, Any]]) -> str:
    """Return the URL of a served model: one from outside the cluster if there is one, else the one within it.

    ``objects``: the service's existing objects. ``pods``: its pods, whose nodes have the port of a NodePort.
    """
    spec, meta = service.spec, service.metadata
    by_kind = {ref.kind: body for ref, body in objects.items() if ref.name == meta.name}
    network = by_kind.get("Service") or {}
    outside = ""
    if spec.ingress and "Ingress" in by_kind:
        outside = _ingress_url(spec.ingress, by_kind["Ingress"])
    elif service_type(spec) == "LoadBalancer":
        outside = next((f"http://{_host(at)}:{service_port(spec)}" for at in _balancer_addresses(network)), "")
    elif service_type(spec) == "NodePort":
        outside = _on_a_node(network, pods)
    return outside or f"http://{meta.name}.{meta.namespace}.svc:{service_port(spec)}"


def served_version(objects: Objects) -> str:
    """Return the model's version in the pod template of the Deployment among objects; empty: there is none."""
    for ref, body in objects.items():
        if ref.kind == "Deployment":
            metadata = ((body.get("spec") or {}).get("template") or {}).get("metadata") or {}
            return str((metadata.get("annotations") or {}).get(VERSION, ""))
    return ""


def is_rolled_out(objects: Objects, pods: Iterable[Mapping[str, Any]], number: int) -> bool:
    """Whether ``number`` pods of the present template are ready, and none of another."""
    views: tuple[PodView, ...] = pod_views(objects, pods)
    up = [view for view in views if view.ready]
    return 0 < number <= sum(view.current for view in up) and all(view.current for view in up)


def _ingress_url(ingress: Ingress, body: Mapping[str, Any]) -> str:
    """Return the URL of an Ingress; empty: its host is not known yet."""
    host = ingress.host or next(map(_host, _balancer_addresses(body)), "")
    return f"{'https' if ingress.tls_secret else 'http'}://{host}{ingress.path.rstrip('/')}" if host else ""


def _balancer_addresses(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the addresses that a load balancer has given to a Service or Ingress."""
    for endpoint in ((body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []:
        if endpoint.get("hostname") or endpoint.get("ip"):
            yield endpoint


def _host(at: Mapping[str, Any]) -> str:
    """Return the host name or IP address of a load balancer, for a URL."""
    return str(at.get("hostname") or _with_brackets(str(at["ip"])))


def _on_a_node(network: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> str:
    """Return a URL of the Service's node port on a node with a pod; empty: it is not known. Every node forwards it."""
    ports = (network.get("spec") or {}).get("ports") or []
    port = next((port_spec.get("nodePort") for port_spec in ports if port_spec.get("name") == "http"), None)
    hosts = sorted(host for pod in pods if (host := (pod.get("status") or {}).get("hostIP")))
    return f"http://{_with_brackets(hosts[0])}:{port}" if port and hosts else ""


def _with_brackets(ip: str) -> str:
    """Return an IP address for a URL: IPv6 in brackets."""
    return f"[{ip}]" if ":" in ip else ip
