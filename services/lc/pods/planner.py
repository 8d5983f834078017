"""Plans of a node with pods: the state of a service before the first report of a pod. Pure.

Which pods come here is not decided here, and the node's labels need not be known: a role whose pods name another node
has no business here, any other may. Its Model is prepared ahead of time if GM has sent it and this controller can: the
node's own files are mounted into the pods that need them, and only pods are given a Model's credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halimede.api import Resource, matches, placements
from halimede.api.placement import Placement
from halimede.models import FetchError, local_path
from halimede.names import Key
from services.lc.models.lookup import Models
from services.lc.models.preparation import Preparation, RequiredFile
from services.lc.paths import Worker
from services.lc.planning.resource_state import Lack, ResourceState
from services.lc.status_builder import WORST_FIRST
from services.lc.store.database import NodeResource
from services.lc.supervisor.process import Start


@dataclass(frozen=True, slots=True)
class PodNode:
    """The node: its name, and its labels as far as they are known."""

    name: str
    labels: Mapping[str, str]

    def leaves(self, resource: Resource[Any]) -> str:
        """Return why a Model or Dataset is left to the pods, empty if it is not."""
        spec = resource.spec
        if spec.credential_name:
            return f"its pods bring it themselves: Secret {spec.credential_name} is theirs alone"
        try:
            local = local_path(spec.url) is not None
        except FetchError:  # who prepares it says so
            return ""
        return "its pods look for it themselves: it is a file of the node" if local else ""

    def service(
        self, held: NodeResource, resource: Resource[Any], models: Models
    ) -> tuple[ResourceState, dict[Worker, Start]]:
        """Return how the models of a service stand on this node; there is nothing to start."""
        asked = [p for p in placements(resource.spec) if p.pod.node_name in {"", self.name}]
        here = [p for p in asked if models.held(p, held.key) or matches(p.pod, self.name, self.labels)] or asked
        lacks = [lack for p in here if (lack := self._lack(p, held.key, models))]
        used = tuple(output for p in here for output in models.output(p, held.key))
        nowhere = Lack("Pending", "NoPlacement", f"its workers ask for other nodes than {self.name}")
        settled = min(lacks, key=lambda lack: WORST_FIRST.index(lack.phase), default=None if asked else nowhere)
        return ResourceState(held.key, held.uid, held.generation, models=used, settled=settled), {}

    def served(self, held: NodeResource, resource: Resource[Any]) -> RequiredFile | None:  # of the port
        """Nothing: pods bring what they serve."""

    def server(
        self,
        held: NodeResource,
        resource: Resource[Any],  # noqa: ARG002
        preparation: Preparation | None,  # noqa: ARG002
    ) -> tuple[ResourceState, dict[Worker, Start]]:
        """Nothing to start: pods serve."""
        return ResourceState(
            held.key, held.uid, held.generation, settled=Lack("Ready", "LeftToPods", "pods serve it")
        ), {}

    def _lack(self, placement: Placement, service: Key, models: Models) -> Lack | None:
        left = {
            item.held.key.name
            for item in models.held(placement, service)
            if item.resource and self.leaves(item.resource)
        }
        for name in placement.models:
            found = models.find(name, service, self.name)
            if isinstance(found, Lack) and name not in left:
                return found
        return None
