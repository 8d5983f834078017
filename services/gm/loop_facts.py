"""The facts of a learning loop, from nodes' reports and the Model, and the loop's next state (``step``). Pure.

A learning loop collects hard samples, trains a candidate for a Model on them, judges it, and rolls it out or withdraws
it; one pass is a round. Each reconciliation of the loop's TrainingModel takes it at most one state further. Nothing
waits here: a report, an edit or the time causes the next reconciliation, and the deadlines of the states bound a round
(``halimede.learning_loop.states``). GM writes the state before it acts on it, so a GM that is killed between any two
steps continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from halimede.api.learning_loop import LoopSettings
from halimede.api.model import ModelSpec, ModelVersion, RolloutSpec
from halimede.blobs.uris import GM, url
from halimede.learning_loop import states
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.states import CONTESTED, EvidenceReport, LoopFacts, LoopState, TrainingReport
from halimede.messages import ModelInUse, TaskInfo, TensorFile, TrainingProgress
from halimede.stats.differences import PairedCounts
from halimede.stats.totals import add_up
from services.gm.candidate_version import digest_of, foreign_version, undone_reason, version_name
from services.gm.cluster.port import NodeReport

#: role of the workers whose models and counts a loop observes
EDGE = "edge"
#: seconds by which the state's times may be ahead of GM's clock
MOST_AHEAD_S = 3600.0


@dataclass(frozen=True, slots=True)
class ObservedLoop:
    """All that a loop depends on, besides its state and its settings.

    Attributes:
        reports: of nodes on the service of the loop. The counts of all nodes are added up; workers only count on nodes
            that are online.
        is_online: whether the node of a name is online.
        aggregator: the progress of the aggregator in the present training; None: it has not reported.
        trainers: the progress of trainers on nodes that are online.
        offline: the progress of trainers on other nodes, for which nothing waits.
        training_error: why the training cannot end; empty: it can.
        is_pulled: whether GM has the file of the trained model.
        model: the Model that the loop edits; None: it does not exist.
        model_error: why nodes cannot get the version in force; empty: they can.
        command: number of the last command of a user to start a round; 0: there was none.
        as_pods: whether workers are pods. They change their model by an update of all pods, and have their shares of
            audits from the service: so the trial of a candidate answers all samples.
        pods_error: why pods of the service cannot run; empty: they can.

    """

    reports: Collection[NodeReport]
    is_online: Callable[[str], bool]
    aggregator: TrainingProgress | None = None
    trainers: Sequence[TrainingProgress] = ()
    offline: Sequence[TrainingProgress] = ()
    training_error: str = ""
    is_pulled: bool = False
    model: ModelSpec | None = None
    model_error: str = ""
    command: int = 0
    as_pods: bool = False
    pods_error: str = ""

    @property
    def counts(self) -> TaskInfo:
        """The sum of the counts of edge workers on all nodes; zeros before the first report."""
        infos = [report.task_info for report in self.reports if report.edge and report.task_info]
        return add_up(infos) if infos else TaskInfo()

    @property
    def _live_reports(self) -> list[NodeReport]:
        """The live reports of nodes that are online."""
        return [report for report in self.reports if report.live and self.is_online(report.node)]

    @property
    def drifting(self) -> bool:
        """Whether an edge worker reports drift: its samples differ from those of its calibration."""
        return any(report.task_info and report.task_info.drifting for report in self._live_reports)

    @property
    def models_in_use(self) -> list[ModelInUse]:
        """The models that edge workers on online nodes use, one for each worker that has reported its model."""
        workers = (worker for report in self._live_reports for worker in report.status.workers)
        return [worker.model for worker in workers if worker.role == EDGE and worker.model]

    @property
    def versions(self) -> set[str]:
        """The names of the versions that edge workers use."""
        return {model.version for model in self.models_in_use}

    @property
    def present(self) -> str:
        """The version that all edge workers use; empty while they differ, or if none has reported."""
        versions = self.versions
        return versions.pop() if len(versions) == 1 else ""

    @property
    def trained_model(self) -> TensorFile | None:
        """The file of the trained model; None: the aggregator has not exported it."""
        return self.aggregator.model if self.aggregator else None

    @property
    def compared(self) -> list[TrainingProgress]:
        """The trainers that have compared the trained model with the present version, on held-out samples."""
        model = self.trained_model
        return [trainer for trainer in (*self.trainers, *self.offline) if model and trainer.compared == model.digest]

    @property
    def judged(self) -> bool:
        """Whether each trainer that can compare the trained model has done so, and at least one has."""
        model, able = self.trained_model, (trainer for trainer in self.trainers if not trainer.reason)
        return bool(self.compared) and all(model and trainer.compared == model.digest for trainer in able)

    def candidate(self, job: str) -> ModelVersion | None:
        """Return the version that the trained model of the training ``job`` becomes; None before it is judged."""
        model = self.trained_model
        if model is None or not self.judged:
            return None
        calibration = max(self.compared, key=lambda trainer: trainer.samples).calibration
        name = version_name(job, model)
        return ModelVersion(version=name, url=url(GM, model.digest), sha256=model.digest, calibration=calibration)


def step(loop: LoopState, observed: ObservedLoop, job: str, settings: LoopSettings, now: str) -> LoopState:
    """Return the next state of a loop at the time ``now`` (RFC 3339); the same state if nothing has to change.

    ``job``: name of the TrainingModel. ``settings``: its ``spec.loop``.
    """
    now_s = unix_seconds(now)
    if not loop.since_s or loop.since_s > now_s + MOST_AHEAD_S:
        # the clock was far ahead: no deadline, and no sample since then, would come
        loop = msgspec.structs.replace(loop, since_s=now_s, begins_s=min(loop.begins_s, now_s))
    loop_facts = facts(loop, observed, job)
    if loop.state == "Collecting" and not loop_facts.present:
        return loop  # a round needs a version to better: workers are starting, or differ
    return states.step(loop, loop_facts, settings, now_s)


def facts(loop: LoopState, observed: ObservedLoop, job: str) -> LoopFacts:
    """Return the facts from which ``states.step`` computes the next state."""
    total, model = observed.counts, observed.trained_model
    candidate = version_name(job, model) if model else ""
    contested = next((trainer.reason for trainer in observed.trainers if trainer.reason == CONTESTED), "")
    return LoopFacts(
        drifting=observed.drifting,
        present=foreign_version(loop, observed.model) or observed.present,
        canary=_trial_version(loop, observed),
        counts=VersionCounts(
            answered=max(0, total.inference_number - total.canary_answered),
            hard=max(0, total.hard_example_number - total.canary_hard),
            audited=max(0, total.audited - total.canary_audited),
            agreed=max(0, total.audit_agreed - total.canary_agreed),
        ),
        canary_counts=VersionCounts(
            answered=total.canary_answered,
            hard=total.canary_hard,
            audited=total.canary_audited,
            agreed=total.canary_agreed,
        ),
        labelled=total.labelled,
        easy=total.labelled_easy,
        contested=contested and "persons and the big model label too many samples differently: `halimede hard list`",
        command=observed.command,
        training=_training_report(loop, observed, candidate),
        evidence=_evidence_report(observed, candidate),
        canary_error=_canary_error(loop, observed),
        in_force=observed.model is not None and bool(loop.version) and observed.model.target_version == loop.version,
        undone=undone_reason(loop, observed.model),
        rollout=None if observed.model is None or observed.as_pods else observed.model.rollout or RolloutSpec(),
        replaces=observed.as_pods,
    )


def _trial_version(loop: LoopState, observed: ObservedLoop) -> str:
    """Return the candidate's version if an edge worker uses it for any sample, or the Model has it; else empty."""
    used = {name for model in observed.models_in_use for name in (model.version, model.canary_version)}
    there = loop.version in used or bool(digest_of(loop.version, observed.model))
    return loop.version if loop.version and there else ""


