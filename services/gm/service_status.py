"""Computes the status of a service from the reports of nodes (``service_status``). Pure.

A condition is a fact with a reason, a message and times. In ``Status.conditions`` each type stands once, and the
present phase is last; no other phase has status "True". ``Drift``, ``Overload`` and ``Code`` are not phases, and have
their own status.

What the phases of a service mean (the server of an InferenceModel counts as an edge worker):

- Running: every expected worker runs the present generation.
- Degraded: an edge worker runs, so samples are answered, but something else differs from the spec. If a worker ran in
  this generation when its node went offline, it is assumed to run still; so is one whose node Kubernetes does not
  reach, by the last report of that node's local controller.
- Pending: no edge worker runs yet, or no cloud worker of a joint inference service has ever started; something is
  missing, offline or still starting. Recovers by itself or when that appears.
- Failed: no edge worker runs, a worker has failed, nothing that the service names is missing, and no edge worker may
  run on a node that is not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from halimede.health_checks.nodes import GONE_FOR_GOOD
from halimede.health_checks.resources import CONDITIONS
from halimede.messages import Condition, Metric, ModelInUse, NodeStatus, NodeSummary, Status, TaskInfo, WorkerReport
from halimede.messages.counters import Count, ExportedBy
from halimede.messages.operator import OVERLOAD
from halimede.stats import histogram
from halimede.stats.agreement import Estimate, agreement_of
from halimede.stats.totals import RATES, add_up
from services.gm.cluster.port import NodeReport
from services.gm.nodes import Node
from services.gm.reference_index import Roles
from services.gm.workloads.pod_status import UNREACHED, PodView

#: most nodes in one status: the limit keeps it far below the size limits of messages and of objects
MAX_SHOWN_NODES = 100
#: the phase of a node where the service is no longer placed
LEFT_PHASE = "Left"
#: the condition that samples have changed since the service was calibrated, and its reasons
DRIFT = "Drift"
DRIFT_BEGUN, DRIFT_OVER = "SamplesChanged", "SamplesAsCalibrated"
#: reasons of the condition that the next tier takes fewer samples than are hard
OVERLOAD_BEGUN, OVERLOAD_OVER = "CloudTooSlow", "CloudFastEnough"
#: the condition that a Python file that the service names has changed on a node, its reason, and characters of a digest
#: that its message shows
CODE, CODE_CHANGED, SHORT = "Code", "CodeChanged", 12
#: conditions that are independent of the phase
NOT_PHASES = (DRIFT, OVERLOAD, CODE)
#: changes of a TaskInfo that remove its distributions, which take much space
NO_DISTRIBUTIONS = dict.fromkeys(("edge_latency", "offload_latency", "queue_latency", "compute_latency"))
#: field of TaskInfo that a status shows after a counter: it is derived from the counter, or may fall
SHOWN_BEHIND = {Count.ANSWERED: "edge_inference_number", Count.MINING_ERRORS: "queued"}
#: the reason of a state that only lasts from one generation to the next
UPDATING = "Updating"
#: roles of which one running worker suffices for the service to answer users
ANSWERING = frozenset({"edge", "serve"})
#: the reason if a worker keeps another model than the desired one, because the desired one failed
REFUSED = "RolloutFailed"
#: the name of a joint inference service's cloud worker, and phases in which one has started
CLOUD, STARTED = "cloud", frozenset({"Running", "Degraded"})
#: reasons of further problems that a message names
NAMED = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference from the spec: a reason in one word such as ``ModelNotFound``, and a message for users."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """The phase of a resource, with its reason in one word and a message for users."""

    phase: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """One node's part in a service.

    Attributes:
        node: its name.
        roles: the workers that shall run there, each by its name in the service, else its role.
        state: the node as GM knows it; None: it has never connected.
        report: its last report on the service; None: there is none.

    """

    node: str
    roles: Roles
    state: Node | None
    report: NodeReport | None

    @property
    def online(self) -> bool:
        """Whether the node is online, and ready in the Kubernetes cluster if there is one."""
        return self.state is not None and self.state.online and not self.state.unready

    @property
    def reported(self) -> NodeStatus | None:
        """The node's last report; None: there is none, or the node no longer holds the service."""
        return self.report.status if self.report and self.report.live else None

    @property
    def clouds(self) -> int:
        """The number of cloud workers that have started there, whether or not they run."""
        clouds = (w for w in (self.reported.workers if self.reported else ()) if (w.part or w.role) == CLOUD)
        return sum(w.phase != "Pending" or w.restarts > 0 for w in clouds)


