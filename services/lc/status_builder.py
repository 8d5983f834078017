"""Builds one node's report on one resource, from the plan and its workers' states. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import msgspec

from halimede.messages import DatasetFacts, ModelFacts, NodeStatus, Output, TaskInfo, WorkerReport
from halimede.stats import histogram
from halimede.stats.totals import add_up
from services.lc.paths import Worker
from services.lc.planning.resource_state import Lack, ResourceState
from services.lc.supervisor.process import Role
from services.lc.supervisor.worker_state import WorkerPhase

WORST_FIRST = ("Failed", "Pending", "Running", "Ready")
STARTING = Lack("Pending", "Starting", "")
#: characters that a report has room for
MAX_REASON, MAX_MESSAGE = 256, 4096


def compose(
    standing: ResourceState, reports: Mapping[Worker, WorkerReport], counts: Mapping[Worker, TaskInfo]
) -> NodeStatus:
    """Return the report on a resource from what the plan says of it and how its workers stand. Pure."""
    workers: list[WorkerReport] = []
    views: list[Lack] = [standing.settled] if standing.settled else []
    for worker, role in standing.workers.items():
        lack = standing.lacks.get(worker)
        report = reports.get(worker)
        view = lack or (Lack(report.phase, report.reason, report.message) if report else STARTING)
        views.append(view)
        told = report or _absent(worker, role, view)
        if part := standing.parts.get(worker):
            told = msgspec.structs.replace(told, part=part, task_info=counts.get(worker))
        workers.append(told)
    return status_of(standing, views, workers, _counts(standing, counts))


def status_of(
    standing: ResourceState, views: Sequence[Lack], workers: Sequence[WorkerReport], counts: TaskInfo | None
) -> NodeStatus:
    """Return a report whose phase is the worst of ``views`` (at least one)."""
    worst = min(views, key=lambda view: (WORST_FIRST.index(view.phase), not view.reason))
    models = list(standing.models)
    return NodeStatus(
        phase=worst.phase,
        status=worst.phase.lower(),
        output=Output(models=models, task_info=counts) if models or counts else None,
        uid=standing.uid,
        observed_generation=standing.generation,
        reason=worst.reason[:MAX_REASON],
        message=worst.message[:MAX_MESSAGE],
        workers=list(workers),
        model=standing.facts if isinstance(standing.facts, ModelFacts) else None,
        dataset=standing.facts if isinstance(standing.facts, DatasetFacts) else None,
    )


def add_roles(edge: Collection[TaskInfo], cloud: Collection[TaskInfo]) -> TaskInfo | None:
    """Add up both roles. A sample counts where it came in: beside edge workers, cloud ones add their work alone."""
    counting = edge or cloud
    if not counting:
        return None
    added, work = add_up(counting), [*edge, *cloud]
    if len(work) == len(counting):
        return added  # all work is counted already
    added.served, added.batches = sum(i.served for i in work), sum(i.batches for i in work)
    added.queue_latency = histogram.merge(i.queue_latency for i in work)
    added.compute_latency = histogram.merge(i.compute_latency for i in work)
    return added


def _counts(standing: ResourceState, counts: Mapping[Worker, TaskInfo]) -> TaskInfo | None:
    """Add up the counts of the workers that should run.

    An edge worker that has said nothing yet (it has just been started, or adopted) leaves the counts out: they are
    not known, which is not the same as zero.
    """
    known = {
        role: [counts[worker] for worker, its in standing.workers.items() if its == role and worker in counts]
        for role in get_args(Role)
    }
    edges = sum(role == "edge" for role in standing.workers.values())
    return None if len(known["edge"]) < edges else add_roles(known["edge"], known["cloud"])


def _absent(worker: Worker, role: Role, view: Lack) -> WorkerReport:
    """Report a worker that no process stands for."""
    phase: WorkerPhase = "Failed" if view.phase == "Failed" else "Pending"
    return WorkerReport(
        name=worker.name, role=role, phase=phase, reason=view.reason[:MAX_REASON], message=view.message[:MAX_MESSAGE]
    )
