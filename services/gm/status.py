"""From what nodes report to the one status that users see. Pure.

``conditions`` follow the seed: each type stands once, the current one is last and alone has status "True".

What the phases of a service mean:

- Running: every expected worker runs the present generation.
- Degraded: an edge worker runs, so samples are answered, but something else is not as asked. A worker needs no word of
  its node for that: where one ran in this generation when its node fell silent, it is taken to run still.
- Pending: no edge worker runs yet; something is missing, away or still starting. Heals by itself or when it appears.
- Failed: no edge worker runs, and a worker has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from halimede.messages import Condition, NodeStatus, NodeSummary, Status, TaskInfo, WorkerReport
from services.gm.cluster.port import Report
from services.gm.index import Roles
from services.gm.metrics import metrics
from services.gm.nodes import Node

#: nodes in one status document: it stays far below the size limit of a message
MAX_SHOWN_NODES = 1000
NO_DISTRIBUTIONS = dict.fromkeys(("edge_latency", "offload_latency", "queue_latency", "compute_latency"))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as asked."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The phase, and why."""

    phase: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """One node's part in a service: its roles there, and what is known of node and service there."""

    node: str
    roles: Roles
    known: Node | None
    report: Report | None

    @property
    def online(self) -> bool:
        """Whether the node is there."""
        return self.known is not None and self.known.online

    @property
    def told(self) -> NodeStatus | None:
        """What the node last said, unless it has forgotten the service since."""
        return self.report.status if self.report and self.report.live else None


@dataclass(slots=True)
class _Tally:
    """What is found while going through the nodes, each list in the order of the nodes.

    ``active`` workers run; of ``edges`` some may only have run when their node was last heard.
    """

    active: int = 0
    edges: int = 0
    failed: list[Problem] = field(default_factory=list)
    offline: list[Problem] = field(default_factory=list)
    waiting: list[Problem] = field(default_factory=list)


def service_status(
    *,
    generation: int,
    shares: Sequence[Share],
    left: Iterable[Report],
    missing: Sequence[Problem],
    previous: Status | None,
    now: str,
) -> Status:
    """Return a service's status.

    ``left`` are reports of nodes that no longer belong to it: only their counts matter. ``missing`` are the things
    that it refers to and that are not there.
    """
    tally = _Tally()
    for share in shares:
        _count(share, generation, tally)
    summaries = sorted((_summary(share) for share in shares), key=lambda s: s.phase == "Running")
    counting = [share.report for share in shares if share.report and ("edge" in share.roles or share.report.edge)]
    gone = list(left)
    counting += [report for report in gone if report.edge]
    working = [*(share.report for share in shares if share.report), *gone]
    started = previous.start_time if previous else ""
    status = Status(
        active=tally.active,
        failed=len(tally.failed),
        start_time=started or (now if tally.active else ""),
        metrics=metrics(_task_infos(counting), _task_infos(working)),
        nodes=summaries[:MAX_SHOWN_NODES],
    )
    return conclude(status, _judge(tally, missing), previous, generation, now)


def conclude(status: Status, verdict: Verdict, previous: Status | None, generation: int, now: str) -> Status:
    """Return ``status`` with phase and conditions of the verdict."""
    earlier = previous.conditions if previous else []
    same = next((c for c in earlier if c.type == verdict.phase and c.status == "True"), None)
    current = Condition(
        type=verdict.phase,
        observed_generation=generation,
        last_heartbeat_time=now,
        last_transition_time=same.last_transition_time if same else now,
        reason=verdict.reason[:256],
        message=verdict.message[:4096],
    )
    over = [_over(condition, now) for condition in earlier if condition.type != verdict.phase]
    return msgspec.structs.replace(
        status, phase=verdict.phase, observed_generation=generation, conditions=[*over, current]
    )


def _over(condition: Condition, now: str) -> Condition:
    if condition.status == "False":
        return condition
    return msgspec.structs.replace(condition, status="False", last_heartbeat_time=now, last_transition_time=now)


def _judge(tally: _Tally, missing: Sequence[Problem]) -> Verdict:
    problems = [*missing, *tally.failed, *tally.offline, *tally.waiting]
    if not problems:
        return Verdict("Running", "AllWorkersRun", f"{tally.active} workers run")
    if tally.edges:
        phase = "Degraded"
    elif missing or not tally.failed:
        phase = "Pending"
    else:
        phase = "Failed"
    first, more = problems[0], len(problems) - 1
    return Verdict(phase, first.reason, first.message + (f" (and {more} more)" if more else ""))


def _count(share: Share, generation: int, tally: _Tally) -> None:
    if share.known is None:
        return  # named and never seen: that is among what is missing
    told = share.told
    if not share.online:
        gone = f"node {share.node} is offline (gone for good: `halimede delete node {share.node}`)"
        tally.offline.append(Problem("NodeOffline", gone))
        if told is not None and told.observed_generation >= generation:
            tally.edges += any(worker.role == "edge" and worker.phase == "Running" for worker in told.workers)
        return
    if told is None:
        tally.waiting.append(Problem("WaitingForNode", f"node {share.node} has not reported on it yet"))
        return
    before = len(tally.failed) + len(tally.waiting)
    for role in sorted(share.roles):
        worker = next((w for w in told.workers if w.role == role), None)
        phase = worker.phase if worker else told.phase
        if worker and phase == "Running":
            tally.active += 1
            tally.edges += role == "edge"
        elif phase == "Failed":
            tally.failed.append(_trouble(role, share.node, worker, told, "WorkerFailed"))
        else:
            tally.waiting.append(_trouble(role, share.node, worker, told, "WorkerNotUp"))
    if told.observed_generation < generation:
        text = f"node {share.node} still has generation {told.observed_generation} of {generation}"
        tally.waiting.append(Problem("Updating", text))
    elif told.phase != "Running" and len(tally.failed) + len(tally.waiting) == before:
        # its workers run, but the node could not do all that it was asked: such as an update that failed
        text = f"node {share.node}: {told.message or told.phase}"
        tally.waiting.append(Problem(told.reason or "NodeNotReady", text))


def _trouble(role: str, node: str, worker: WorkerReport | None, told: NodeStatus, otherwise: str) -> Problem:
    """Say what a worker's LC says about it, the node's word where there is no worker."""
    source = worker or told
    message = source.message or told.message or "not running"
    return Problem(source.reason or told.reason or otherwise, f"{role} worker on node {node}: {message}")


def _summary(share: Share) -> NodeSummary:
    told = share.told
    info = next(_task_infos([share.report] if share.report else []), None)
    return NodeSummary(
        node=share.node,
        online=share.online,
        phase=told.phase if told else "Pending",
        reason=told.reason if told else "",
        message=told.message if told else "",
        workers=sum(w.phase == "Running" for w in told.workers) if told else 0,
        # distributions are summed up in the metrics; a thousand of them would not fit
        task_info=msgspec.structs.replace(info, **NO_DISTRIBUTIONS) if info else None,
    )


def _task_infos(reports: Iterable[Report]) -> Iterator[TaskInfo]:
    for report in reports:
        if report.status.output and report.status.output.task_info:
            yield report.status.output.task_info