@dataclass(slots=True)
class ReadinessTally:
    """The counts of workers and the problems of all nodes, each list in the order of the nodes.

    Attributes:
        active: workers that run.
        edges: edge workers that run, and nodes on which one ran when they went offline.
        doubtful: edge workers that may run on a node that Kubernetes does not reach.
        clouds: cloud workers that have started, whether or not they run.
        failed: problems of workers that have failed.
        offline: problems of nodes that are offline or not reached.
        waiting: problems that may end by themselves, and differences from the spec of workers that run.

    """

    active: int = 0
    edges: int = 0
    doubtful: int = 0
    clouds: int = 0
    failed: list[Problem] = field(default_factory=list)
    offline: list[Problem] = field(default_factory=list)
    waiting: list[Problem] = field(default_factory=list)


def judge(tally: ReadinessTally, missing: Sequence[Problem], *, started: bool = True) -> Readiness:
    """Return the phase of a service, with a message: all that is missing, else the first problem; and how many more.

    ``missing``: what the service names and does not exist, or what was refused. ``started``: whether a cloud worker has
    started, or the service needs none.
    """
    problems = [*tally.failed, *tally.offline, *tally.waiting]
    if not missing and not problems:
        return Readiness("Running", "AllWorkersRun", f"{tally.active} workers are running")
    if tally.edges and started:
        phase = "Degraded"
    elif tally.edges or tally.doubtful or missing or not tally.failed:
        phase = "Pending"
    else:
        phase = "Failed"
    # what a user has to correct is named in full: whoever corrects one field must not then hear of the next
    named = missing or problems[:1]
    remaining = problems if missing else problems[1:]
    reasons = list(dict.fromkeys(problem.reason for problem in remaining))
    more = f" (and {len(remaining)} more: {', '.join(reasons[:NAMED])})" if reasons else ""
    text = "; ".join(dict.fromkeys(problem.message for problem in named))
    return Readiness(phase, named[0].reason, text + more)


def count_share(share: Share, generation: int, tally: ReadinessTally) -> None:
    """Add a node's workers and problems to ``tally``: it starts workers itself. ``generation``: the desired one."""
    if share.state is None:
        return  # a named node that was never online is among the missing resources
    status = share.reported
    tally.clouds += share.clouds
    if not share.online:
        remedy = GONE_FOR_GOOD.format(node=share.node)
        tally.offline.append(Problem("NodeOffline", f"node {share.node} is offline ({remedy})"))
        if status is not None and status.observed_generation >= generation:
            tally.edges += any(w.role in ANSWERING and w.phase == "Running" for w in status.workers)
        return
    if status is None:
        tally.waiting.append(Problem("WaitingForNode", f"node {share.node} has not reported its state yet"))
        return
    before = len(tally.failed) + len(tally.waiting)
    for role in sorted(share.roles):
        worker = next((w for w in status.workers if (w.part or w.role) == role), None)
        phase = worker.phase if worker else status.phase
        if worker and phase == "Running":
            tally.active += 1
            tally.edges += worker.role in ANSWERING
            if worker.model and worker.model.refused:
                tally.waiting.append(_refusal(role, share.node, worker.model))
            elif worker.reason:
                tally.waiting.append(_trouble(role, share.node, worker, status, worker.reason))
        elif phase == "Failed":
            tally.failed.append(_trouble(role, share.node, worker, status, "WorkerFailed"))
        else:
            tally.waiting.append(_trouble(role, share.node, worker, status, "WorkerNotUp"))
    if status.observed_generation < generation:
        text = f"node {share.node} has generation {status.observed_generation}, not yet {generation}"
        tally.waiting.append(Problem(UPDATING, text))
    elif status.phase != "Running" and len(tally.failed) + len(tally.waiting) == before:
        # its workers run, but the node could not apply everything, such as an update that failed
        text = f"node {share.node}: {status.message or status.phase}"
        tally.waiting.append(Problem(status.reason or "NodeNotReady", text))


