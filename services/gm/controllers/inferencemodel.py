"""InferenceModels: sent to the nodes that serve them if nodes run workers, else made into objects of the cluster.

A version that cannot be served stops no running server: nodes and Deployments keep the present one. The form of the
other group is translated here; nodes receive only one form.
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
    desired_servers,
    pod,
    runs_on_nodes,
    target,
    to_sedna,
)
from halimede.api.model_formats import KNOWN
from halimede.api.neptune import native
from halimede.errors import InvalidFieldError, hide_secrets
from halimede.messages import ModelInUse, ServedVersion, Status
from services.gm.cluster.port import Ref
from services.gm.controllers.base import Controller, Delivery, Keep, Observed, Send, forget, node_problems, register
from services.gm.controllers.model import remember_version
from services.gm.reference_index import ReferenceEntry, WorkerPlacement
from services.gm.service_status import Problem, Readiness, Share, conclude, service_status
from services.gm.workloads.deployments import Built, References, replicas
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import PodView, read_pods
from services.gm.workloads.serving_objects import VERSION, build, secret_names, service_port, service_type, unusable

NODES_FIX = f"without Kubernetes use one of {KNOWN}, or export it to onnx"
IMAGE_FIX = "an image needs Kubernetes: remove it, and list the model's versions in spec.manifest"
REPLICAS, REPLICAS_FIX = "spec.replicas", "at the edge one server runs: set 1, or deployToLayer: cloud"
NO_REPLICAS = Readiness("Stopped", "NoReplicas", "spec.replicas is 0: no server runs")
Objects = Mapping[Ref, Mapping[str, Any]]


@register(PLURAL)
class InferenceModelController(Controller):
    """The rules of InferenceModels."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in sedna.io form; its only role has no references, and stays on its present nodes."""
        resource = native(resource) if resource.kind.api_version == SEDNA else parse(to_sedna(resource))
        return ReferenceEntry(resource, _roles(resource, status))

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send it to the nodes that serve it; to none if the cluster runs pods."""
        if observed.as_pods or not desired_servers(desired.spec):
            yield from forget(desired, replace(observed, placed={}))
            return
        useless = any(_serving_problems(desired.spec))
        for node in observed.placed:
            yield Keep(node, desired.key, desired.metadata.uid) if useless else Send(node, desired)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return a Deployment, a Service, and an Ingress if one is specified."""
        if observed.pods is None:
            return None
        of = observed.pods
        built = build(desired, of.workers.secrets, of.settings)
        return built.with_backoffs(of.backoffs, of.workers.objects, desired_servers(desired.spec))

    def secret_names(self, desired: Resource[Any], *_: References | PodSettings) -> frozenset[str]:
        """Return the Secrets that its versions are downloaded with."""
        return secret_names(desired)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its servers; add their address and the version that they serve."""
        if built is None or observed.pods is None:
            return _with_address(desired, observed, *_by_nodes(desired, observed))
        return _with_address(desired, observed, *_by_pods(desired, observed, built))


def _roles(resource: Resource[InferenceModelSpec], status: Status | None = None) -> tuple[WorkerPlacement, ...]:
    spec = resource.spec
    present = frozenset(node.node for node in status.nodes) if status else frozenset[str]()
    # with no replicas, nothing is delivered to the node
    most, layer = max(1, desired_servers(spec)), LAYER_LABELS[spec.deploy_to_layer]
    return (WorkerPlacement(ROLE, pod(spec), (), "spec", most=most, layer=layer, present=present),)


def _by_nodes(desired: Resource[Any], observed: Observed) -> tuple[Status, str, ModelInUse]:
    """Return the status by the nodes' reports, the first address of a server, and the model that it serves."""
    shares = observed.shares
    missing = [*_serving_problems(desired.spec), *node_problems(_roles(desired), observed)]
    status = _sum_up(desired, observed, shares if desired_servers(desired.spec) else [], missing)
    for share in shares:
        for worker in share.reported.workers if share.reported and share.online else ():
            if worker.role == ROLE and worker.phase == "Running" and worker.url:
                return status, worker.url, worker.model or ModelInUse()
    return status, "", ModelInUse()


