"""The controllers of services with workers (``WorkersController``): of joint inference and multi-edge inference.

GM sends each node with a worker of a service first the Models and the Dataset that the worker names, then the service.
A node receives a generation of the service only when all these resources exist. Until then it keeps what it runs, so a
misspelt model name stops no running worker.
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
from services.gm.controllers.base import Controller, Keep, NodeAction, Observed, Send, forget, node_problems, register
from services.gm.controllers.dataset import has_data
from services.gm.model_selection import choices, selectors, with_chosen_models
from services.gm.reference_index import ReferenceEntry, Roles, WorkerPlacement
from services.gm.service_status import MAX_SHOWN_NODES, NO_DISTRIBUTIONS, Problem, service_status
from services.gm.workloads.deployments import Built, References, build, replicas, secret_names, unchosen
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import PodView, pod_views

#: the problem's reason if a resource of a plural does not exist
MISSING = {MODELS: "ModelNotFound", DATASETS: "DatasetNotFound"}
#: counts of workers behind the edge, in a service with tiers: the first part of the metric's name, and the field
COUNTS = {"served": "served", "deferred": "deferred", "uploadedBytes": "uploaded_bytes"}
#: the state of a worker, and its counts if it has reported any
WorkerView = tuple[WorkerSummary, TaskInfo | None]


class WorkersController(Controller):
    """A ``Controller`` with the rules of all services with workers. Subclasses add those of a kind."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the resource with its workers: each needs its Models, and edge workers the Dataset as well."""
        return ReferenceEntry(resource, roles_of(resource))

    def node_actions(self, desired: Resource[Any], observed: Observed) -> Iterator[NodeAction]:
        """Send each node the resources that its workers name, then the service.

        A node keeps its present generation of the service while a resource is missing, or a Model is not chosen yet.
        """
        roles, choosing = roles_of(desired), selectors(desired).keys()
        named: dict[Roles, tuple[Key, ...]] = {}  # most nodes have the same roles
        for node, names in observed.placed.items():
            if names not in named:
                named[names] = tuple({key: None for role in roles if role.name in names for key in role.references})
            complete = True
            for reference in named[names]:
                resource = observed.references.get(reference)
                if resource is None:
                    complete = False
                elif reference.plural != DATASETS or has_data(resource, node, observed):
                    yield Send(node, resource)
            complete = complete and not names & choosing
            yield Send(node, desired) if complete else Keep(node, desired.key, desired.metadata.uid)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects of its workers; None: nodes run them."""
        if observed.workload is None:
            return None
        workload = observed.workload
        built = build(desired, observed.references, workload.workers.secrets, workload.settings)
        return built.with_backoffs(workload.backoffs, workload.workers.objects)

    def secret_names(self, desired: Resource[Any], references: References, settings: PodSettings) -> frozenset[str]:
        """Return the names of the Secrets that its workers, and the downloads of its Models, need."""
        return secret_names(desired, references, settings)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; the counts of nodes where it is no longer placed stay in the sum."""
        former_reports = [report for node, report in observed.reports.items() if node not in observed.placed]
        pods, replica_counts = None, None
        if built is None or observed.workload is None:
            missing = list(lacking_resources(desired, observed))
        else:
            workers = observed.workload.workers
            missing = [*observed.workload.troubles, *built.problems, *node_problems(roles_of(desired), observed)]
            pods = pod_views({**workers.objects, **observed.workload.merge(built)}, workers.pods, observed.pod_facts)
            replica_counts = replicas(built, workers.objects)
        original = observed.original or desired
        status = service_status(
            generation=desired.metadata.generation,
            shown=original.metadata.generation,
            shares=observed.shares,
            former=former_reports,
            missing=missing,
            previous=observed.status,
            now=observed.now,
            pods=pods,
            numbers=replica_counts,
            held_back=built.held_back if built else None,
            cloud=desired.kind.plural == JOINT_INFERENCE,
        )
        before = observed.status.chosen if observed.status else []
        return msgspec.structs.replace(status, chosen=choices(original, observed.models, before))


def roles_of(resource: Resource[Any]) -> tuple[WorkerPlacement, ...]:
    """Return a service's workers as the index has them: each with its pod and the resources that it names."""
    namespace, roles = resource.metadata.namespace, []
    for placement in placements(resource.spec):
        model = (Key(MODELS, namespace, name) for name in placement.models)  # none before a Model is chosen
        data = (Key(DATASETS, namespace, placement.dataset),) if placement.dataset else ()
        roles.append(WorkerPlacement(placement.name, placement.pod, (*model, *data), f"{placement.at}.template.spec"))
    return tuple(roles)