def _refusal(role: str, node: str, model: ModelInUse) -> Problem:
    """Return the problem that a worker keeps its model because it refused another one, with the reason."""
    present = model.version or model.digest[:12] or "the previous version"
    why = ": ".join(part for part in (model.reason, model.message) if part) or "no reason"
    return Problem(REFUSED, f"{role} worker on node {node} keeps {present}: {model.refused[:12]} was refused: {why}")


def _trouble(role: str, node: str, worker: WorkerReport | None, status: NodeStatus, otherwise: str) -> Problem:
    """Return the problem of a worker, or without one the node's, as reported; ``otherwise``: the reason if none is."""
    source = worker or status
    message = source.message or status.message or "not running"
    return Problem(source.reason or status.reason or otherwise, f"{role} worker on node {node}: {message}")


def count_pods(
    views: Sequence[PodView], numbers: Mapping[str, int], held_back: Mapping[str, Problem], tally: ReadinessTally
) -> None:
    """Add pods and their problems to ``tally``.

    ``numbers``: the desired number of pods of each worker that has a Deployment, by its name. ``held_back``: the reason
    of each worker whose next pod is made to wait.
    """
    unreached: dict[str, list[PodView]] = {}
    # in reverse order of the names, so that the problems of ``edge`` come before those of ``cloud``
    for role, number in sorted(numbers.items(), reverse=True):
        pods = [view for view in views if view.worker_name == role]
        if sum(view.up and view.current and not view.leaving for view in pods) >= number:
            pods = [view for view in pods if not view.leaving]  # others have replaced them
        up = [view for view in pods if view.up]
        tally.active += len(up)
        tally.edges += sum(view.role in ANSWERING for view in up)
        tally.clouds += sum(role == CLOUD and (view.phase != "Pending" or view.restarts > 0) for view in pods)
        tally.failed += [_pod_trouble(view, "WorkerFailed") for view in pods if view.phase == "Failed"]
        for view in pods:
            if view.unreached:
                tally.doubtful += view.role in ANSWERING
                unreached.setdefault(view.node, []).append(view)
        if sum(view.current for view in up) < number:
            reached = [view for view in pods if not view.unreached]
            tally.waiting += [held_back[role]] if role in held_back else _shortage(role, number, reached, up)
    tally.offline += [_unreached_problem(node, there) for node, there in sorted(unreached.items())]


def _shortage(role: str, number: int, pods: Sequence[PodView], up: Sequence[PodView]) -> Iterator[Problem]:
    """Yield why fewer pods of a worker's present template are up than ``number``; ``up``: those of any template."""
    starting = [view for view in pods if not view.up and view.phase != "Failed"]
    current = sum(view.current for view in up)
    # while another pod is up, one that starts in the usual time is an update, and no trouble
    if starting and not (up and starting[0].starting and not starting[0].late):
        yield _pod_trouble(starting[0], "WorkerNotUp")
    elif up:
        yield Problem(UPDATING, f"{role} worker: {current} of {number} pods run the current generation")
    elif not pods:
        yield Problem("WorkerNotUp", f"{role} worker: no pod yet")


def _unreached_problem(node: str, pods: Sequence[PodView]) -> Problem:
    """Return the problem of a node that Kubernetes does not reach: what runs there continues to run."""
    run = f"{sum(view.up for view in pods)} of {len(pods)} workers there run, by the last report of the node"
    return Problem(UNREACHED, f"Kubernetes does not reach node {node} ({pods[0].message}): {run}")


def _pod_trouble(view: PodView, otherwise: str) -> Problem:
    """Return the problem of a pod; ``otherwise``: its reason if the pod has none."""
    where = f" on node {view.node}" if view.node else ""
    return Problem(
        view.reason or otherwise, f"{view.worker_name} worker: pod {view.name}{where}: {view.message or 'not ready'}"
    )


