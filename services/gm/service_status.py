"""From what nodes report to the one status that users see. Pure.

``conditions`` follow the seed: each type stands once, the current one is last. No other phase has status "True";
``Drift`` is no phase, and has a status of its own.

What the phases of a service mean:

- Running: every expected worker runs the present generation.
- Degraded: an edge worker runs, so samples are answered, but something else is not as asked. A worker needs no word of
  its node for that: where one ran in this generation when its node fell silent, it is taken to run still.
- Pending: no edge worker runs yet; something is missing, away or still starting. Heals by itself or when it appears.
- Failed: no edge worker runs, and a worker has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from halimede.messages import Condition, Metric, ModelInUse, NodeStatus, NodeSummary, Status, TaskInfo, WorkerReport
from halimede.messages.counters import Count, ExportedBy
from halimede.stats import histogram
from halimede.stats.agreement import Estimate, agreement_of
from halimede.stats.totals import add_up
from services.gm.cluster.port import NodeReport
from services.gm.nodes import Node
from services.gm.reference_index import Roles
from services.gm.workloads.pod_status import PodView

#: nodes in one status: it stays far below the size limits of messages and of objects
MAX_SHOWN_NODES = 100
#: the phase of a node that a service has left
LEFT = "Left"
#: the condition that samples are no longer what the service was calibrated for, and its reasons
DRIFT = "Drift"
DRIFT_BEGUN, DRIFT_OVER = "SamplesChanged", "SamplesAsCalibrated"
NO_DISTRIBUTIONS = dict.fromkeys(("edge_latency", "offload_latency", "queue_latency", "compute_latency"))
#: shown behind a counter: what is derived from it, or goes down again
SHOWN_BEHIND = {Count.ANSWERED: "edge_inference_number", Count.MINING_ERRORS: "queued"}
#: what is only on its way from one generation to the next
UPDATING = "Updating"
#: roles of which a service stands as long as one worker runs: users get answers of it
ANSWERING = frozenset({"edge", "serve"})
#: a worker answers with another model than it was asked to, for the one that it was asked for is no good
REFUSED = "RolloutFailed"
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
    def reported(self) -> NodeStatus | None:
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
    told = share.reported
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
            elif worker.reason:
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


def _shown() -> Iterator[str]:
    """Return the fields of TaskInfo that a service's status shows, in this order."""
    for count in Count:
        if ExportedBy.SERVICE in count.exported_by:
            yield count.field
        if count in SHOWN_BEHIND:
            yield SHOWN_BEHIND[count]
    yield "drifting"


#: key in the status, field of TaskInfo
_KEYS = {field.name: field.encode_name for field in msgspec.structs.fields(TaskInfo)}
COUNTS = {_KEYS[name]: name for name in _shown()}
QUANTILES = {"P50Ms": 0.5, "P99Ms": 0.99}


def joint_accuracy(infos: Iterable[TaskInfo]) -> Estimate | None:
    """Estimate how often a service's answers are the cloud's, from its edge workers' audits; None without any."""
    found = list(infos)
    # without an audit there is nothing to add up, and mostly there is none
    return agreement_of(add_up(found)) if any(info.audited for info in found) else None


def metrics(
    infos: Iterable[TaskInfo], work: Iterable[TaskInfo] = (), agreement: Estimate | None = None
) -> list[Metric]:
    """Add up what edge workers have counted, and how long cloud workers (``work``, of any node) took.

    A sample is counted where it was accepted.

    ``uploadCloudRatio`` is the share of all samples that went up to the cloud: the workers' own ratios, each weighted
    with its samples. ``jointAccuracy`` (``agreement``) and the ends of its 95 % interval appear with the first audit.
    Latencies are in milliseconds and appear with the first sample.
    """
    counted, worked = list(infos), list(work)
    found = [Metric(key=key, value=str(sum(getattr(info, name) for info in counted))) for key, name in COUNTS.items()]
    samples = sum(info.inference_number for info in counted)
    uploaded = sum(info.upload_cloud_ratio * info.inference_number for info in counted)
    found.append(Metric(key="uploadCloudRatio", value=_text(uploaded / samples if samples else 0.0)))
    if agreement:
        ends = {
            "jointAccuracy": agreement.value,
            "jointAccuracyLow": agreement.low,
            "jointAccuracyHigh": agreement.high,
        }
        found += [Metric(key=key, value=_text(value)) for key, value in ends.items()]
    for prefix, merged in (
        ("edgeLatency", histogram.merge(info.edge_latency for info in counted)),
        ("offloadLatency", histogram.merge(info.offload_latency for info in counted)),
        ("queueLatency", histogram.merge(info.queue_latency for info in worked)),
        ("computeLatency", histogram.merge(info.compute_latency for info in worked)),
    ):
        for suffix, share in QUANTILES.items():
            value = histogram.quantile(merged, share)
            if value is not None:
                found.append(Metric(key=prefix + suffix, value=_text(value)))
    return found


