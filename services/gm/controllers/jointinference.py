"""Joint inference services: Models and Dataset first, then the service, to each node that has a role in it.

A node gets a generation of the service only when all that its roles name exists: until then it keeps what it runs, so
a misspelt model name costs no running worker. The seed's neptune.io form is translated here, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.jointinference import PLURAL, JointInferenceServiceSpec
from halimede.api.model import PLURAL as MODELS
from halimede.api.neptune import native, to_sedna
from halimede.api.placement import matches, placements
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.controllers.actions import Delivery, Keep, Send
from services.gm.controllers.base import Observed, forget, register
from services.gm.controllers.dataset import has
from services.gm.index import Entry, Role
from services.gm.status import service_status
from services.gm.tally import Problem, Share
from services.gm.workloads.objects import Built, build, replicas
from services.gm.workloads.pods import read_pods

MISSING = {MODELS: "ModelNotFound", DATASETS: "DatasetNotFound"}


@register(PLURAL)
class JointInferenceController:
    """The rules of joint inference services."""

    def entry(self, resource: Resource[Any]) -> Entry:
        """Translate if need be; the edge role needs its model and the dataset, the cloud role its model."""
        resource = parse(to_sedna(resource)) if resource.kind.api_version == NEPTUNE else native(resource)
        return Entry(resource, _roles(resource))

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send each node what its roles name, then the service."""
        roles = _roles(desired)
        for node, names in observed.placed.items():
            complete = True
            for reference in dict.fromkeys(key for role in roles if role.name in names for key in role.references):
                found = observed.references.get(reference)
                if found is None:
                    complete = False
                elif reference.plural != DATASETS or has(found, node):
                    yield Send(node, found)
            yield Send(node, desired) if complete else Keep(node, desired.key, desired.metadata.uid)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Pods for its two roles, in a cluster that runs them."""
        if observed.pods is None:
            return None
        return build(desired, observed.references, observed.pods.workers.secrets, observed.pods.settings)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; counts of nodes that have left go on counting."""
        shares = [
            Share(node, roles, observed.nodes.get(node), observed.reports.get(node))
            for node, roles in sorted(observed.placed.items())
        ]
        left = [report for node, report in observed.reports.items() if node not in observed.placed]
        pods, wanted = None, None
        if built is None or observed.pods is None:
            missing = list(_missing(desired, observed))
        else:
            workers = observed.pods.workers
            missing = [*observed.pods.troubles, *built.problems, *_nowhere(desired, observed)]
            # pods are measured by what there shall be: what is just being written is not in the cluster's memory yet
            shall = {ref: {**workers.objects.get(ref, {}), **body} for body in built.objects for ref in [Ref.of(body)]}
            pods, wanted = read_pods({**workers.objects, **shall}, workers.pods), replicas(built, workers.objects)
        return service_status(
            generation=desired.metadata.generation,
            shares=shares,
            left=left,
            missing=missing,
            previous=observed.status,
            now=observed.now,
            pods=pods,
            wanted=wanted,
        )


def _roles(resource: Resource[JointInferenceServiceSpec]) -> tuple[Role, ...]:
    namespace, dataset = resource.metadata.namespace, resource.spec.dataset
    data = (Key(DATASETS, namespace, dataset.name),) if dataset else ()
    roles = []
    for place in placements(resource.spec):
        model = Key(MODELS, namespace, place.worker.model.name)
        roles.append(Role(place.role, place.pod, (model, *data) if place.role == "edge" else (model,)))
    return tuple(roles)


def _missing(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Name what the service refers to and is not there: it heals when that appears."""
    roles = _roles(desired)
    for reference in dict.fromkeys(key for role in roles for key in role.references):
        if observed.references.get(reference) is None:
            yield Problem(MISSING[reference.plural], f"{reference} does not exist: apply it")
    placed = {name for names in observed.placed.values() for name in names}
    for role in roles:
        field = f"spec.{role.name}Worker.template.spec"
        if role.pod.node_name:
            if role.pod.node_name not in observed.nodes:
                yield Problem("NodeNotFound", f"{field}.nodeName: node {role.pod.node_name} has never been seen")
            elif observed.nodes[role.pod.node_name].drained:
                yield _drained(f"{field}.nodeName", [role.pod.node_name])
        elif not role.pod.node_selector:
            yield Problem("NoNode", f"{field} gives neither nodeName nor nodeSelector")
        elif role.name not in placed:
            wanted = ", ".join(f"{k}={v}" for k, v in sorted(role.pod.node_selector.items()))
            away = (node for node in observed.nodes.values() if node.drained)
            if drained := [node.name for node in away if matches(role.pod, node.name, node.labels)]:
                yield _drained(f"{field}.nodeSelector", drained)
            else:
                yield Problem("NoNode", f"{field}.nodeSelector: no node has {wanted}")


def _nowhere(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Say which node a role names that there is not; where a selector leads, the cluster's scheduler says."""
    for role in _roles(desired):
        if role.pod.node_name and role.pod.node_name not in observed.nodes:
            field = f"spec.{role.name}Worker.template.spec.nodeName"
            yield Problem("NodeNotFound", f"{field}: there is no node {role.pod.node_name}")


def _drained(field: str, nodes: Sequence[str]) -> Problem:
    """Say that only drained nodes are left for a role: it heals when one of them is given back."""
    first, more = min(nodes), f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return Problem("NodeDrained", f"{field}: node {first} is drained{more}: `halimede uncordon {first}` gives it back")