def _shown_fields() -> Iterator[str]:
    """Yield the fields of TaskInfo that a service's status shows, in this order."""
    for count in Count:
        if ExportedBy.SERVICE in count.exported_by:
            yield count.field
        if count in SHOWN_BEHIND:
            yield SHOWN_BEHIND[count]
    yield "drifting"


#: the names of TaskInfo's fields in JSON, by their names in Python
_KEYS = {field.name: field.encode_name for field in msgspec.structs.fields(TaskInfo)}
#: counts that a status shows: key in the status, and field of TaskInfo
COUNTS = {_KEYS[name]: name for name in _shown_fields()}
#: quantiles of latencies that a status shows: end of the key, and fraction of the samples
QUANTILES = {"P50Ms": 0.5, "P95Ms": 0.95, "P99Ms": 0.99}


def joint_accuracy(infos: Iterable[TaskInfo]) -> Estimate | None:
    """Estimate the fraction of answers that agree with the cloud's, from the counts of edge workers' audits.

    An audit is an easy sample that the cloud answers too. None: there was no audit.
    """
    counts = list(infos)
    # without an audit there is nothing to add up, which is the usual case
    return agreement_of(add_up(counts)) if any(info.audited for info in counts) else None


def metrics(
    infos: Iterable[TaskInfo], work: Iterable[TaskInfo] = (), agreement: Estimate | None = None
) -> list[Metric]:
    """Return the metrics of a service's status, each with a key and a number as text.

    ``infos``: counts of nodes with edge workers, which are added up: a sample is counted where it was accepted.
    ``work``: counts of all nodes, for the times of cloud workers. ``agreement``: as ``joint_accuracy`` returns it.

    ``uploadCloudRatio`` is the fraction of samples that were sent to the cloud: the mean of the workers' own fractions,
    weighted with their samples. ``jointAccuracy`` and the ends of its 95 % interval appear with the first audit.
    Latencies are in milliseconds and appear with the first sample.
    """
    counted, worked = list(infos), list(work)
    shown = [Metric(key=key, value=str(sum(getattr(info, name) for info in counted))) for key, name in COUNTS.items()]
    samples = sum(info.inference_number for info in counted)
    uploaded = sum(info.upload_cloud_ratio * info.inference_number for info in counted)
    shown.append(Metric(key="uploadCloudRatio", value=_text(uploaded / samples if samples else 0.0)))
    if agreement:
        ends = {
            "jointAccuracy": agreement.value,
            "jointAccuracyLow": agreement.low,
            "jointAccuracyHigh": agreement.high,
        }
        shown += [Metric(key=key, value=_text(value)) for key, value in ends.items()]
    for prefix, merged in (
        ("edgeLatency", histogram.merge(info.edge_latency for info in counted)),
        ("offloadLatency", histogram.merge(info.offload_latency for info in counted)),
        ("queueLatency", histogram.merge(info.queue_latency for info in worked)),
        ("computeLatency", histogram.merge(info.compute_latency for info in worked)),
    ):
        for suffix, share in QUANTILES.items():
            value = histogram.quantile(merged, share)
            if value is not None:
                shown.append(Metric(key=prefix + suffix, value=_text(value)))
    return shown


