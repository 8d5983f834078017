"""Kinds of objects of the Kubernetes API with their paths (``ApiResource``), and names that GM writes into objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from halimede.api import kinds
from services.gm.workloads.object_names import MANAGED_BY
from services.gm.workloads.object_names import MANAGER as LABEL_VALUE

#: an object as the API returns it
Object = dict[str, Any]

#: GM's name as a client, as the source of events, and in its Lease
MANAGER = "halimede-gm"
#: label selector of the objects that GM makes for services
MANAGED = f"{MANAGED_BY}={LABEL_VALUE}"
#: the first event of a watch, in addition to ADDED, MODIFIED, DELETED and BOOKMARK of the API
OPENED = "OPENED"


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One kind of object: the API's version (such as ``apps/v1``), kind and plural."""

    version: str
    kind: str
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object in a URL, or without ``name`` that of all objects, of a namespace if given.

        ``subresource``: such as ``status``.
        """
        parts = ["apis" if "/" in self.version else "api", *self.version.split("/")]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *(part for part in (name, subresource) if part)]
        return "/" + "/".join(quote(part, safe="") for part in parts)


#: kinds of Kubernetes' own objects that GM reads or writes
DEPLOYMENTS = ApiResource("apps/v1", "Deployment", "deployments")
SERVICES = ApiResource("v1", "Service", "services")
AUTOSCALERS = ApiResource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
INGRESSES = ApiResource("networking.k8s.io/v1", "Ingress", "ingresses")
#: kinds of objects that GM makes
MANAGED_KINDS = (DEPLOYMENTS, SERVICES, AUTOSCALERS, INGRESSES)
#: further kinds: GM only reads pods and nodes, and also writes single objects of the other kinds
PODS = ApiResource("v1", "Pod", "pods")
NODES = ApiResource("v1", "Node", "nodes")
SECRETS = ApiResource("v1", "Secret", "secrets")
EVENTS = ApiResource("v1", "Event", "events")
LEASES = ApiResource("coordination.k8s.io/v1", "Lease", "leases")


def resources() -> Iterator[ApiResource]:
    """Yield the API resources of halimede's own kinds, of both API groups."""
    return (ApiResource(kind.api_version, kind.kind, kind.plural) for kind in kinds())