def _text(value: float) -> str:
    """Four digits behind the point, without trailing zeros."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def service_status(
    *,
    generation: int,
    shown: int | None = None,
    shares: Sequence[Share],
    left: Iterable[NodeReport],
    missing: Sequence[Problem],
    previous: Status | None,
    now: str,
    pods: Sequence[PodView] | None = None,
    wanted: Mapping[str, int] | None = None,
) -> Status:
    """Return a service's status.

    ``generation`` is what nodes are sent, ``shown`` what the user knows, where that is another. ``left`` are
    reports of nodes that no longer belong to it: only their counts matter. ``missing`` are the things
    that it refers to and that are not there. With ``pods`` it is they that run, so many of each role as are
    ``wanted``, and the nodes' reports give the counts alone.
    """
    tally = ReadinessTally()
    if pods is None:
        for share in shares:
            count_share(share, generation, tally)
    else:
        count_pods(pods, wanted or {}, tally)
    gone = list(left)
    shown_first = sorted(shares, key=lambda share: share.reported is not None and share.reported.phase == "Running")
    summaries = [_summary(share) for share in shown_first[:MAX_SHOWN_NODES]]
    summaries += [_left(report) for report in gone if report.edge and report.status.output]
    counting = [share.report for share in shares if share.report and ("edge" in share.roles or share.report.edge)]
    counting += [report for report in gone if report.edge]
    here = [share.report for share in shares if share.report]
    working = [*here, *gone]
    agreement = joint_accuracy(info for report in counting for info in _edge_infos(report))
    started = previous.start_time if previous else ""
    status = Status(
        active=tally.active,
        failed=len(tally.failed),
        start_time=started or (now if tally.active else ""),
        metrics=metrics(_task_infos(counting), _task_infos(working), agreement),
        nodes=summaries[:MAX_SHOWN_NODES],
    )
    known = generation if shown is None else shown
    status = conclude(status, judge(tally, missing), previous, known, now)
    drift = _drift_condition(status.conditions, _task_infos(here), agreement, known, now)
    others = [condition for condition in status.conditions if condition.type != DRIFT]
    return msgspec.structs.replace(status, conditions=[*others[:-1], *filter(None, [drift]), others[-1]])


def conclude(status: Status, verdict: Readiness, previous: Status | None, generation: int, now: str) -> Status:
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
    if condition.status == "False" or condition.type == DRIFT:
        return condition
    return msgspec.structs.replace(condition, status="False", last_heartbeat_time=now, last_transition_time=now)


def _summary(share: Share) -> NodeSummary:
    told = share.reported
    return NodeSummary(
        node=share.node,
        online=share.online,
        phase=told.phase if told else "Pending",
        reason=told.reason if told else "",
        message=told.message if told else "",
        workers=sum(w.phase == "Running" for w in told.workers) if told else 0,
        task_info=_plain(share.report),
    )


def _left(report: NodeReport) -> NodeSummary:
    """Say what a node has counted that does not belong to the service any more: its counts go on counting."""
    return NodeSummary(node=report.node, online=False, phase=LEFT, task_info=_plain(report))


def _plain(report: NodeReport | None) -> TaskInfo | None:
    """Leave out distributions: they are summed up in the metrics, and a thousand of them would not fit."""
    info = report.task_info if report else None
    return msgspec.structs.replace(info, **NO_DISTRIBUTIONS) if info else None


def _edge_infos(report: NodeReport) -> list[TaskInfo]:
    """Return what a node's edge workers have counted: tiers on the same node have audits of their own."""
    named = [w.task_info for w in report.status.workers if w.role == "edge" and w.task_info]
    return named or _task_infos([report])


def _task_infos(reports: Iterable[NodeReport]) -> list[TaskInfo]:
    return [report.task_info for report in reports if report.task_info]


def _drift_condition(
    earlier: Sequence[Condition],
    counted: Iterable[TaskInfo],
    agreement: Estimate | None,
    generation: int,
    now: str,
) -> Condition | None:
    """Return the condition ``Drift``; None: there has been no drift yet.

    It stands beside the phase: the service runs, but what calibration promised of its answers is in doubt.
    ``counted`` is what workers report, ``agreement`` how often answers are the cloud's.
    """
    before = next((condition for condition in earlier if condition.type == DRIFT), None)
    drifting = sum(info.drifting for info in counted)
    if before is None and not drifting:
        return None
    status: Literal["True", "False"] = "True" if drifting else "False"
    same = before is not None and before.status == status
    return Condition(
        type=DRIFT,
        status=status,
        observed_generation=generation,
        last_heartbeat_time=now,
        last_transition_time=before.last_transition_time if before and same else now,
        reason=DRIFT_BEGUN if drifting else DRIFT_OVER,
        message=_drift_message(drifting, agreement),
    )


def _drift_message(drifting: int, agreement: Estimate | None) -> str:
    found = ""
    if agreement:
        low, high = 100 * agreement.low, 100 * agreement.high
        found = f"; {100 * agreement.value:.1f} % of answers are the cloud's ({low:.1f} to {high:.1f} by audits)"
    if not drifting:
        return f"samples are again as they were when it was calibrated{found}"
    who = "1 worker sees" if drifting == 1 else f"{drifting} workers see"
    return f"{who} other samples than it was calibrated for{found}: calibrate again (`halimede calibrate`)"