def lacking_resources(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Yield the problems of a service whose workers nodes run.

    They are selectors that match no Model, missing resources and nodes, and cameras that several nodes read.
    """
    roles = roles_of(desired)
    yield from unchosen(desired)
    for reference in dict.fromkeys(key for role in roles for key in role.references):
        if observed.references.get(reference) is None:
            yield Problem(MISSING[reference.plural], f"{reference} does not exist: apply it")
    yield from node_problems(roles, observed)
    yield from _several_readers(desired, observed)


def _several_readers(desired: Resource[Any], observed: Observed) -> Iterator[Problem]:
    """Yield the problems of edge workers that read one network camera on several nodes, and answer each frame there."""
    for worker in placements(desired.spec):
        nodes = sorted(node for node, names in observed.placed.items() if worker.name in names)
        if worker.stream and len(nodes) > 1:
            more = f" and {len(nodes) - 2} more" if len(nodes) > 2 else ""
            text = f"{worker.at}.source.url: nodes {nodes[0]}, {nodes[1]}{more} each read it, and answer each frame: "
            yield Problem("SeveralReaders", f"{text}set nodeName, or publish it once with a camera process")


@register(JOINT_INFERENCE)
class JointInferenceController(WorkersController):
    """The ``Controller`` of joint inference services: small models at the edge, and big ones for hard samples.

    The rules are the common ones of services with workers, and three more: the form of neptune.io is translated, Models
    are chosen by selectors, and with tiers between edge and cloud each worker has its own entry in the status.
    """

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in sedna.io form, with the names of the chosen Models in place of selectors."""
        resource = parse(to_sedna(resource)) if resource.kind.api_version == NEPTUNE else native(resource)
        chosen = with_chosen_models(resource, status)
        return ReferenceEntry(chosen, roles_of(chosen), selects=bool(selectors(resource)))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; if the service has tiers, add the state of each worker and counts of each tier."""
        status = super().status(desired, observed, built)
        if not desired.spec.tiers:
            return status
        specs = placements(desired.spec)
        return msgspec.structs.replace(
            status,
            workers=workers(desired, specs, observed, pods=built is not None),
            metrics=[*status.metrics, *_by_tier(specs[1:], observed)],
        )


def _by_tier(tiers: Iterable[Placement], observed: Observed) -> Iterator[Metric]:
    """Yield the counts of each tier behind the edge as metrics, with those of nodes that the service has left."""
    counts = [
        (part_of(worker), worker.task_info)
        for report in observed.reports.values()
        for worker in report.status.workers
        if worker.task_info
    ]
    for tier in tiers:
        infos = [info for name, info in counts if name == tier.name]
        for key, field in COUNTS.items():
            if key == "served" or tier.program == "tier":  # the last tier sends no requests
                yield Metric(key=f"{key}.{tier.name}", value=str(sum(getattr(info, field) for info in infos)))


@register(MULTI_EDGE)
class MultiEdgeController(WorkersController):
    """The ``Controller`` of multi-edge services: edge workers with their own names, and one that joins their findings.

    Several workers may have one role and one node, so each worker has its own entry in the status: phase, and output
    with models and task info.
    """

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods; add the state of each worker."""
        status = super().status(desired, observed, built)
        specs = placements(desired.spec)
        models = [list(models_of(desired, placement, observed)) for placement in specs]
        counted = [info for report in observed.reports.values() if (info := report.task_info) and report.edge]
        return msgspec.structs.replace(
            status,
            workers=workers(desired, specs, observed, pods=built is not None),
            output=Output(models=_once(models), task_info=plain(add_up(counted)) if counted else None),
        )


def _once(models: Iterable[Iterable[ModelOutput]]) -> list[ModelOutput]:
    """Return the models of all workers without repetitions, at most 64, the limit of ``Output.models``."""
    unique = {(model.format, model.url): model for several in models for model in several}
    return list(unique.values())[:64]


def workers(
    desired: Resource[Any], specs: Sequence[Placement], observed: Observed, *, pods: bool
) -> list[WorkerSummary]:
    """Return the state of each worker with its models and counts, those that do not run first, at most 100.

    ``specs``: the workers. ``pods``: whether a cluster runs them as pods. Of pods the cluster has the state, and the
    local controllers of their nodes report the counts; else nodes report both.
    """
    states = _by_pods(specs, observed) if pods else _by_nodes(specs, observed)
    by_name = {placement.name: placement for placement in specs}
    explained = [(_explain(summary, by_name[summary.name], desired, observed), info) for summary, info in states]
    models = {placement.name: list(models_of(desired, placement, observed)) for placement in specs}
    return [
        msgspec.structs.replace(summary, output=Output(models=models[summary.name], task_info=info and plain(info)))
        for summary, info in sorted(explained, key=lambda state: state[0].phase == "Running")[:MAX_SHOWN_NODES]
    ]


def models_of(desired: Resource[Any], placement: Placement, observed: Observed) -> Iterator[ModelOutput]:
    """Yield the Models of a worker that exist, for a status: URLs without secrets."""
    for name in placement.models:
        model = observed.references.get(Key(MODELS, desired.metadata.namespace, name))
        if model is not None:
            yield ModelOutput(format=model.spec.format, url=hide_secrets(model.spec.url))


def plain(info: TaskInfo) -> TaskInfo:
    """Return counts without distributions, for a status: the metrics have their quantiles."""
    return msgspec.structs.replace(info, **NO_DISTRIBUTIONS)


def part_of(worker: WorkerReport) -> str:
    """Return a worker's name within its service: its own name, else its role."""
    return worker.part or worker.role


def placed_workers(observed: Observed) -> Iterator[tuple[str, WorkerReport]]:
    """Yield (node, worker) for each worker in the live reports of nodes that is placed on the reporting node.

    So a node cannot report for another node's worker, nor for a worker that was moved to another node.
    """
    for node, report in sorted(observed.reports.items()):
        if report.live:
            placed = observed.placed.get(node, frozenset())
            yield from ((node, worker) for worker in report.status.workers if part_of(worker) in placed)


def _by_nodes(specs: Iterable[Placement], observed: Observed) -> Iterator[WorkerView]:
    """Yield the state of each worker on each node where it is placed; one without a node is yielded once."""
    for placement in specs:
        for node in sorted(node for node, names in observed.placed.items() if placement.name in names) or [""]:
            yield _on_node(placement, node, observed)


def _on_node(placement: Placement, node: str, observed: Observed) -> WorkerView:
    """Return the state of a worker on a node; an empty name: on none."""
    summary = WorkerSummary(name=placement.name, role=placement.role, node=node, phase="Pending")
    report = observed.reports.get(node)
    reported_workers = report.status.workers if report and report.live else ()
    worker = next((worker for worker in reported_workers if part_of(worker) == placement.name), None)
    if node and not observed.is_online(node):
        never = node not in observed.nodes
        summary.phase, summary.reason = "Pending" if never else "Unknown", "NodeNotFound" if never else "NodeOffline"
        summary.message = f"node {node} has never connected" if never else f"node {node} is offline"
    elif worker:
        summary.phase, summary.reason, summary.message = worker.phase, worker.reason, worker.message
    return summary, worker.task_info if worker else None


def _explain(summary: WorkerSummary, worker: Placement, desired: Resource[Any], observed: Observed) -> WorkerSummary:
    """Return the state of a worker with what it waits for, if it is pending and has no reason of its own."""
    if summary.phase != "Pending" or summary.reason:
        return summary
    keys = (Key(MODELS, desired.metadata.namespace, name) for name in worker.models)
    missing = next((key for key in keys if observed.references.get(key) is None), None)
    if missing:
        summary.reason, summary.message = "ModelNotFound", f"{missing} does not exist: apply it"
    elif worker.pod.node_name and worker.pod.node_name not in observed.nodes:
        summary.reason, summary.message = "NodeNotFound", f"there is no node {worker.pod.node_name}"
    return summary


def _by_pods(specs: Iterable[Placement], observed: Observed) -> Iterator[WorkerView]:
    """Yield the state of each worker's pods, with the counts that local controllers report; one without pods once."""
    assert observed.workload is not None  # noqa: S101
    cluster_workers = observed.workload.workers
    views = pod_views(cluster_workers.objects, cluster_workers.pods, observed.pod_facts)
    infos = {
        worker.name: worker.task_info
        for report in observed.reports.values()
        if report.live
        for worker in report.status.workers
    }
    for placement in specs:
        own = [view for view in views if view.worker_name == placement.name]
        yield from ((_of_pod(placement, view), infos.get(view.name)) for view in own)
        if not own:
            yield WorkerSummary(name=placement.name, role=placement.role, phase="Pending"), None


def _of_pod(placement: Placement, view: PodView) -> WorkerSummary:
    """Return the state of a worker's pod for a status."""
    phase = "Unknown" if view.unreached else "Pending" if view.phase == "Running" and not view.ready else view.phase
    return WorkerSummary(
        name=placement.name, role=placement.role, node=view.node, phase=phase, reason=view.reason, message=view.message
    )