def _text(value: float) -> str:
    """Return a number as text with four decimals, without trailing zeros."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def service_status(
    *,
    generation: int,
    shown: int | None = None,
    shares: Sequence[Share],
    former: Iterable[NodeReport],
    missing: Sequence[Problem],
    previous: Status | None,
    now: str,
    pods: Sequence[PodView] | None = None,
    numbers: Mapping[str, int] | None = None,
    held_back: Mapping[str, Problem] | None = None,
    cloud: bool = False,
) -> Status:
    """Return a service's status.

    ``generation``: in messages to nodes. ``shown``: the user's own generation; None: the same. ``shares``: the nodes
    where the service is placed. ``former``: reports of nodes where it is no longer placed: only their counts matter.
    ``missing``: references that do not exist. ``previous``: the last status; None: there was none. ``now``: RFC 3339.

    ``pods``: the pods of the workers; None: nodes start workers themselves. With pods, the nodes' reports only have
    counts; ``numbers`` and ``held_back`` are those of ``count_pods``. ``cloud``: whether the service counts as started
    only once a cloud worker has started.
    """
    tally = ReadinessTally()
    if pods is None:
        for share in shares:
            count_share(share, generation, tally)
    else:
        count_pods(pods, numbers or {}, held_back or {}, tally)
    former_reports = list(former)
    shown_first = sorted(shares, key=lambda share: share.reported is not None and share.reported.phase == "Running")
    summaries = [node_summary(share) for share in shown_first[:MAX_SHOWN_NODES]]
    summaries += [_former_summary(report) for report in former_reports if report.edge and report.task_info]
    counting = [share.report for share in shares if share.report and ("edge" in share.roles or share.report.edge)]
    counting += [report for report in former_reports if report.edge]
    infos_here = _task_infos(share.report for share in shares if share.report)
    agreement = joint_accuracy(info for report in counting for info in _edge_infos(report))
    accepted = previous.start_time if previous else ""
    started = not cloud or tally.clouds > 0 or any(c.type in STARTED for c in (previous.conditions if previous else ()))
    status = Status(
        active=tally.active,
        failed=len(tally.failed),
        start_time=accepted or now,
        metrics=metrics(_task_infos(counting), [*infos_here, *_task_infos(former_reports)], agreement),
        nodes=summaries[:MAX_SHOWN_NODES],
    )
    shown = generation if shown is None else shown
    status = conclude(status, judge(tally, missing, started=started), previous, shown, now)
    overloaded = [
        info
        for share in shares
        if share.report and (info := share.report.task_info) and info.overloaded and share.online
    ]
    independent = [
        _drift_condition(status.conditions, infos_here, agreement, shown, now),
        _overload_condition(status.conditions, overloaded, shown, now),
        _code_condition(status.conditions, previous.nodes if previous else (), status.nodes, shown, now),
    ]
    phases = [condition for condition in status.conditions if condition.type not in NOT_PHASES]
    return msgspec.structs.replace(status, conditions=[*phases[:-1], *filter(None, independent), phases[-1]])


def conclude(status: Status, verdict: Readiness, previous: Status | None, generation: int, now: str) -> Status:
    """Return ``status`` with the phase of ``verdict``, and its condition after those of the ``previous`` status.

    ``generation``: the user's own one that was observed. ``now``: RFC 3339. The time of the transition stays while the
    phase does. Reason and message are cut to the limits of a condition.
    """
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
    """Return an earlier condition as it is after the end of its phase."""
    if condition.status == "False" or condition.type in NOT_PHASES:
        return condition
    return msgspec.structs.replace(condition, status="False", last_heartbeat_time=now, last_transition_time=now)


def node_summary(share: Share) -> NodeSummary:
    """Return the state of a service on a node, with its counts but without distributions."""
    status = share.reported
    return NodeSummary(
        node=share.node,
        online=share.online,
        phase=status.phase if status else "Pending",
        reason=status.reason if status else "",
        message=status.message if status else "",
        workers=sum(w.phase == "Running" for w in status.workers) if status else 0,
        task_info=_plain(share.report),
        code=status.code if status else {},
    )


def _former_summary(report: NodeReport) -> NodeSummary:
    """Return the summary of a node where the service is no longer placed: only its counts are of interest."""
    return NodeSummary(node=report.node, online=False, phase=LEFT_PHASE, task_info=_plain(report))


def _plain(report: NodeReport | None) -> TaskInfo | None:
    """Return the counts without distributions: the metrics have them, and a thousand of them would not fit."""
    info = report.task_info if report else None
    return msgspec.structs.replace(info, **NO_DISTRIBUTIONS) if info else None


def _edge_infos(report: NodeReport) -> list[TaskInfo]:
    """Return the counts of a node's edge workers; without their own ones, those of all its workers."""
    return [w.task_info for w in report.status.workers if w.role == "edge" and w.task_info] or _task_infos([report])


def _task_infos(reports: Iterable[NodeReport]) -> list[TaskInfo]:
    """Return the counts of those reports that have any."""
    return [info for report in reports if (info := report.task_info)]


