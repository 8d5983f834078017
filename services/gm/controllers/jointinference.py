"""Joint inference services: Models and Dataset first, then the service, to each node that has a role in it.

A node gets a generation of the service only when all that its roles name exists: until then it keeps what it runs, so
a misspelt model name costs no running worker. The seed's neptune.io form is translated here, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.jointinference import PLURAL, JointInferenceServiceSpec
from halimede.api.model import PLURAL as MODELS
from halimede.api.neptune import native, to_sedna
from halimede.api.placement import placements
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.controllers.actions import Delivery, Keep, Send
from services.gm.controllers.base import Observed, forget, register
from services.gm.controllers.dataset import has
from services.gm.controllers.placing import nowhere, unplaced
from services.gm.index import Entry, Role
from services.gm.selection import choices, selectors, settled
from services.gm.status import service_status
from services.gm.tally import Problem, Share
from services.gm.workloads.objects import Built, build, replicas, unchosen
from services.gm.workloads.pods import read_pods

MISSING = {MODELS: "ModelNotFound", DATASETS: "DatasetNotFound"}
#: where a role's pod is described
FIELD = "spec.{role}Worker.template.spec"


@register(PLURAL)
class JointInferenceController:
    """The rules of joint inference services."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> Entry:
        """Translate if need be; the edge role needs its model and the dataset, the cloud role its model."""
        resource = parse(to_sedna(resource)) if resource.kind.api_version == NEPTUNE else native(resource)
        made = settled(resource, status)
        return Entry(made, _roles(made), selects=bool(selectors(resource)))

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
            complete = complete and not names & selectors(desired).keys()
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
            missing = [*observed.pods.troubles, *built.problems, *nowhere(_roles(desired), observed, FIELD)]
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


def _roles(resource: Resource[JointInferenceServiceSpec]) -> tuple[Role, ...]:
    namespace, dataset = resource.metadata.namespace, resource.spec.dataset
    data = (Key(DATASETS, namespace, dataset.name),) if dataset else ()
    roles = []
    for place in placements(resource.spec):
        name = place.worker.model.name  # none yet where it is to be chosen
        model = (Key(MODELS, namespace, name),) if name else ()
        roles.append(Role(place.role, place.pod, (*model, *data) if place.role == "edge" else model))
    return tuple(roles)


def _missing(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Name what the service refers to and is not there: it heals when that appears."""
    roles = _roles(desired)
    yield from unchosen(desired)
    for reference in dict.fromkeys(key for role in roles for key in role.references):
        if observed.references.get(reference) is None:
            yield Problem(MISSING[reference.plural], f"{reference} does not exist: apply it")
    yield from unplaced(roles, observed, FIELD)
