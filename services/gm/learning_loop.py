"""The learning loop of a TrainingModel in GM: facts from nodes' reports, and edits of the Model. Pure.

The state is in the status of the TrainingModel. GM writes it before it acts on it, so a GM that is killed between any
two steps continues. All actions follow from the state and from what is there, so they may be repeated.

A candidate becomes a version of the Model before it is judged, but is not in force: so its file and its calibration are
GM's before the workers of the training end. A candidate that was refused leaves the Model again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from halimede.api.learning_loop import LoopSettings
from halimede.api.model import ModelSpec, ModelVersion, RolloutSpec
from halimede.blobs.uris import GM, url
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.states import CONTESTED, EvidenceReport, LoopFacts, LoopState, TrainingReport, desired, step
from halimede.messages import ModelFacts, ModelInUse, TaskInfo, TensorFile, TrainingProgress, WorkerReport
from halimede.stats.differences import PairedCounts
from halimede.stats.totals import add_up
from services.gm.cluster.port import NodeReport

#: states in which the workers of the training run
TRAINING_STATES = frozenset({"Training", "Judging"})
#: versions of a Model, and characters of a digest in the name of a version
MOST_VERSIONS, SHORT = 64, 12
EDGE = "edge"
#: seconds that the state's times may be ahead of GM's clock
MOST_AHEAD_S = 3600.0


@dataclass(frozen=True, slots=True)
class ObservedTraining:
    """What the workers of a training report on its present run.

    ``error``: why it cannot end. ``trainers``: those of nodes that are online. ``offline``: the others; nothing waits
    for them. ``pulled``: GM has the file of the model.
    """

    aggregator: TrainingProgress | None = None
    trainers: Sequence[TrainingProgress] = ()
    error: str = ""
    pulled: bool = False
    offline: Sequence[TrainingProgress] = ()

    @property
    def model(self) -> TensorFile | None:
        """The trained model, once the aggregator has exported it."""
        return self.aggregator.model if self.aggregator else None

    @property
    def compared(self) -> list[TrainingProgress]:
        """The trainers that have compared the model."""
        trainers = (*self.trainers, *self.offline)
        return [trainer for trainer in trainers if self.model and trainer.compared == self.model.digest]

    @property
    def judged(self) -> bool:
        """Whether each trainer that can compare the model has done so, and at least one has."""
        able = (trainer for trainer in self.trainers if not trainer.reason)
        return bool(self.compared) and all(self.model and trainer.compared == self.model.digest for trainer in able)


@dataclass(frozen=True, slots=True)
class ObservedService:
    """What nodes report on the service of a loop: its counts, and the models that its edge workers use.

    ``infos`` are those of all nodes, ``workers`` only those of nodes that are online.
    """

    infos: Sequence[TaskInfo] = ()
    workers: Sequence[WorkerReport] = ()
    drifting: bool = False

    @classmethod
    def of(cls, reports: Iterable[NodeReport], is_online: Callable[[str], bool]) -> ObservedService:
        """Return what reports on a service mean."""
        infos, workers, drifting = [], list[WorkerReport](), False
        for report in reports:
            if report.edge and report.task_info:
                infos.append(report.task_info)
            if report.live and is_online(report.node):
                workers += [worker for worker in report.status.workers if worker.role == EDGE and worker.model]
                drifting = drifting or bool(report.task_info and report.task_info.drifting)
        return cls(infos, workers, drifting)

    @property
    def models(self) -> list[ModelInUse]:
        """The models that edge workers use."""
        return [worker.model for worker in self.workers if worker.model]

    @property
    def versions(self) -> set[str]:
        """The versions that edge workers use."""
        return {model.version for model in self.models}

    @property
    def present(self) -> str:
        """The version that all edge workers use; empty while they differ."""
        versions = self.versions
        return versions.pop() if len(versions) == 1 else ""


@dataclass(frozen=True, slots=True)
class ObservedLoop:
    """All that a loop depends on, besides its state and its settings.

    ``as_pods``: workers are pods. They change their model by an update of all pods, and have their shares of audits
    from the service: so the trial of a candidate answers all samples.
    """

    service: ObservedService = field(default_factory=ObservedService)
    training: ObservedTraining = field(default_factory=ObservedTraining)
    model: ModelSpec | None = None
    #: why nodes cannot get the version in force
    model_error: str = ""
    command: int = 0
    as_pods: bool = False
    #: why pods of the service cannot run
    pods_error: str = ""


def advance(loop: LoopState, observed: ObservedLoop, job: str, settings: LoopSettings, now: str) -> LoopState:
    """Return the next state at a time (RFC 3339). ``job`` is the name of the TrainingModel."""
    now_s = seconds(now)
    if not loop.since_s or loop.since_s > now_s + MOST_AHEAD_S:
        # the clock was far ahead: no deadline, and no sample since then, would come
        loop = msgspec.structs.replace(loop, since_s=now_s, begins_s=min(loop.begins_s, now_s))
    loop_facts = facts(loop, observed, job)
    if loop.state == "Collecting" and not loop_facts.present:
        return loop  # a round needs a version to better: workers are starting, or differ
    return step(loop, loop_facts, settings, now_s)


def facts(loop: LoopState, observed: ObservedLoop, job: str) -> LoopFacts:
    """Return the facts for the next step."""
    service, training = observed.service, observed.training
    total = add_up(service.infos) if service.infos else TaskInfo()
    candidate = version_name(job, training.model) if training.model else ""
    contested = next((trainer.reason for trainer in training.trainers if trainer.reason == CONTESTED), "")
    return LoopFacts(
        drifting=service.drifting,
        present=_foreign(loop, observed.model) or service.present,
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
        training=_training_report(loop, training, candidate),
        evidence=_evidence_report(observed, candidate),
        canary_error=_canary_error(loop, observed),
        in_force=observed.model is not None and bool(loop.version) and observed.model.target_version == loop.version,
        undone=_undone(loop, observed.model),
        rollout=None if observed.model is None or observed.as_pods else observed.model.rollout or RolloutSpec(),
        replaces=observed.as_pods,
    )


def _trial_version(loop: LoopState, observed: ObservedLoop) -> str:
    """Return the candidate if an edge worker uses it for any sample, or the Model still has it."""
    used = {name for model in observed.service.models for name in (model.version, model.canary_version)}
    there = loop.version in used or bool(digest_of(loop.version, observed.model))
    return loop.version if loop.version and there else ""


def _training_report(loop: LoopState, training: ObservedTraining, candidate: str) -> TrainingReport | None:
    """Return the end of a training: GM has its model, or it cannot end."""
    if candidate and training.pulled:
        return TrainingReport(round=loop.round, version=candidate)
    return TrainingReport(round=loop.round, error=training.error) if training.error else None


def _evidence_report(observed: ObservedLoop, candidate: str) -> EvidenceReport | None:
    """Return the evidence of all trainers once they have compared the candidate, and the Model has it as a version."""
    if not candidate or not observed.training.judged or not digest_of(candidate, observed.model):
        return None
    evidence = [_decode_evidence(trainer.evidence) for trainer in observed.training.compared]
    return EvidenceReport(version=candidate, evidence=sum_evidence(evidence))


def _decode_evidence(text: str) -> Evidence:
    try:
        return msgspec.json.decode(text, type=Evidence)
    except msgspec.DecodeError as error:
        return Evidence(error=f"a trainer's evidence cannot be read: {error}"[:1024])


def sum_evidence(reports: Sequence[Evidence]) -> Evidence:
    """Return the evidence of several nodes together; the streams of all nodes count equally."""
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
    assert evidence.candidate_ms is not None  # noqa: S101  # callers check it
    assert evidence.present_ms is not None  # noqa: S101
    return evidence.candidate_ms.value / max(evidence.present_ms.value, 1e-9)


def _sum(counts: Iterable[PairedCounts]) -> PairedCounts:
    total: Counter[str] = Counter()
    for pair in counts:
        total.update(msgspec.structs.asdict(pair))
    return PairedCounts(**total)


def _canary_error(loop: LoopState, observed: ObservedLoop) -> str:
    """Return why a node refused or withdrew the candidate, or cannot get it."""
    if not loop.version or loop.state not in {"Canary", "RolledOut"}:
        return ""
    if observed.model_error or observed.pods_error:
        return observed.model_error or observed.pods_error
    digest = digest_of(loop.version, observed.model)
    refusals = (model for model in observed.service.models if digest and model.refused == digest)
    return next((f"{model.reason}: {model.message}" for model in refusals), "")


def _undone(loop: LoopState, model: ModelSpec | None) -> str:
    """Return how somebody has ended the candidate's trial by an edit of the Model; empty: nobody has."""
    if model is None or loop.state not in {"Canary", "RolledOut"} or _foreign(loop, model):
        return ""
    if not digest_of(loop.version, model):
        return f"the Model has no version {loop.version} any more"
    if loop.tried and model.target_version != loop.version:
        return f"version {model.target_version or loop.base} is in force again"
    return ""


