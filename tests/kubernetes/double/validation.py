"""What the API server refuses although its schema allows it, as far as our own objects could get it wrong."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.double import names
from tests.kubernetes.double.builtin import required_causes
from tests.kubernetes.double.errors import Cause, duplicate, forbidden, invalid, required, unsupported
from tests.kubernetes.double.kinds import CRD, Kind
from tests.kubernetes.double.podvalidation import pod_causes, pod_changes

Body = dict[str, Any]
_BY_PATH = {"clusterroles", "clusterrolebindings", "roles", "rolebindings"}


def causes_of(kind: Kind, body: Body, old: Body | None, *, status_only: bool) -> list[Cause]:
    if status_only:
        return kind.schema.status_causes(body) if kind.schema else []
    meta = body["metadata"]
    causes = _name(kind, meta) + names.metadata_causes(meta)
    if kind.schema:
        unchanged = old is not None and {**body, "metadata": 0} == {**old, "metadata": 0}
        return causes + ([] if unchanged else kind.schema.causes(body))
    if old is not None and body.get("spec") == old.get("spec"):
        return causes
    causes += required_causes(kind, body)
    check = _CHECKS.get(kind.storage)
    if check is not None and not any(cause.reason == "FieldValueRequired" for cause in causes):
        causes += check(body)
    return causes


def _name(kind: Kind, meta: Body) -> list[Cause]:
    name = meta.get("name", "")
    if not name:
        return [required("metadata.name", "name or generateName is required")]
    if kind.plural in _BY_PATH:
        problem = names.segment_problem(name)
    elif kind.storage == ("", "services"):
        problem = names.service_problem(name)
    elif kind.storage == ("", "namespaces"):
        problem = names.label_problem(name)
    else:
        problem = names.subdomain_problem(name)
    return [invalid("metadata.name", name, problem)] if problem else []


def _workload(body: Body) -> list[Cause]:
    spec = body["spec"]
    causes = selector_causes(spec.get("selector") or {}, "spec.selector")
    template = spec.get("template") or {}
    meta = template.get("metadata") or {}
    labels = meta.get("labels") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        said = "`selector` does not match template `labels`"
        causes.append(invalid("spec.template.metadata.labels", _go_map(labels), said))
    causes += names.metadata_causes(meta, "spec.template")
    causes += pod_causes(template.get("spec") or {}, "spec.template.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy != "Always":
        causes.append(unsupported("spec.template.spec.restartPolicy", policy, ["Always"]))
    if spec.get("replicas", 0) < 0:
        causes.append(invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    return causes


def selector_causes(selector: Body, field: str) -> list[Cause]:
    """Check a label selector that must not be empty."""
    labels = selector.get("matchLabels") or {}
    if not labels and not selector.get("matchExpressions"):
        return [invalid(field, "{}", "empty selector is invalid for deployment")]
    return names.label_causes(labels, f"{field}.matchLabels")


def _go_map(labels: Body) -> str:
    return "map[string]string{" + ", ".join(f'"{key}":"{value}"' for key, value in sorted(labels.items())) + "}"


def _service(body: Body) -> list[Cause]:
    spec = body.get("spec") or {}
    causes = names.label_causes(spec.get("selector"), "spec.selector")
    types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]
    if spec.get("type") not in types:
        causes.append(unsupported("spec.type", spec.get("type"), types))
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        causes.append(required("spec.ports"))
    seen: set[Any] = set()
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        if not 1 <= port["port"] <= 65535:
            causes.append(invalid(f"{at}.port", port["port"], "must be between 1 and 65535, inclusive"))
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            causes.append(required(f"{at}.name"))
        if name and (problem := names.label_problem(name)):
            causes.append(invalid(f"{at}.name", name, problem))
        if name and name in seen:
            causes.append(duplicate(f"{at}.name", name))
        seen.add(name)
        if isinstance(port.get("targetPort"), str) and len(port["targetPort"]) > 15:
            causes.append(invalid(f"{at}.targetPort", port["targetPort"], "must be no more than 15 characters"))
    return causes


def _autoscaler(body: Body) -> list[Cause]:
    spec = body["spec"]
    causes: list[Cause] = []
    if spec["maxReplicas"] < 1:
        causes.append(invalid("spec.maxReplicas", spec["maxReplicas"], "must be greater than 0"))
    if spec.get("minReplicas", 1) < 1:
        causes.append(invalid("spec.minReplicas", spec["minReplicas"], "must be greater than or equal to 1"))
    if spec["maxReplicas"] < spec.get("minReplicas", 1):
        said = "must be greater than or equal to `minReplicas`"
        causes.append(invalid("spec.maxReplicas", spec["maxReplicas"], said))
    for index, metric in enumerate(spec.get("metrics") or []):
        source = metric.get("type", "")
        field = source[:1].lower() + source[1:]
        if field not in metric:
            said = "must populate information for the given metric source"
            causes.append(required(f"spec.metrics[{index}].{field}", said))
    return causes


def _lease(body: Body) -> list[Cause]:
    spec = body.get("spec") or {}
    causes: list[Cause] = []
    if "leaseDurationSeconds" in spec and spec["leaseDurationSeconds"] <= 0:
        causes.append(invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        causes.append(invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"))
    return causes


def _event(body: Body) -> list[Cause]:
    about = body.get("involvedObject") or {}
    where = about.get("namespace", "")
    if where != body["metadata"]["namespace"] and (where or body["metadata"]["namespace"] != "default"):
        return [invalid("involvedObject.namespace", where, "does not match event.namespace")]
    if body.get("eventTime"):
        return [forbidden("eventTime", "series of events are for the real server alone")]
    return []


def _definition(body: Body) -> list[Cause]:
    spec, name = body["spec"], body["metadata"]["name"]
    causes = []
    if name != f"{spec['names'].get('plural')}.{spec.get('group')}":
        causes.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    for index, version in enumerate(spec["versions"]):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            causes.append(required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required"))
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        causes.append(invalid("spec.versions", "", "must have exactly one version marked as storage version"))
    return causes


_CHECKS = {
    ("apps", "deployments"): _workload,
    ("apps", "daemonsets"): _workload,
    ("", "pods"): lambda body: pod_causes(body["spec"], "spec"),
    ("", "services"): _service,
    ("", "events"): _event,
    ("autoscaling", "horizontalpodautoscalers"): _autoscaler,
    ("coordination.k8s.io", "leases"): _lease,
    CRD.storage: _definition,
}


def changes_of(kind: Kind, old: Body, new: Body) -> list[Cause]:
    """Say which of the changes are not allowed."""
    causes: list[Cause] = []
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if kind.group == "apps" and before.get("selector") != after.get("selector"):
        causes.append(invalid("spec.selector", "", "field is immutable"))
    keeps = kind.storage == ("", "services") and after.get("type") != "ExternalName"
    if keeps and before.get("clusterIP") and before["clusterIP"] != after.get("clusterIP"):
        causes.append(invalid("spec.clusterIPs[0]", after.get("clusterIP"), "may not change once set"))
    if kind.storage == ("", "pods"):
        causes += pod_changes(before, after)
    if kind.storage in {("", "secrets"), ("", "configmaps")}:
        if old.get("immutable") and any(old.get(each) != new.get(each) for each in ("data", "binaryData", "immutable")):
            causes.append(Cause("FieldValueForbidden", "data", "Forbidden: field is immutable when `immutable` is set"))
        if old.get("type") != new.get("type"):
            causes.append(invalid("type", new.get("type"), "field is immutable"))
    return causes
