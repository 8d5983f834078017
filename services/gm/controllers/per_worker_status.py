"""The status of each worker of a service, if several have one role: node, phase, counters. Pure.

Nodes that start workers themselves tell of them in their reports; of pods the cluster says how they are, and the local
controllers of their nodes what they have counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.model import PLURAL as MODELS
from halimede.api.placement import Placement
from halimede.errors import hide_secrets
from halimede.messages import ModelOutput, Output, TaskInfo, WorkerReport, WorkerSummary
from halimede.names import Key
from services.gm.cluster.port import NodeReport
from services.gm.controllers.base import Observed
from services.gm.service_status import MAX_SHOWN_NODES, NO_DISTRIBUTIONS
from services.gm.workloads.pod_status import PodView, read_pods

Said = tuple[WorkerSummary, TaskInfo | None]


def workers(
    desired: Resource[Any], places: Sequence[Placement], observed: Observed, *, pods: bool
) -> list[WorkerSummary]:
    """Return how each worker fares, those with trouble first; ``pods``: a cluster runs them."""
    found = _by_pods(places, observed) if pods else _by_nodes(places, observed)
    named = {place.name: place for place in places}
    explained = [(_explained(said, named[said.name], desired, observed), info) for said, info in found]
    models = {place.name: list(models_of(desired, place, observed)) for place in places}
    return [
        msgspec.structs.replace(said, output=Output(models=models[said.name], task_info=info and plain(info)))
        for said, info in sorted(explained, key=lambda each: each[0].phase == "Running")[:MAX_SHOWN_NODES]
    ]


def models_of(desired: Resource[Any], place: Placement, observed: Observed) -> Iterator[ModelOutput]:
    """Yield the Models of a worker that are there."""
    for name in place.models:
        model = observed.references.get(Key(MODELS, desired.metadata.namespace, name))
        if model is not None:
            yield ModelOutput(format=model.spec.format, url=hide_secrets(model.spec.url))


def plain(info: TaskInfo) -> TaskInfo:
    """Leave out distributions: they are summed up in the metrics."""
    return msgspec.structs.replace(info, **NO_DISTRIBUTIONS)


def part_of(worker: WorkerReport) -> str:
    """Return what a service calls a worker: its name, where it has one."""
    return worker.part or worker.role


def _by_nodes(places: Iterable[Placement], observed: Observed) -> Iterator[Said]:
    """Yield each worker on each node where it belongs; one that belongs nowhere stands for itself."""
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
        said.message = f"node {node} has never been seen" if never else f"node {node} is offline"
    elif worker:
        said.phase, said.reason, said.message = worker.phase, worker.reason, worker.message
    return said, worker.task_info if worker else None


def _explained(said: WorkerSummary, place: Placement, desired: Resource[Any], observed: Observed) -> WorkerSummary:
    """Name what a worker waits for, where neither its node nor its pod has a word for it."""
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
    """Yield each worker's pods; what they have counted, the local controllers of their nodes say."""
    assert observed.pods is not None  # noqa: S101
    pods = observed.pods.workers
    views = read_pods(pods.objects, pods.pods)
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
    phase = "Pending" if view.phase == "Running" and not view.ready else view.phase
    return WorkerSummary(
        name=place.name, role=place.role, node=view.node, phase=phase, reason=view.reason, message=view.message
    )
