"""Multi-edge inference services: several edge workers with names of their own, and one where findings come together.

Several of them may be of one role and on one node, so besides what is said of all services each worker has its own
word in the status, in the seed's form: phase, and output with models and task info.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.model import PLURAL as MODELS
from halimede.api.multiedge import PLURAL
from halimede.api.placement import Placement, placements
from halimede.counts import add_up
from halimede.errors import hide_secrets
from halimede.messages import ModelOutput, Output, Status, TaskInfo, WorkerReport, WorkerSummary
from halimede.names import Key
from services.gm.cluster.port import Report
from services.gm.controllers.base import Observed, register
from services.gm.controllers.workers import WorkersController
from services.gm.status import MAX_SHOWN_NODES, NO_DISTRIBUTIONS
from services.gm.workloads.objects import Built
from services.gm.workloads.pods import PodView, read_pods


@register(PLURAL)
class MultiEdgeController(WorkersController):
    """The rules of multi-edge inference services."""

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Sum up its nodes or pods, and say of each worker how it fares."""
        status = super().status(desired, observed, built)
        places = placements(desired.spec)
        found = _by_nodes(places, observed) if built is None else _by_pods(places, observed)
        named = {place.name: place for place in places}
        explained = [(_explained(said, named[said.name], desired, observed), info) for said, info in found]
        workers = sorted(explained, key=lambda each: each[0].phase == "Running")
        models = {place.name: list(_models(desired, place, observed)) for place in places}
        counted = [info for report in observed.reports.values() if (info := _counts(report)) and report.edge]
        return msgspec.structs.replace(
            status,
            workers=[
                msgspec.structs.replace(said, output=Output(models=models[said.name], task_info=info and _plain(info)))
                for said, info in workers[:MAX_SHOWN_NODES]
            ],
            output=Output(models=_once(models.values()), task_info=_plain(add_up(counted)) if counted else None),
        )


Said = tuple[WorkerSummary, TaskInfo | None]


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


def _reported(report: Report, place: Placement) -> WorkerReport | None:
    return next((worker for worker in report.status.workers if worker.part == place.name), None)


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


def _models(desired: Resource[Any], place: Placement, observed: Observed) -> Iterator[ModelOutput]:
    for name in place.models:
        model = observed.references.get(Key(MODELS, desired.metadata.namespace, name))
        if model is not None:
            yield ModelOutput(format=model.spec.format, url=hide_secrets(model.spec.url))


def _once(models: Iterable[Iterable[ModelOutput]]) -> list[ModelOutput]:
    found = {(model.format, model.url): model for several in models for model in several}
    return list(found.values())[:64]


def _plain(info: TaskInfo) -> TaskInfo:
    """Leave out distributions: they are summed up in the metrics."""
    return msgspec.structs.replace(info, **NO_DISTRIBUTIONS)


def _counts(report: Report) -> TaskInfo | None:
    return report.status.output.task_info if report.status.output else None