def _training_report(loop: LoopState, observed: ObservedLoop, candidate: str) -> TrainingReport | None:
    """Return how the training has ended: GM has its model, or there is an error; None: it has not ended."""
    if candidate and observed.is_pulled:
        return TrainingReport(round=loop.round, version=candidate)
    return TrainingReport(round=loop.round, error=observed.training_error) if observed.training_error else None


def _evidence_report(observed: ObservedLoop, candidate: str) -> EvidenceReport | None:
    """Return the evidence of all trainers; None before they have compared the candidate and the Model has it."""
    if not candidate or not observed.judged or not digest_of(candidate, observed.model):
        return None
    evidence = [_decode_evidence(trainer.evidence) for trainer in observed.compared]
    return EvidenceReport(version=candidate, evidence=sum_evidence(evidence))


def _decode_evidence(text: str) -> Evidence:
    """Return a trainer's evidence (JSON); if it cannot be read, evidence with only an error."""
    try:
        return msgspec.json.decode(text, type=Evidence)
    except msgspec.DecodeError as error:
        return Evidence(error=f"a trainer's evidence cannot be read: {error}"[:1024])


def sum_evidence(reports: Sequence[Evidence]) -> Evidence:
    """Return the evidence of several nodes (at least one) together; each node's stream of samples counts equally.

    Latencies are those of the node where the candidate is slowest in comparison; left out unless all nodes have them.
    """
    if len(reports) == 1:
        return reports[0]
    groups: dict[str, list[PairedCounts]] = {}
    for report in reports:
        for name, counts in report.groups.items():
            groups.setdefault(name, []).append(counts)
    timed = [report for report in reports if report.candidate_ms and report.present_ms]
    slowest = max(timed, key=_latency_ratio) if len(timed) == len(reports) else Evidence()
    return Evidence(
        error=next((report.error for report in reports if report.error), ""),
        failed=sum(report.failed for report in reports),
        strata=[
            msgspec.structs.replace(stratum, share=stratum.share / len(reports))
            for report in reports
            for stratum in report.strata
        ],
        groups={name: _sum(counts) for name, counts in groups.items()},
        reference=_sum(report.reference for report in reports),
        candidate_ms=slowest.candidate_ms,
        present_ms=slowest.present_ms,
    )


def _latency_ratio(evidence: Evidence) -> float:
    """Return how many times as long as the present version the candidate takes."""
    assert evidence.candidate_ms is not None  # noqa: S101  # callers check it
    assert evidence.present_ms is not None  # noqa: S101
    return evidence.candidate_ms.value / max(evidence.present_ms.value, 1e-9)


def _sum(counts: Iterable[PairedCounts]) -> PairedCounts:
    """Return the sum of counts, field by field."""
    total: Counter[str] = Counter()
    for pair in counts:
        total.update(msgspec.structs.asdict(pair))
    return PairedCounts(**total)


def _canary_error(loop: LoopState, observed: ObservedLoop) -> str:
    """Return why a node refused or withdrew the candidate, or cannot get it; empty: neither."""
    if not loop.version or loop.state not in {"Canary", "RolledOut"}:
        return ""
    if observed.model_error or observed.pods_error:
        return observed.model_error or observed.pods_error
    digest = digest_of(loop.version, observed.model)
    refusals = (model for model in observed.models_in_use if digest and model.refused == digest)
    return next((f"{model.reason}: {model.message}" for model in refusals), "")


def unix_seconds(moment: str) -> float:
    """Return a time (RFC 3339) as seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()
