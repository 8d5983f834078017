"""The kinds that a cluster has before anything is installed, and how they differ from one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.kubernetes.double.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One resource of the API."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str = ""
    short: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    #: whether status is written through a subresource of its own
    status: bool = False
    #: whether `metadata.generation` counts changes
    generation: bool = False
    #: whether PUT may leave out the resource version
    unconditional: bool = True
    #: whether DELETE answers with the object rather than with a Status
    returns_deleted: bool = False
    schema: Schema | None = None
    columns: tuple[dict[str, Any], ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def custom(self) -> bool:
        """Whether a CustomResourceDefinition made it."""
        return self.schema is not None


def _core(kind: str, plural: str, *short: str, **more: Any) -> Kind:
    return Kind(group="", version="v1", kind=kind, plural=plural, short=short, **more)


def _of(group: str, version: str, kind: str, plural: str, *short: str, **more: Any) -> Kind:
    return Kind(group=group, version=version, kind=kind, plural=plural, short=short, **more)


_RBAC = "rbac.authorization.k8s.io"
_STATED = {"status": True, "generation": True}
_WORKLOAD = {**_STATED, "categories": ("all",)}
_EVENT_FIELDS = ("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type")

CRD = _of(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd", "crds",
    namespaced=False, status=True, generation=True, unconditional=False,
)  # fmt: skip
NAMESPACE = _core("Namespace", "namespaces", "ns", namespaced=False, status=True, fields=("status.phase",))
POD = _core(
    "Pod", "pods", "po", **_WORKLOAD, returns_deleted=True,
    fields=("spec.nodeName", "status.phase", "spec.schedulerName", "spec.restartPolicy"),
)  # fmt: skip
BUILT_IN: tuple[Kind, ...] = (
    NAMESPACE,
    _core("Node", "nodes", "no", namespaced=False, status=True, fields=("spec.unschedulable",)),
    POD,
    _core("Service", "services", "svc", status=True, returns_deleted=True, categories=("all",)),
    _core("Secret", "secrets", fields=("type",)),
    _core("ConfigMap", "configmaps", "cm"),
    _core("ServiceAccount", "serviceaccounts", "sa", returns_deleted=True),
    _core("Event", "events", "ev", fields=_EVENT_FIELDS),
    _of("apps", "v1", "Deployment", "deployments", "deploy", **_WORKLOAD),
    _of("apps", "v1", "DaemonSet", "daemonsets", "ds", **_WORKLOAD),
    _of("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", status=True),
    _of("coordination.k8s.io", "v1", "Lease", "leases", unconditional=False),
    _of("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", **_STATED, unconditional=False),
    _of("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", **_STATED),
    _of("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", generation=True, unconditional=False),
    _of(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False),
    _of(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    _of(_RBAC, "v1", "Role", "roles"),
    _of(_RBAC, "v1", "RoleBinding", "rolebindings"),
    CRD,
)