def _drift_condition(
    earlier: Sequence[Condition], counted: Iterable[TaskInfo], agreement: Estimate | None, generation: int, now: str
) -> Condition | None:
    """Return the condition ``Drift``: samples differ from those of the calibration. None: there was no drift yet.

    The service runs, but the accuracy that calibration has measured is in doubt. ``earlier``: the conditions before.
    ``counted``: the workers' counts. ``agreement``: the fraction of answers that agree with the cloud's, if known.
    """
    drifting = sum(info.drifting for info in counted)
    reason = DRIFT_BEGUN if drifting else DRIFT_OVER
    condition = Condition(type=DRIFT, reason=reason, message=_drift_message(drifting, agreement))
    return _with_times(condition, earlier, generation, now, is_active=drifting > 0)


def _overload_condition(
    earlier: Sequence[Condition], overloaded: Sequence[TaskInfo], generation: int, now: str
) -> Condition | None:
    """Return the condition ``Overload``: more samples are hard than the next tier takes. None: there was none yet.

    Every sample is answered, but some hard ones by workers before the cloud. ``overloaded``: the counts of online nodes
    whose workers request an overloaded tier.
    """
    capacity, hard = (sum(getattr(info, name) for info in overloaded) for name in RATES)
    message = f"takes {capacity:.2g} samples/s, {hard:.2g}/s are hard" if overloaded else "it takes what is hard"
    condition = Condition(type=OVERLOAD, reason=OVERLOAD_BEGUN if overloaded else OVERLOAD_OVER, message=message)
    return _with_times(condition, earlier, generation, now, is_active=bool(overloaded))


def _code_condition(
    earlier: Sequence[Condition], before: Iterable[NodeSummary], nodes: Iterable[NodeSummary], generation: int, now: str
) -> Condition | None:
    """Return the condition ``Code``: a Python file of the service has changed on a node.

    The message names the newest changes: those from ``before``, the nodes of the previous status, to ``nodes``. Without
    a change the earlier condition of this generation stays; None: there is none.
    """
    digests = {node.node: node.code for node in before}
    changes = [
        f"node {node.node}: {file}: sha256 {old[:SHORT]}.. -> {new[:SHORT]}.."
        for node in nodes
        for file, new in node.code.items()
        if (old := digests.get(node.node, {}).get(file, new)) != new
    ]
    if not changes:
        last = next((condition for condition in earlier if condition.type == CODE), None)
        return last if last and last.observed_generation == generation else None
    more = f" (and {len(changes) - NAMED} more)" if len(changes) > NAMED else ""
    message = f"{'; '.join(changes[:NAMED])}{more}: workers with the new content replace those with the old one"
    return Condition(
        type=CODE,
        observed_generation=generation,
        last_heartbeat_time=now,
        last_transition_time=now,
        reason=CODE_CHANGED,
        message=message[:4096],
    )


def _with_times(
    condition: Condition, earlier: Sequence[Condition], generation: int, now: str, *, is_active: bool
) -> Condition | None:
    """Return a condition that is independent of the phase, with its status and times; None: it was never active."""
    before, status = next((other for other in earlier if other.type == condition.type), None), str(is_active)
    if before is None and not is_active:
        return None
    began = before.last_transition_time if before and before.status == status else now
    times = {"last_heartbeat_time": now, "last_transition_time": began}
    return msgspec.structs.replace(condition, status=status, observed_generation=generation, **times)


def _drift_message(drifting: int, agreement: Estimate | None) -> str:
    """Return the message of the condition ``Drift``; ``drifting``: number of workers with other samples."""
    share = ""
    if agreement:
        low, high = 100 * agreement.low, 100 * agreement.high
        share = f"; {100 * agreement.value:.1f} % of answers agree with the cloud ({low:.1f} to {high:.1f}, by audits)"
    if not drifting:
        return f"samples match the calibration again{share}"
    who = "the samples of 1 worker" if drifting == 1 else f"the samples of {drifting} workers"
    return f"{who} differ from the calibration{share}: {CONDITIONS[DRIFT].mends}"
