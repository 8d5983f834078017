"""The URL of an InferenceModel, from its Service and Ingress: the external one, if it is exposed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from halimede.api import Resource
from halimede.api.inferencemodel import InferenceModelSpec, Ingress
from services.gm.cluster.port import Ref
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import PodView, read_pods
from services.gm.workloads.serving_objects import VERSION, service_port, service_type

Objects = Mapping[Ref, Mapping[str, Any]]


def address(
    service: Resource[InferenceModelSpec],
    objects: Objects,
    pods: Iterable[Mapping[str, Any]],
    settings: PodSettings,
) -> str:
    """Return the best URL that there is now; the name within the cluster where nothing leads there from outside yet."""
    spec, meta = service.spec, service.metadata
    found = {ref.kind: body for ref, body in objects.items() if ref.name == meta.name}
    network = found.get("Service") or {}
    outside = ""
    if spec.ingress and "Ingress" in found:
        outside = _through(spec.ingress, found["Ingress"])
    elif service_type(spec, settings) == "LoadBalancer":
        outside = next((f"http://{_host(at)}:{service_port(spec)}" for at in _balanced(network)), "")
    elif service_type(spec, settings) == "NodePort":
        outside = _on_a_node(network, pods)
    return outside or f"http://{meta.name}.{meta.namespace}.svc:{service_port(spec)}"


def served_version(objects: Objects) -> str:
    """Return the version that a Deployment makes pods for."""
    for ref, body in objects.items():
        if ref.kind == "Deployment":
            metadata = ((body.get("spec") or {}).get("template") or {}).get("metadata") or {}
            return str((metadata.get("annotations") or {}).get(VERSION, ""))
    return ""


def rolled_out(objects: Objects, pods: Iterable[Mapping[str, Any]], number: int) -> bool:
    """Whether so many pods of the present template answer, and none of another."""
    views: tuple[PodView, ...] = read_pods(objects, pods)
    up = [view for view in views if view.ready]
    return 0 < number <= sum(view.current for view in up) and all(view.current for view in up)


def _through(given: Ingress, body: Mapping[str, Any]) -> str:
    host = given.host or next(map(_host, _balanced(body)), "")
    return f"{'https' if given.tls_secret else 'http'}://{host}{given.path.rstrip('/')}" if host else ""


def _balanced(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the addresses that somebody has given to a Service or Ingress."""
    for each in ((body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []:
        if each.get("hostname") or each.get("ip"):
            yield each


def _host(at: Mapping[str, Any]) -> str:
    return str(at.get("hostname") or _bracketed(str(at["ip"])))


def _on_a_node(network: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> str:
    """Every node passes on what comes to the port; one that has a pod of it is known to be there."""
    ports = (network.get("spec") or {}).get("ports") or []
    port = next((each.get("nodePort") for each in ports if each.get("name") == "http"), None)
    hosts = sorted(host for pod in pods if (host := (pod.get("status") or {}).get("hostIP")))
    return f"http://{_bracketed(hosts[0])}:{port}" if port and hosts else ""


def _bracketed(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
