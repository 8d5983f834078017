"""Services whose workers are placed on nodes: joint inference, and multi-edge inference.

GM sends a node the Models and the Dataset first, then the service, to each node that has a worker of it. A node
receives a generation of the service only when all resources exist that its workers name. Until then it keeps what it
runs, so a misspelt model name stops no running worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.base import NEPTUNE
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.api.model import PLURAL as MODELS
from halimede.api.multiedge import PLURAL as MULTI_EDGE
from halimede.api.neptune import native, to_sedna
from halimede.api.placement import Placement, placements
from halimede.errors import hide_secrets
from halimede.messages import Metric, ModelOutput, Output, Status, TaskInfo, WorkerReport, WorkerSummary
from halimede.names import Key
from halimede.stats.totals import add_up
from services.gm.cluster.port import NodeReport
from services.gm.controllers.base import Controller, Delivery, Keep, Observed, Send, forget, nowhere, register, unplaced
from services.gm.controllers.dataset import has
from services.gm.model_selection import choices, selectors, settled
from services.gm.reference_index import ReferenceEntry, Roles, WorkerPlacement
from services.gm.service_status import MAX_SHOWN_NODES, NO_DISTRIBUTIONS, Problem, service_status
from services.gm.workloads.deployments import Built, build, replicas, secret_names, unchosen
from services.gm.workloads.pod_status import PodView, read_pods

MISSING = {MODELS: "ModelNotFound", DATASETS: "DatasetNotFound"}
#: counts of workers behind the edge, in a service with tiers: the first part of the metric's name, and the field
COUNTS = {"served": "served", "deferred": "deferred", "uploadedBytes": "uploaded_bytes"}
Said = tuple[WorkerSummary, TaskInfo | None]


class WorkersController(Controller):
    """The rules of services with workers. A kind converts its resource to the form that nodes receive."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the resource: each worker needs its Models, edge workers the Dataset as well."""
        return ReferenceEntry(resource, roles_of(resource))

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send each node the resources that its workers name, then the service."""
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
                elif reference.plural != DATASETS or has(found, node, observed):
                    yield Send(node, found)
            complete = complete and not names & choosing
            yield Send(node, desired) if complete else Keep(node, desired.key, desired.metadata.uid)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects of its workers, in a cluster that runs pods."""
        if observed.pods is None:
            return None
        of = observed.pods
        return build(desired, observed.references, of.workers.secrets, of.settings).holding(of.held, of.workers.objects)

    def secret_names(self, desired: Resource[Any], observed: Observed) -> frozenset[str]:
        """Return the Secrets of its workers, and of the Models that they download."""
        if observed.pods is None:
            return frozenset()
        return secret_names(desired, observed.references, observed.pods.settings)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; the counts of nodes that have left stay in the sum."""
        left = [report for node, report in observed.reports.items() if node not in observed.placed]
        pods, wanted = None, None
        if built is None or observed.pods is None:
            missing = list(lacking(desired, observed))
        else:
            workers = observed.pods.workers
            missing = [*observed.pods.troubles, *built.problems, *nowhere(roles_of(desired), observed)]
            pods = read_pods({**workers.objects, **observed.pods.planned(built)}, workers.pods, observed.pod_news)
            wanted = replicas(built, workers.objects)
        asked = observed.asked or desired
        status = service_status(
            generation=desired.metadata.generation,
            shown=asked.metadata.generation,
            shares=observed.shares,
            left=left,
            missing=missing,
            previous=observed.status,
            now=observed.now,
            pods=pods,
            wanted=wanted,
            held=built.held if built else None,
            cloud=desired.kind.plural == JOINT_INFERENCE,
        )
        before = observed.status.chosen if observed.status else []
        return msgspec.structs.replace(status, chosen=choices(asked, observed.models, before))


def roles_of(resource: Resource[Any]) -> tuple[WorkerPlacement, ...]:
    """Return a service's workers, each with the resources that it names."""
    namespace, roles = resource.metadata.namespace, []
    for place in placements(resource.spec):
        model = (Key(MODELS, namespace, name) for name in place.models)  # none before a Model is chosen
        data = (Key(DATASETS, namespace, place.dataset),) if place.dataset else ()
        roles.append(WorkerPlacement(place.name, place.pod, (*model, *data), f"{place.at}.template.spec"))
    return tuple(roles)


