"""Where things are in the API, and the names that GM leaves on objects. Plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from halimede.api import kinds
from services.gm.workloads.object_names import MANAGED_BY
from services.gm.workloads.object_names import MANAGER as MADE_BY

#: an object as the API gives it
Object = dict[str, Any]

#: GM's name as a client, as the source of events, and of its Lease
MANAGER = "halimede-gm"
#: what GM makes for services carries this
MANAGED = f"{MANAGED_BY}={MADE_BY}"


#: what a watch says first, beside the API's own ADDED, MODIFIED, DELETED and BOOKMARK
OPENED = "OPENED"


@dataclass(frozen=True, slots=True)
class ApiResource:
    """One kind of object in the API."""

    version: str
    kind: str
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of all (of a namespace)."""
        parts = ["apis" if "/" in self.version else "api", *self.version.split("/")]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *(part for part in (name, subresource) if part)]
        return "/" + "/".join(quote(part, safe="") for part in parts)


DEPLOYMENTS = ApiResource("apps/v1", "Deployment", "deployments")
SERVICES = ApiResource("v1", "Service", "services")
AUTOSCALERS = ApiResource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
INGRESSES = ApiResource("networking.k8s.io/v1", "Ingress", "ingresses")
#: what GM makes
MADE = (DEPLOYMENTS, SERVICES, AUTOSCALERS, INGRESSES)
PODS = ApiResource("v1", "Pod", "pods")
NODES = ApiResource("v1", "Node", "nodes")
SECRETS = ApiResource("v1", "Secret", "secrets")
EVENTS = ApiResource("v1", "Event", "events")
LEASES = ApiResource("coordination.k8s.io/v1", "Lease", "leases")


def resources() -> Iterator[ApiResource]:
    """Return where the resources of all kinds are."""
    return (ApiResource(kind.api_version, kind.kind, kind.plural) for kind in kinds())
