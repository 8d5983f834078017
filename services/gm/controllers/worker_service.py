"""Services whose workers are placed on nodes: joint inference, and several edges that work together.

Models and Dataset go first, then the service, to each node that has a worker of it. A node gets a generation of the
service only when all that its workers name exists: until then it keeps what it runs, so a misspelt model name costs no
running worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.model import PLURAL as MODELS
from halimede.api.placement import placements
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.controllers.actions import Delivery, Keep, Send
from services.gm.controllers.base import Controller, Observed, forget
from services.gm.controllers.dataset import has
from services.gm.controllers.model_selection import choices, selectors
from services.gm.controllers.placement_conditions import nowhere, unplaced
from services.gm.reference_index import ReferenceEntry, Roles, WorkerPlacement
from services.gm.service_status import service_status
from services.gm.worker_readiness import Problem, Share
from services.gm.workloads.deployments import Built, build, replicas, secret_names, unchosen
from services.gm.workloads.pod_status import read_pods

MISSING = {MODELS: "ModelNotFound", DATASETS: "DatasetNotFound"}


class WorkersController(Controller):
    """The rules of services with workers. A kind converts its resource to the form that nodes receive."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return it as it is: each worker needs its Models, those at the edge the Dataset as well."""
        return ReferenceEntry(resource, roles_of(resource))

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send each node what its workers name, then the service."""
        roles, choosing = roles_of(desired), selectors(desired).keys()
        named: dict[Roles, tuple[Key, ...]] = {}  # most nodes have the same roles
        for node, names in observed.placed.items():
            if names not in named:
                named[names] = tuple({key: None for role in roles if role.name in names for key in role.references})
            complete = True
            for reference in named[names]:
                found = observed.references.get(reference)
                if found is None:
                    complete = False
                elif reference.plural != DATASETS or has(found, node):
                    yield Send(node, found)
            complete = complete and not names & choosing
            yield Send(node, desired) if complete else Keep(node, desired.key, desired.metadata.uid)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Pods for its workers, in a cluster that runs them."""
        if observed.pods is None:
            return None
        return build(desired, observed.references, observed.pods.workers.secrets, observed.pods.settings)

    def secret_names(self, desired: Resource[Any], observed: Observed) -> frozenset[str]:
        """Return those of its workers and of the Models that they download."""
        if observed.pods is None:
            return frozenset()
        return secret_names(desired, observed.references, observed.pods.settings)

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
            missing = [*observed.pods.troubles, *built.problems, *nowhere(roles_of(desired), observed)]
            # pods are measured by what there shall be: what is just being written is not in the cluster's memory yet
            shall = {ref: {**workers.objects.get(ref, {}), **body} for body in built.objects for ref in [Ref.of(body)]}
            pods, wanted = read_pods({**workers.objects, **shall}, workers.pods), replicas(built, workers.objects)
        asked = observed.asked or desired
        status = service_status(
            generation=desired.metadata.generation,
            shown=asked.metadata.generation,
            shares=shares,
            left=left,
            missing=missing,
            previous=observed.status,
            now=observed.now,
            pods=pods,
            wanted=wanted,
        )
        before = observed.status.chosen if observed.status else []
        return msgspec.structs.replace(status, chosen=choices(asked, observed.models, before))


def roles_of(resource: Resource[Any]) -> tuple[WorkerPlacement, ...]:
    """Return a service's workers, each with what it names."""
    namespace, dataset = resource.metadata.namespace, resource.spec.dataset
    data = (Key(DATASETS, namespace, dataset.name),) if dataset else ()
    roles = []
    for place in placements(resource.spec):
        model = tuple(Key(MODELS, namespace, name) for name in place.models)  # none yet where it is to be chosen
        needed = (*model, *data) if place.role == "edge" else model
        roles.append(WorkerPlacement(place.name, place.pod, needed, f"{place.at}.template.spec"))
    return tuple(roles)


def _missing(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Name what the service refers to and is not there: it heals when that appears."""
    roles = roles_of(desired)
    yield from unchosen(desired)
    for reference in dict.fromkeys(key for role in roles for key in role.references):
        if observed.references.get(reference) is None:
            yield Problem(MISSING[reference.plural], f"{reference} does not exist: apply it")
    yield from unplaced(roles, observed)