def lacking(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Yield missing references of the service: the problem ends when they appear."""
    roles = roles_of(desired)
    yield from unchosen(desired)
    for reference in dict.fromkeys(key for role in roles for key in role.references):
        if observed.references.get(reference) is None:
            yield Problem(MISSING[reference.plural], f"{reference} does not exist: apply it")
    yield from unplaced(roles, observed)
    yield from _several_readers(desired, observed)


def _several_readers(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Yield edge workers that read one network camera on several nodes: each of them answers each of its frames."""
    for place in placements(desired.spec):
        nodes = sorted(node for node, names in observed.placed.items() if place.name in names)
        if place.stream and len(nodes) > 1:
            more = f" and {len(nodes) - 2} more" if len(nodes) > 2 else ""
            text = f"{place.at}.source.url: nodes {nodes[0]}, {nodes[1]}{more} each read it, and answer each frame: "
            yield Problem("SeveralReaders", f"{text}set nodeName, or publish it once with a camera process")


@register(JOINT_INFERENCE)
class JointInferenceController(WorkersController):
    """The rules of joint inference services: the common rules of services with workers, and three more.

    The seed's neptune.io form is translated, Models are chosen by selector, and each tier between edge and cloud has
    its own entry in the status.
    """

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in sedna.io form, with the names of the chosen Models in place of selectors."""
        resource = parse(to_sedna(resource)) if resource.kind.api_version == NEPTUNE else native(resource)
        made = settled(resource, status)
        return ReferenceEntry(made, roles_of(made), selects=bool(selectors(resource)))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; if the service has tiers, add the state of each worker and counts of each tier."""
        status = super().status(desired, observed, built)
        if not desired.spec.tiers:
            return status
        places = placements(desired.spec)
        return msgspec.structs.replace(
            status,
            workers=workers(desired, places, observed, pods=built is not None),
            metrics=[*status.metrics, *_by_tier(places[1:], observed)],
        )


def _by_tier(places: Iterable[Placement], observed: Observed) -> Iterator[Metric]:
    """Yield the counts of each tier behind the edge, including nodes that have left."""
    told = [
        (part_of(worker), worker.task_info)
        for report in observed.reports.values()
        for worker in report.status.workers
        if worker.task_info
    ]
    for place in places:
        infos = [info for part, info in told if part == place.name]
        for key, field in COUNTS.items():
            if key == "served" or place.program == "tier":  # the last tier sends no requests
                yield Metric(key=f"{key}.{place.name}", value=str(sum(getattr(info, field) for info in infos)))


@register(MULTI_EDGE)
class MultiEdgeController(WorkersController):
    """The rules of multi-edge inference services: edge workers with their own names, and one that joins findings.

    Several workers may have one role and one node, so each worker has its own entry in the status, in the seed's form:
    phase, and output with models and task info.
    """

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; add the state of each worker."""
        status = super().status(desired, observed, built)
        places = placements(desired.spec)
        models = [list(models_of(desired, place, observed)) for place in places]
        counted = [info for report in observed.reports.values() if (info := report.task_info) and report.edge]
        return msgspec.structs.replace(
            status,
            workers=workers(desired, places, observed, pods=built is not None),
            output=Output(models=_once(models), task_info=plain(add_up(counted)) if counted else None),
        )


def _once(models: Iterable[Iterable[ModelOutput]]) -> list[ModelOutput]:
    found = {(model.format, model.url): model for several in models for model in several}
    return list(found.values())[:64]


def workers(
    desired: Resource[Any], places: Sequence[Placement], observed: Observed, *, pods: bool
) -> list[WorkerSummary]:
    """Return the state of each worker, those with trouble first; ``pods``: a cluster runs them.

    Nodes that start workers themselves report their state. Of pods, the cluster has the state, and the local
    controllers of their nodes report the counts.
    """
    found = _by_pods(places, observed) if pods else _by_nodes(places, observed)
    named = {place.name: place for place in places}
    explained = [(_explained(said, named[said.name], desired, observed), info) for said, info in found]
    models = {place.name: list(models_of(desired, place, observed)) for place in places}
    return [
        msgspec.structs.replace(said, output=Output(models=models[said.name], task_info=info and plain(info)))
        for said, info in sorted(explained, key=lambda each: each[0].phase == "Running")[:MAX_SHOWN_NODES]
    ]


def models_of(desired: Resource[Any], place: Placement, observed: Observed) -> Iterator[ModelOutput]:
    """Yield the Models of a worker that exist."""
    for name in place.models:
        model = observed.references.get(Key(MODELS, desired.metadata.namespace, name))
        if model is not None:
            yield ModelOutput(format=model.spec.format, url=hide_secrets(model.spec.url))


def plain(info: TaskInfo) -> TaskInfo:
    """Return the counts without distributions: the metrics have their quantiles."""
    return msgspec.structs.replace(info, **NO_DISTRIBUTIONS)


def part_of(worker: WorkerReport) -> str:
    """Return a worker's name within its service: its own name, else its role."""
    return worker.part or worker.role


def placed_workers(observed: Observed) -> Iterator[tuple[str, WorkerReport]]:
    """Yield the workers in the reports of nodes, each with its node, but only those that are placed there.

    A node cannot report for another node's worker, nor for one that was moved to another node.
    """
    for node, report in sorted(observed.reports.items()):
        if report.live:
            placed = observed.placed.get(node, frozenset())
            yield from ((node, worker) for worker in report.status.workers if part_of(worker) in placed)


def _by_nodes(places: Iterable[Placement], observed: Observed) -> Iterator[Said]:
    """Yield each worker on each node where it is placed; an unplaced worker is yielded once without a node."""
    for place in places:
        nodes = sorted(node for node, names in observed.placed.items() if place.name in names)
        for node in nodes or [""]:
            yield _on_node(place, node, observed)


def _on_node(place: Placement, node: str, observed: Observed) -> Said:
    said = WorkerSummary(name=place.name, role=place.role, node=node, phase="Pending")
    report = observed.reports.get(node)
    worker = _reported(report, place) if report and report.live else None
    if node and not observed.online(node):
        never = node not in observed.nodes
        said.phase, said.reason = "Pending" if never else "Unknown", "NodeNotFound" if never else "NodeOffline"
        said.message = f"node {node} has never connected" if never else f"node {node} is offline"
    elif worker:
        said.phase, said.reason, said.message = worker.phase, worker.reason, worker.message
    return said, worker.task_info if worker else None


def _explained(said: WorkerSummary, place: Placement, desired: Resource[Any], observed: Observed) -> WorkerSummary:
    """Add what a worker waits for, if neither its node nor its pod has a reason."""
    if said.phase != "Pending" or said.reason:
        return said
    keys = (Key(MODELS, desired.metadata.namespace, name) for name in place.models)
    missing = next((key for key in keys if observed.references.get(key) is None), None)
    if missing:
        said.reason, said.message = "ModelNotFound", f"{missing} does not exist: apply it"
    elif place.pod.node_name and place.pod.node_name not in observed.nodes:
        said.reason, said.message = "NodeNotFound", f"there is no node {place.pod.node_name}"
    return said


def _reported(report: NodeReport, place: Placement) -> WorkerReport | None:
    return next((worker for worker in report.status.workers if part_of(worker) == place.name), None)


def _by_pods(places: Iterable[Placement], observed: Observed) -> Iterator[Said]:
    """Yield each worker's pods; the local controllers of their nodes report the counts."""
    assert observed.pods is not None  # noqa: S101
    pods = observed.pods.workers
    views = read_pods(pods.objects, pods.pods, observed.pod_news)
    infos = {
        worker.name: worker.task_info
        for report in observed.reports.values()
        if report.live
        for worker in report.status.workers
    }
    for place in places:
        own = [view for view in views if view.of == place.name]
        yield from ((_of_pod(place, view), infos.get(view.name)) for view in own)
        if not own:
            yield WorkerSummary(name=place.name, role=place.role, phase="Pending"), None


def _of_pod(place: Placement, view: PodView) -> WorkerSummary:
    phase = "Unknown" if view.unreached else "Pending" if view.phase == "Running" and not view.ready else view.phase
    return WorkerSummary(
        name=place.name, role=place.role, node=view.node, phase=phase, reason=view.reason, message=view.message
    )