def is_full(loop: LoopState, model: ModelSpec, job: str) -> bool:
    """Whether a Model has no room for another candidate."""
    needed = {model.target_version or loop.base, loop.base if loop.state != "Collecting" else ""}
    own = (entry for entry in model.versions if entry.version.startswith(f"{job}-") and entry.version not in needed)
    return len(model.versions) >= MOST_VERSIONS and not any(own)


def digest_of(version: str, model: ModelSpec | None) -> str:
    """Return the digest of a version of a Model; empty if it has none."""
    return next((entry.sha256 for entry in model.versions if entry.version == version), "") if model else ""


def version_name(job: str, model: TensorFile) -> str:
    """Return the name of the version that a trained model becomes."""
    return f"{job}-{model.digest[:SHORT]}"


def desired_model(
    loop: LoopState, observed: ObservedLoop, job: str, settings: LoopSettings, file_facts: ModelFacts | None
) -> ModelSpec | None:
    """Return the Model as it must be in a state; None: it is so already. ``file_facts``: facts of its present file."""
    spec = observed.model
    if spec is None:
        return None
    canary = desired(loop, settings)
    model, rollout = spec, _rollout(loop, spec, canary.audit_share)
    if loop.state == "Labelling" and observed.as_pods:  # a later change of its spec would replace the pods that train
        model = _with_base(spec, loop, file_facts) or spec
    elif loop.state == "Judging":
        model = _with_candidate(spec, loop, observed.training, job, file_facts)
    elif loop.state in {"Canary", "RolledOut"} and not (_undone(loop, spec) or _foreign(loop, spec)):
        model = msgspec.structs.replace(spec, target_version=loop.version)
        rollout = msgspec.structs.replace(rollout, canary_percent=canary.percent)
    elif loop.state == "Withdrawn":
        model = _without(spec, loop)
        if model.target_version != spec.target_version:
            rollout = msgspec.structs.replace(rollout, canary_percent=100)
    if rollout != (spec.rollout or RolloutSpec()) and not observed.as_pods:
        model = msgspec.structs.replace(model, rollout=rollout if rollout != RolloutSpec() else None)
    return model if model != spec else None


