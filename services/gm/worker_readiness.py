"""Counts what of a service runs, and collects what does not, each with its reason. Pure.

Nodes that start workers themselves tell of them in their reports; where a cluster runs pods, the pods do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from halimede.messages import ModelInUse, NodeStatus, WorkerReport
from services.gm.cluster.port import NodeReport
from services.gm.nodes import Node
from services.gm.reference_index import Roles
from services.gm.workloads.pod_status import PodView

#: what is only on its way from one generation to the next
UPDATING = "Updating"
#: roles of which a service stands as long as one worker runs: users get answers of it
ANSWERING = frozenset({"edge", "serve"})
#: a worker answers with another model than it was asked to, for the one that it was asked for is no good
REFUSED = "RolloutFailed"
#: a worker runs, and no frames come from the source that it reads itself
SOURCE_FAILED = "SourceFailed"
#: problems beside the first that a message names
NAMED = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as asked."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """The phase, and why."""

    phase: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """One node's part in a service: its workers there by name or role, and what is known of node and service there."""

    node: str
    roles: Roles
    known: Node | None
    report: NodeReport | None

    @property
    def online(self) -> bool:
        """Whether the node is there."""
        return self.known is not None and self.known.online

    @property
    def told(self) -> NodeStatus | None:
        """What the node last said, unless it has forgotten the service since."""
        return self.report.status if self.report and self.report.live else None


@dataclass(slots=True)
class ReadinessTally:
    """What is found while going through the nodes, each list in the order of the nodes.

    ``active`` workers run; of ``edges`` some may only have run when their node was last heard.
    """

    active: int = 0
    edges: int = 0
    failed: list[Problem] = field(default_factory=list)
    offline: list[Problem] = field(default_factory=list)
    waiting: list[Problem] = field(default_factory=list)


def judge(tally: ReadinessTally, missing: Sequence[Problem]) -> Readiness:
    """Say how a service stands, and why: the first problem, and how many more there are."""
    problems = [*missing, *tally.failed, *tally.offline, *tally.waiting]
    if not problems:
        return Readiness("Running", "AllWorkersRun", f"{tally.active} workers run")
    if tally.edges:
        phase = "Degraded"
    elif missing or not tally.failed:
        phase = "Pending"
    else:
        phase = "Failed"
    first, others = problems[0], list(dict.fromkeys(problem.reason for problem in problems[1:]))
    more = f" (and {len(problems) - 1} more: {', '.join(others[:NAMED])})" if others else ""
    return Readiness(phase, first.reason, first.message + more)


def count_share(share: Share, generation: int, tally: ReadinessTally) -> None:
    """Count a node that starts workers itself."""
    if share.known is None:
        return  # named and never seen: that is among what is missing
    told = share.told
    if not share.online:
        gone = f"node {share.node} is offline (gone for good: `halimede delete node {share.node}`)"
        tally.offline.append(Problem("NodeOffline", gone))
        if told is not None and told.observed_generation >= generation:
            tally.edges += any(w.role in ANSWERING and w.phase == "Running" for w in told.workers)
        return
    if told is None:
        tally.waiting.append(Problem("WaitingForNode", f"node {share.node} has not reported on it yet"))
        return
    before = len(tally.failed) + len(tally.waiting)
    for role in sorted(share.roles):
        worker = next((w for w in told.workers if (w.part or w.role) == role), None)
        phase = worker.phase if worker else told.phase
        if worker and phase == "Running":
            tally.active += 1
            tally.edges += worker.role in ANSWERING
            if worker.model and worker.model.refused:
                tally.waiting.append(_refusal(role, share.node, worker.model))
            elif worker.reason in {REFUSED, SOURCE_FAILED}:
                tally.waiting.append(_trouble(role, share.node, worker, told, worker.reason))
        elif phase == "Failed":
            tally.failed.append(_trouble(role, share.node, worker, told, "WorkerFailed"))
        else:
            tally.waiting.append(_trouble(role, share.node, worker, told, "WorkerNotUp"))
    if told.observed_generation < generation:
        text = f"node {share.node} still has generation {told.observed_generation} of {generation}"
        tally.waiting.append(Problem(UPDATING, text))
    elif told.phase != "Running" and len(tally.failed) + len(tally.waiting) == before:
        # its workers run, but the node could not do all that it was asked: such as an update that failed
        text = f"node {share.node}: {told.message or told.phase}"
        tally.waiting.append(Problem(told.reason or "NodeNotReady", text))


def _refusal(role: str, node: str, model: ModelInUse) -> Problem:
    """Say which model a worker did not take, and why."""
    kept = model.version or model.digest[:12] or "the one before"
    why = ": ".join(part for part in (model.reason, model.message) if part) or "it is no good"
    return Problem(
        REFUSED, f"{role} worker on node {node} goes on with {kept}: {model.refused[:12]} was not taken: {why}"
    )


def _trouble(role: str, node: str, worker: WorkerReport | None, told: NodeStatus, otherwise: str) -> Problem:
    """Say what a worker's LC says about it, the node's word where there is no worker."""
    source = worker or told
    message = source.message or told.message or "not running"
    return Problem(source.reason or told.reason or otherwise, f"{role} worker on node {node}: {message}")


def count_pods(views: Sequence[PodView], wanted: Mapping[str, int], tally: ReadinessTally) -> None:
    """Count pods. ``wanted`` is how many each worker shall have; those that have no Deployment yet are left out."""
    for role, number in sorted(wanted.items(), reverse=True):
        pods = [view for view in views if view.of == role]
        up = [view for view in pods if view.phase == "Running" and view.ready]
        tally.active += len(up)
        tally.edges += sum(view.role in ANSWERING for view in up)
        tally.failed += [_pod_trouble(view, "WorkerFailed") for view in pods if view.phase == "Failed"]
        if sum(view.current for view in up) >= number:
            continue
        starting = [view for view in pods if view not in up and view.phase != "Failed"]
        if starting:
            tally.waiting.append(_pod_trouble(starting[0], "WorkerNotUp"))
        elif up:
            text = f"{role} worker: {sum(view.current for view in up)} of {number} pods run the present generation"
            tally.waiting.append(Problem(UPDATING, text))
        elif not pods:
            tally.waiting.append(Problem("WorkerNotUp", f"{role} worker: there is no pod yet"))


def _pod_trouble(view: PodView, otherwise: str) -> Problem:
    where = f" on node {view.node}" if view.node else ""
    return Problem(view.reason or otherwise, f"{view.of} worker: pod {view.name}{where}: {view.message or 'not ready'}")