def _by_pods(desired: Resource[Any], observed: Observed, built: Built) -> tuple[Status, str, ModelInUse]:
    """Return the status by the cluster's pods, the address, and the model that is served there."""
    assert observed.pods is not None  # noqa: S101
    workers = observed.pods.workers
    shall = observed.pods.merge(built)
    objects = {**workers.objects, **shall}
    number = replicas(built, workers.objects)
    missing = [*observed.pods.troubles, *built.problems, *node_problems(_roles(desired), observed)]
    pods = read_pods(objects, workers.pods, observed.pod_facts)
    status = _sum_up(desired, observed, [], missing, pods=pods, number=number, held_back=built.held_back)
    if not number.get(ROLE):
        return status, "", ModelInUse()
    before = observed.status.serving_version if observed.status else ""
    done = is_rolled_out(objects, workers.pods, number[ROLE])
    using = ModelInUse(version=served_version(objects) if done else before or "")
    # an existing object has addresses in its status; a desired one has no status
    where = address(desired, {**shall, **workers.objects}, workers.pods)
    return status, where, using


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
    """Return the phase of a model that is served in another way than its spec has it; None: it is as specified."""
    error = _unmet(spec, observed)
    if error is not None:
        return Readiness("Degraded", "ReplicasNotSupported" if error.field == REPLICAS else "NodeMismatch", str(error))
    if observed.as_pods or not (unused := list(_unused_fields(spec))):
        return None
    return Readiness("Running", "AllWorkersRun", f"{message}; without Kubernetes not used: {', '.join(unused)}")


def _unmet(spec: InferenceModelSpec, observed: Observed) -> InvalidFieldError | None:
    """Return the first of the number and the nodes of the servers that is not as the spec has it."""
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
    """Yield the fields that a node which runs servers itself does not use."""
    if spec.service_type:
        yield "spec.serviceType"
    if spec.ingress:
        yield "spec.ingress"
    if any(resource != "memory" for resource in spec.resources.get("limits") or {}) or spec.resources.get("requests"):
        yield "spec.resources (except limits.memory)"
    if any(variable.value_from for variable in spec.env):
        yield "valueFrom in spec.env"


def _with_address(desired: Resource[Any], observed: Observed, status: Status, url: str, using: ModelInUse) -> Status:
    """Add address and version; remember a version that was served."""
    before = observed.status
    versions = before.versions if before else []
    name = using.version or using.digest[:12]
    if url and name and status.active:
        file = next((file for file in desired.spec.manifest if file.version == using.version), ModelFile())
        digest = using.digest or (file.sha256sum.lower() if SHA256.fullmatch(file.sha256sum) else "")
        url_of = hide_secrets(file.download_url)
        served = ServedVersion(version=name, url=url_of, digest=digest, since=observed.now)
        versions = remember_version(versions, served)
    if before and not url and status.active == 0 and desired_servers(desired.spec):
        url, name = before.url or "", before.serving_version or ""  # the server will return there with that version
    return msgspec.structs.replace(
        status,
        metrics=[],
        url=url[:256] or None,
        serving_version=name[:256] or None,
        versions=versions,
    )


def _serving_problems(spec: InferenceModelSpec) -> Iterator[Problem]:
    """Yield why nodes that run workers themselves cannot serve the model."""
    if target(spec) is None:
        yield Problem("ImageNotSupported", str(InvalidFieldError("spec.image", spec.image, IMAGE_FIX)))
    else:
        yield from unusable(spec, runs_on_nodes(spec), NODES_FIX)


def address(service: Resource[InferenceModelSpec], objects: Objects, pods: Iterable[Mapping[str, Any]]) -> str:
    """Return the best available URL: one from outside the cluster, else the name within the cluster."""
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
    """Return the version in a Deployment's pod template."""
    for ref, body in objects.items():
        if ref.kind == "Deployment":
            metadata = ((body.get("spec") or {}).get("template") or {}).get("metadata") or {}
            return str((metadata.get("annotations") or {}).get(VERSION, ""))
    return ""


def is_rolled_out(objects: Objects, pods: Iterable[Mapping[str, Any]], number: int) -> bool:
    """Whether ``number`` pods of the present template are ready, and none of another."""
    views: tuple[PodView, ...] = read_pods(objects, pods)
    up = [view for view in views if view.ready]
    return 0 < number <= sum(view.current for view in up) and all(view.current for view in up)


def _ingress_url(ingress: Ingress, body: Mapping[str, Any]) -> str:
    host = ingress.host or next(map(_host, _balancer_addresses(body)), "")
    return f"{'https' if ingress.tls_secret else 'http'}://{host}{ingress.path.rstrip('/')}" if host else ""


def _balancer_addresses(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the addresses that a load balancer has given to a Service or Ingress."""
    for endpoint in ((body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []:
        if endpoint.get("hostname") or endpoint.get("ip"):
            yield endpoint


def _host(at: Mapping[str, Any]) -> str:
    return str(at.get("hostname") or _with_brackets(str(at["ip"])))


def _on_a_node(network: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> str:
    """Return a URL of the node port; every node forwards it, and a node with a pod of the model surely exists."""
    ports = (network.get("spec") or {}).get("ports") or []
    port = next((port_spec.get("nodePort") for port_spec in ports if port_spec.get("name") == "http"), None)
    hosts = sorted(host for pod in pods if (host := (pod.get("status") or {}).get("hostIP")))
    return f"http://{_with_brackets(hosts[0])}:{port}" if port and hosts else ""


def _with_brackets(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