def _foreign(loop: LoopState, spec: ModelSpec | None) -> str:
    """Return the version in force if somebody else has put it in force since the round began."""
    target = spec.target_version if spec else ""
    return target if loop.base and loop.round and target not in {"", loop.base, loop.version} else ""


def _rollout(loop: LoopState, spec: ModelSpec, share: float) -> RolloutSpec:
    """Return the settings of the roll-out: at least the loop's share of audits in a round, then those before it."""
    now, before = spec.rollout or RolloutSpec(), loop.restore
    if share:
        return msgspec.structs.replace(now, audit_share=max(now.audit_share, share))
    if before is None:
        return now
    return before if loop.state == "Collecting" else msgspec.structs.replace(now, audit_share=before.audit_share)


def _with_candidate(
    spec: ModelSpec, loop: LoopState, training: ObservedTraining, job: str, file_facts: ModelFacts | None
) -> ModelSpec:
    """Return a Model with the candidate as a version, and with the present version in force by its name."""
    model, compared = training.model, training.compared
    if model is None or version_name(job, model) != loop.version or not training.judged:
        return spec
    if digest_of(loop.version, spec):
        return spec
    named = _with_base(spec, loop, file_facts)
    if named is None:
        return spec  # somebody edits the Model: the round ends with Superseded
    # a resource has a limited size: only versions between which the loop chooses keep a calibration
    calibrated = {loop.base, named.target_version}
    versions = [
        old if old.version in calibrated else msgspec.structs.replace(old, calibration="") for old in named.versions
    ]
    calibration = max(compared, key=lambda trainer: trainer.samples).calibration
    candidate = ModelVersion(
        version=loop.version, url=url(GM, model.digest), sha256=model.digest, calibration=calibration
    )
    own = (old for old in versions if old.version.startswith(f"{job}-") and old.version != loop.base)
    while len(versions) >= MOST_VERSIONS and (oldest := next(own, None)):
        versions.remove(oldest)
    if len(versions) >= MOST_VERSIONS:
        return spec
    return msgspec.structs.replace(named, versions=[*versions, candidate])


def _with_base(spec: ModelSpec, loop: LoopState, file_facts: ModelFacts | None) -> ModelSpec | None:
    """Return a Model with the present version in force by its name; None: its file is not known to be that."""
    versions = list(spec.versions)
    if not any(version.version == loop.base for version in versions):
        digest = spec.sha256 or (file_facts.digest if file_facts else "")
        if spec.target_version or not spec.url or not loop.base or not digest.startswith(loop.base):
            return None
        versions.append(ModelVersion(version=loop.base, url=spec.url, sha256=digest))
    return msgspec.structs.replace(spec, versions=versions, target_version=spec.target_version or loop.base)


def _without(spec: ModelSpec, loop: LoopState) -> ModelSpec:
    """Return a Model without a candidate that was refused: first out of force, then gone."""
    if not loop.version or not digest_of(loop.version, spec):
        return spec
    if spec.target_version != loop.version:
        versions = [version for version in spec.versions if version.version != loop.version]
        return msgspec.structs.replace(spec, versions=versions)
    if not any(version.version == loop.base for version in spec.versions):
        return spec
    return msgspec.structs.replace(spec, target_version=loop.base)


def is_training(loop: LoopState) -> bool:
    """Whether the workers of the training run."""
    return loop.state in TRAINING_STATES


def progress_of(
    workers: Iterable[tuple[str, bool, WorkerReport]], run: str, aggregator: str
) -> tuple[TrainingProgress | None, list[TrainingProgress], list[TrainingProgress]]:
    """Return the progress in a run: of the aggregator, of trainers on nodes that are online, and of the others.

    ``workers``: each one's name, whether its node is online, and its report.
    """
    head, trainers, offline = None, list[TrainingProgress](), list[TrainingProgress]()
    for name, online, worker in workers:
        progress = worker.training
        if progress is None or progress.run != run:
            continue
        if name == aggregator:
            head = progress
        else:
            (trainers if online else offline).append(progress)
    return head, trainers, offline


def seconds(moment: str) -> float:
    """Return a time (RFC 3339) as seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()
