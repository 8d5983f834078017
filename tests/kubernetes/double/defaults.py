"""What the API server fills in by itself, so that what comes back is never quite what was sent."""

from __future__ import annotations

import base64
import itertools
from typing import Any

from tests.kubernetes.double.errors import invalid_object, required
from tests.kubernetes.double.kinds import CRD, Kind
from tests.kubernetes.double.poddefaults import pod_alone, pod_spec

Body = dict[str, Any]
_addresses = itertools.count(10)
_EVENT: Body = {"source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": None,
                "reportingComponent": "", "reportingInstance": ""}  # fmt: skip
_ROLLING = {"maxUnavailable": "25%", "maxSurge": "25%"}


def fill(kind: Kind, body: Body) -> None:
    """Fill in the defaults of a built-in kind (in place), on every write."""
    spec = body.get("spec")
    if kind.plural == "events" and not kind.custom:
        for name, value in _EVENT.items():
            body.setdefault(name, value)
        return
    if kind.plural == "secrets":
        body.setdefault("type", "Opaque")
        _secret(body)
    if not isinstance(spec, dict):
        return
    match kind.plural:
        case "pods":
            pod_spec(spec)
            pod_alone(spec)
        case "deployments":
            _deployment(spec)
        case "daemonsets":
            _daemon_set(spec)
        case "services":
            _service(spec)
        case "horizontalpodautoscalers":
            _autoscaler(spec)


def _secret(body: Body) -> None:
    plain = body.pop("stringData", None) or {}
    if plain:
        data = {name: base64.b64encode(text.encode()).decode() for name, text in plain.items()}
        body["data"] = {**body.get("data", {}), **data}


def _template(spec: Body) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {}).setdefault("creationTimestamp", None)
    pod_spec(template.setdefault("spec", {}))


def _deployment(spec: Body) -> None:
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy["rollingUpdate"] = {**_ROLLING, **strategy.get("rollingUpdate", {})}
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    _template(spec)


def _daemon_set(spec: Body) -> None:
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": 1, "maxSurge": 0, **strategy.get("rollingUpdate", {})}
    _template(spec)


def _service(spec: Body) -> None:
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _autoscaler(spec: Body) -> None:
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if (behavior := spec.get("behavior")) is None:
        return
    pods, percent = ({"type": kind, "value": n, "periodSeconds": 15} for kind, n in (("Pods", 4), ("Percent", 100)))
    up = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [pods, percent]}
    behavior["scaleUp"] = {**up, **(behavior.get("scaleUp") or {})}
    behavior["scaleDown"] = {"selectPolicy": "Max", "policies": [percent], **(behavior.get("scaleDown") or {})}


def begin(kind: Kind, body: Body) -> None:
    """Set what a new object starts with (in place): its first status, a service's address."""
    if kind.custom:
        if kind.status:
            body.pop("status", None)
        return
    match kind.plural:
        case "pods":
            body["status"] = {"phase": "Pending"}
        case "namespaces":
            body["spec"] = {"finalizers": ["kubernetes"]}
            body["status"] = {"phase": "Active"}
            labels = body["metadata"].setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = body["metadata"].get("name", "")
        case "services":
            body["status"] = {"loadBalancer": {}}
            spec = body.setdefault("spec", {})
            if spec.get("type") != "ExternalName":
                address = next(_addresses)
                spec.setdefault("clusterIP", f"10.96.{address // 250 % 250}.{address % 250 + 1}")
                spec["clusterIPs"] = [spec["clusterIP"]]
            give_node_ports(spec, {})
        case "nodes":
            taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
            taints = body.setdefault("spec", {}).setdefault("taints", [])
            if taint not in taints:
                taints.append(taint)
            body.setdefault("status", {})
        case _ if kind.status and kind is not CRD:
            body["status"] = {}


def give_node_ports(spec: Body, old: Body) -> None:
    """Give ports of an exposed service a port of the nodes each: the one that it had, else a free one."""
    exposed = spec.get("type") in {"NodePort", "LoadBalancer"}
    had = {port.get("name", ""): port.get("nodePort") for port in old.get("ports") or []}
    for port in spec.get("ports") or []:
        if not exposed:
            if old:
                port.pop("nodePort", None)
        elif not port.get("nodePort"):
            port["nodePort"] = had.get(port.get("name", "")) or 30000 + next(_addresses) % 2768


def carry_over(kind: Kind, old: Body, new: Body) -> None:
    """Keep what a replacement may leave out (in place): a service's address, a namespace's finalizers."""
    if kind.plural == "services" and not kind.custom:
        if not new.get("spec"):
            raise invalid_object(kind, new["metadata"]["name"], [required("spec.ports")])
        for field in ("clusterIP", "clusterIPs"):
            if not new["spec"].get(field) and field in old["spec"]:
                new["spec"][field] = old["spec"][field]
        give_node_ports(new["spec"], old["spec"])
    elif kind.plural == "namespaces" and not kind.custom:
        new["spec"] = old.get("spec", {})
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = old["metadata"]["name"]
