"""The controller of TrainingModels: an aggregator and trainers on nodes train a new version of a Model.

In each round trainers send updates, of which the aggregator makes new weights. GM reads the progress in the reports of
nodes. When the aggregator has exported the model, GM fetches the file into its own store, adds it to the Model as a
version, and makes it the version in force. Each of these steps follows from what is there, so a GM that is killed in
between continues. A training that is done needs no workers: its nodes drop it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.base import SEDNA
from halimede.api.inferencemodel import to_sedna
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, ModelVersion
from halimede.api.neptune import native
from halimede.api.placement import Placement, placements
from halimede.api.trainingmodel import AGGREGATOR, PLURAL, TrainingModelSpec, has_own_program, run_of
from halimede.blobs.uris import GM, url
from halimede.messages import (
    Metric,
    NodeSummary,
    Status,
    TensorFile,
    TrainingProgress,
    TrainingStatus,
    WorkerReport,
    WorkerSummary,
)
from halimede.messages.training import STARVED
from halimede.names import Key
from services.gm.candidate_version import MAX_SPEC_VERSIONS, digest_of, version_name
from services.gm.cluster.port import StoredResource
from services.gm.controllers import loop_rules
from services.gm.controllers.base import Edit, NodeAction, Observed, Pull, forget, node_problems, register
from services.gm.controllers.worker_service import (
    WorkersController,
    lacking_resources,
    part_of,
    placed_workers,
    roles_of,
    workers,
)
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import MAX_SHOWN_NODES, Problem, Readiness, conclude, node_summary
from services.gm.worker_file_store import WorkerFile
from services.gm.workloads.deployments import Built
from services.gm.workloads.pod_status import STARTING

#: the state of a training whose last round has ended
DONE = "done"
#: most metrics and entries of metadata that a Model can have
MOST_METRICS, MOST_METADATA = 64, 64
#: the Model's metadata about where its version comes from
TRAINED_BY, TRAINED_ROUND = "trainedBy", "trainedRound"
#: beginnings of the reasons of trainers that end without an edit: when samples or the hour change, a node returns, a
#: worker reports again
PASSING = ("Dataset", "OutsideHours", "Node", "WorkerSilent", "ModelMissing")
#: the reason if a round is impossible and no trainer has a problem
TOO_FEW = "TooFewTrainers"
#: reasons of workers that nothing prevents from starting
BEGINNING = frozenset({"", "Starting", *STARTING})
#: reasons of further problems that a message names
NAMED_REASONS = 3


@register(PLURAL)
class TrainingModelController(WorkersController):
    """The ``Controller`` of TrainingModels: the rules of services with workers, until the training is done."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in sedna.io form; it may edit the Model that gets the version.

        With a learning loop it has the round that its status names, and its rules depend on the reports on the loop's
        service and Model.
        """
        resource = native(resource) if resource.kind.api_version == SEDNA else parse(to_sedna(resource))
        loop = loop_rules.state_of(status)
        if resource.spec.loop or loop.round:
            resource = loop_rules.with_present_round(resource, status)
        watches = (loop_rules.service_of(resource), model_of(resource)) if resource.spec.loop else ()
        models = tuple(loop_rules.models_of(resource, loop))
        return ReferenceEntry(resource, roles_of(resource), edits=models, watches=watches)

    def node_actions(self, desired: Resource[Any], observed: Observed) -> Iterator[NodeAction]:
        """Send its nodes what its workers need, and then the training.

        A training that is done, or whose loop is idle, is deleted there.
        """
        if loop_rules.is_idle(desired) or _is_finished(desired, observed):
            yield from forget(desired, replace(observed, placed={}))
        else:
            yield from super().node_actions(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects of its workers, none of them for a training that is done or whose loop is idle.

        None: nodes run the workers.
        """
        if observed.workload is not None and (loop_rules.is_idle(desired) or _is_finished(desired, observed)):
            return Built()
        return super().build(desired, observed)

    def edits(self, desired: Resource[Any], observed: Observed) -> Iterator[Pull | Edit]:
        """Yield the pull of the trained model's file, and then the edit that adds it to the Model as a version.

        With a learning loop, the loop's state decides what the Model must be.
        """
        leaves = loop_rules.is_leaving(desired, loop_rules.state_of(observed.status))
        if desired.spec.loop or leaves:
            yield from _loop_edits(desired, observed, leaves=leaves)
            return
        progress, model = _aggregator(desired, observed), observed.edited.get(model_of(desired))
        deleting = desired.metadata.deletion_timestamp is not None
        if deleting or progress is None or progress.model is None or model is None or _is_finished(desired, observed):
            return
        if _has_script(desired) or self.withheld(desired, observed, progress):
            return
        if _version_of(model, progress.model.digest):
            return
        if _has_version(model, progress.model.digest):  # but it is not in force
            yield Edit(model, with_version(model.resource.spec, desired, progress))
        elif observed.pulled.get(progress.model.digest) != "":  # GM's store does not have the file yet
            yield _pull(desired, progress.model, observed)
        elif fields := with_version(model.resource.spec, desired, progress):
            yield Edit(model, fields)

    def withheld(self, desired: Resource[Any], observed: Observed, progress: TrainingProgress) -> str:  # noqa: ARG002
        """Return why the Model does not get the model of a training that is done; empty: it gets it."""
        written = _has_script(desired) and (observed.as_pods or _have_scripts_ended(observed))
        return "its script writes the model" if written else ""

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Return the progress of the training, and the state of each worker until it is done."""
        original = observed.original or desired
        training, progress = progress_of(desired, observed), _aggregator(desired, observed)
        if progress and progress.state == DONE and not training.version:
            training = msgspec.structs.replace(training, withheld=self.withheld(desired, observed, progress))
        specs = placements(desired.spec)
        done = loop_rules.is_idle(desired) or (training.state == DONE and bool(training.version or training.withheld))
        shown = [] if done else with_reports(workers(desired, specs, observed, pods=built is not None), observed)
        before = observed.status
        status = Status(
            active=sum(worker.phase == "Running" for worker in shown),
            failed=sum(worker.phase == "Failed" for worker in shown),
            start_time=before.start_time if before and before.start_time else observed.now,
            training=training,
            metrics=training.metrics,
            workers=[msgspec.structs.replace(worker, output=None) for worker in shown][:MAX_SHOWN_NODES],
            nodes=[] if done else _nodes(observed),
        )
        absent = _absent_resources(desired, observed, built)
        verdict = judge(desired, training, shown, absent, _trouble(desired, observed))
        return conclude(status, verdict, before, original.metadata.generation, observed.now)

    def step(self, desired: Resource[Any], observed: Observed, status: Status, built: Built | None) -> Status:
        """Return the status with the next state of the learning loop, which is the phase; unchanged without a loop.

        For a loop that was removed from the spec only its state is added: the loop first gives its Model back.
        """
        before, identity = observed.status, _identity(desired)
        if desired.spec.loop is None:
            if before and before.loop:
                status.loop = msgspec.to_builtins(loop_rules.state_on_leaving(desired, observed, identity))
            return status
        current, model = status.conditions[-1], observed.edited.get(model_of(desired))
        verdict = Readiness(status.phase, current.reason, current.message)
        loop = loop_rules.next_state(desired, observed, model, identity, verdict)
        absent = [*_absent_resources(desired, observed, built), *loop_rules.loop_problems(desired, observed)]
        verdict = loop_rules.loop_readiness(loop, verdict, absent, status.workers)
        status = msgspec.structs.replace(status, loop=msgspec.to_builtins(loop))
        return conclude(status, verdict, before, status.observed_generation, observed.now)


def _absent_resources(desired: Resource[Any], observed: Observed, built: Built | None) -> list[Problem]:
    """Return the problems that workers lack something, and those of refused edits."""
    if built is None or observed.workload is None:
        return [*lacking_resources(desired, observed), *observed.refused]
    absent = [*observed.workload.troubles, *built.problems, *node_problems(roles_of(desired), observed)]
    return [*absent, *uncontrolled_nodes(placements(desired.spec), observed), *observed.refused]


def _loop_edits(desired: Resource[TrainingModelSpec], observed: Observed, *, leaves: bool) -> Iterator[Pull | Edit]:
    """Yield the pull of the candidate's file, and edits of the loop's Model.

    If the loop ``leaves`` a Model, or a rival loop has its Model or service, yield only the edits that take back what
    the loop has changed in a Model.
    """
    deleting = desired.metadata.deletion_timestamp is not None
    if leaves or loop_rules.rival_of(desired, observed):
        yield from loop_rules.edits_on_leaving(desired, observed, _identity(desired))
        return
    progress, model = _aggregator(desired, observed), observed.edited.get(model_of(desired))
    if not deleting and progress and progress.model and observed.pulled.get(progress.model.digest) != "":
        yield _pull(desired, progress.model, observed)
    if model:
        facts = loop_rules.with_withdrawn_candidate(observed, model) if deleting else observed
        yield from loop_rules.model_edits(desired, facts, model, _identity(desired))


def _pull(desired: Resource[TrainingModelSpec], file: TensorFile, observed: Observed) -> Pull:
    """Return the action that brings the trained model from the aggregator into GM's store of files."""
    meta, worker = desired.metadata, _head(desired, observed)
    assert worker is not None  # noqa: S101  # it reports the file
    return Pull(desired.key, WorkerFile(meta.namespace, meta.name, worker.name, file.digest, file.size))


def with_reports(shown: Sequence[WorkerSummary], observed: Observed) -> list[WorkerSummary]:
    """Return the states of workers, with reason and message of their own reports where a running one has none."""
    reports = {part_of(worker): worker for _, worker in placed_workers(observed)}
    return [
        msgspec.structs.replace(summary, reason=reports[summary.name].reason, message=reports[summary.name].message)
        if summary.phase == "Running" and not summary.reason and summary.name in reports
        else summary
        for summary in shown
    ]


def uncontrolled_nodes(specs: Sequence[Placement], observed: Observed) -> Iterator[Problem]:
    """Yield the problems of nodes without a local controller: nobody reports the progress of the pods there."""
    for node in sorted({placement.pod.node_name for placement in specs} & observed.nodes.keys()):
        if not observed.nodes[node].controlled:
            text = f"node {node} has no local controller, which reports the training: label it halimede.io/node"
            yield Problem("NoLocalController", text)


def model_of(training: Resource[TrainingModelSpec]) -> Key:
    """Return the key of the Model that gets the trained version."""
    return Key(MODELS, training.metadata.namespace, training.spec.model.name)


def _identity(desired: Resource[TrainingModelSpec]) -> str:
    """Return the text by which workers' reports name their training: its uid and run (what another spec changes)."""
    return f"{desired.metadata.uid}.{run_of(desired.spec)}"


def _head(desired: Resource[TrainingModelSpec], observed: Observed) -> WorkerReport | None:
    """Return the report of the aggregator in the present training; None: there is none yet."""
    workers = (worker for _, worker in placed_workers(observed) if part_of(worker) == AGGREGATOR)
    return next((worker for worker in workers if worker.training and worker.training.run == _identity(desired)), None)


def _aggregator(desired: Resource[TrainingModelSpec], observed: Observed) -> TrainingProgress | None:
    """Return the aggregator's progress in the present training; None: there is none yet.

    While an aggregator has another number of rounds than the spec, because an edit has not reached it, it is not done.
    """
    worker = _head(desired, observed)
    if worker is None or worker.training is None:
        return None
    same = worker.training.rounds == desired.spec.rounds or _has_script(desired)
    return worker.training if same else msgspec.structs.replace(worker.training, state="open", model=None)


def _is_finished(desired: Resource[TrainingModelSpec], observed: Observed) -> bool:
    """Whether this training is done, and its Model has the version or does not get it, by the last written status."""
    before = observed.status.training if observed.status else None
    if before is None or before.state != DONE or not (before.version or before.withheld):
        return False
    if before.run != run_of(desired.spec):
        return False
    # more rounds than those that were done, or another target, begin anew
    original = observed.original or desired
    return observed.status is not None and observed.status.observed_generation == original.metadata.generation


def _has_script(desired: Resource[TrainingModelSpec]) -> bool:
    """Whether the aggregator is a user's program, such as a script written for Sedna."""
    return has_own_program(desired.spec.aggregator.template)


def _have_scripts_ended(observed: Observed) -> bool:
    """Whether each trainer's script has ended at least once: it writes its model after the last round."""
    trainers = (trainer for _, trainer in placed_workers(observed) if part_of(trainer) != AGGREGATOR)
    return all(trainer.restarts or trainer.phase != "Running" for trainer in trainers)


def _version_of(model: StoredResource, digest: str) -> str:
    """Return the name of a Model's version in force if its file has a digest; else empty."""
    spec: ModelSpec = model.resource.spec
    return spec.target_version if digest_of(spec.target_version, spec) == digest else ""


def _has_version(model: StoredResource, digest: str) -> bool:
    """Whether a Model has a version whose file has a digest, in force or not."""
    return any(version.sha256 == digest for version in model.resource.spec.versions)


def with_version(spec: ModelSpec, training: Resource[TrainingModelSpec], progress: TrainingProgress) -> dict[str, Any]:
    """Return the fields of a Model's spec, as JSON names them, with the trained version in force.

    A Model that has as many versions as it can have loses the oldest one of this training; without such a one, the
    result is empty.
    """
    assert progress.model is not None  # noqa: S101  # callers check it
    digest, job = progress.model.digest, training.metadata.name
    versions = [old for old in spec.versions if old.sha256 != digest]
    if len(versions) >= MAX_SPEC_VERSIONS:
        own = (old for old in versions if old.version.startswith(f"{job}-") and old.version != spec.target_version)
        oldest = next(own, None)
        if oldest is None:
            return {}
        versions.remove(oldest)
    version = ModelVersion(version=version_name(job, progress.model), url=url(GM, digest), sha256=digest)
    metrics = {metric.key: metric.value for metric in spec.metrics}
    metrics |= {key: f"{value:.6g}" for key, value in progress.metrics.items()}
    origin = {TRAINED_BY: f"{training.metadata.namespace}/{job}", TRAINED_ROUND: str(progress.evaluated)}
    metadata = {**spec.metadata, **origin}
    return {
        "versions": msgspec.to_builtins([*versions, version]),
        "targetVersion": version.version,
        "metrics": [{"key": key, "value": value} for key, value in list(metrics.items())[:MOST_METRICS]],
        "metadata": metadata if len(metadata) <= MOST_METADATA else spec.metadata,
    }


def progress_of(desired: Resource[TrainingModelSpec], observed: Observed) -> TrainingStatus:
    """Return the progress for the status: what the aggregator reports, else that in this training's last status."""
    before = observed.status.training if observed.status else None
    run = run_of(desired.spec)
    if _is_finished(desired, observed) and before:
        return before
    progress = _aggregator(desired, observed)
    if progress is None:
        same = before and before.run == run and before.state != DONE
        return before if before and same else TrainingStatus(run=run, rounds=desired.spec.rounds)
    trainers = [trainer for _, trainer in placed_workers(observed) if part_of(trainer) != AGGREGATOR]
    model = observed.edited.get(model_of(desired))
    version = _version_of(model, progress.model.digest) if progress.model and model else ""
    return TrainingStatus(
        run=run,
        state=progress.state,
        round=progress.round,
        rounds=progress.rounds,
        trainers=sum(trainer.phase == "Running" for trainer in trainers),
        samples=sum(trainer.training.samples for trainer in trainers if trainer.training),
        evaluated=progress.evaluated,
        metrics=[Metric(key=key, value=f"{value:.4g}") for key, value in sorted(progress.metrics.items())],
        dropped=[Metric(key=key, value=str(value)) for key, value in sorted(progress.dropped.items())],
        bytes=progress.bytes,
        digest=progress.model.digest if progress.model else "",
        size=progress.model.size if progress.model else 0,
        version=version,
        reason=progress.reason if progress.state == DONE else "",
    )


def _trouble(desired: Resource[TrainingModelSpec], observed: Observed) -> Problem | None:
    """Return why the trained model is no version of the Model yet; None: nothing prevents it, or there is no model."""
    progress = _aggregator(desired, observed)
    if progress is None or progress.model is None:
        return None
    model = observed.edited.get(model_of(desired))
    if model is None:
        return Problem("ModelNotFound", f"{model_of(desired)} does not exist: apply it")
    if why := observed.pulled.get(progress.model.digest):
        return Problem("ModelNotFetched", f"the trained model is not in GM's store of files yet: {why}")
    if observed.pulled.get(progress.model.digest) == "" and not with_version(model.resource.spec, desired, progress):
        text = f"{model.key} has {MAX_SPEC_VERSIONS} versions, and none of this training: remove one from spec.versions"
        return Problem("TooManyVersions", text)
    return None


def judge(
    desired: Resource[TrainingModelSpec],
    training: TrainingStatus,
    shown: Sequence[WorkerSummary],
    absent: Sequence[Problem],
    trouble: Problem | None,
) -> Readiness:
    """Return the phase of a training, and its reason.

    ``training``: the progress. ``shown``: the state of each worker. ``absent``: what the workers lack. ``trouble``: why
    the trained model is no version of the Model yet.

    Done: the Model has the version, or does not get it for the reason ``withheld``. Failed: the aggregator, or so many
    trainers that a round is impossible, have failed. Degraded: rounds go on without some trainers, or slowly. Pending:
    they cannot begin or continue now, or workers lack something. Running: else.
    """
    spec = desired.spec
    metrics = ", ".join(f"{metric.key} {metric.value}" for metric in training.metrics)
    # the weights of a round were made by the rounds before it
    after = f" after {max(0, training.evaluated - 1)} rounds{metrics and ': '}{metrics}"
    if training.state == DONE and training.version:
        return Readiness("Done", training.reason, f"version {training.version} of Model {spec.model.name}{after}")
    if training.state == DONE and training.withheld:
        return Readiness("Done", "NotAdded", f"no version of Model {spec.model.name}{after}: {training.withheld}")
    if absent:
        return Readiness("Pending", absent[0].reason, "; ".join(dict.fromkeys(problem.message for problem in absent)))
    if training.state == DONE:
        if trouble:
            return Readiness("Pending", trouble.reason, trouble.message)
        return Readiness("Running", "AddingVersion", f"the model{after} becomes a version of Model {spec.model.name}")
    tally = _Workers.of(shown)
    if tally.aggregator is not None:
        return Readiness(tally.aggregator.phase, tally.aggregator.reason, tally.aggregator.message)
    if tally.able < spec.min_clients:
        return tally.too_few(spec.min_clients, len(spec.trainers))
    progress = f"round {training.round} of {training.rounds}" + (f", {metrics}" if metrics else "")
    if tally.problems:
        return Readiness("Degraded", tally.problems[0].reason, f"{progress}; {tally.problem_text()}")
    return Readiness("Running", "Training" if training.round else "Starting", progress)


@dataclass(frozen=True, slots=True)
class _Workers:
    """The workers of a training, summed up.

    Attributes:
        aggregator: the phase, if it does not run; None: it runs.
        able: number of trainers that can take part in a round.
        problems: those of other trainers, and of waits for samples; a worker that only starts comes last.
        failed: whether a trainer has failed for good.

    """

    aggregator: Readiness | None
    able: int
    problems: tuple[Problem, ...]
    failed: bool

    @classmethod
    def of(cls, shown: Sequence[WorkerSummary]) -> _Workers:
        """Sum up the states of the workers."""
        aggregator: Readiness | None = Readiness("Pending", "WorkerNotUp", "aggregator: not placed yet")
        able, failed, problems = 0, False, list[Problem]()
        for worker in shown:
            text = f"{worker.name}{f' on node {worker.node}' if worker.node else ''}: {worker.message or worker.phase}"
            if worker.name == AGGREGATOR:
                up = worker.phase == "Running"
                phase = "Failed" if worker.phase == "Failed" else "Pending"
                aggregator = None if up else Readiness(phase, worker.reason or "WorkerNotUp", text)
                problems += [Problem(STARVED, text)] if up and worker.reason == STARVED else []
            elif worker.phase == "Running" and worker.reason in {"", STARVED}:
                able += 1
                problems += [Problem(STARVED, text)] if worker.reason else []
            elif worker.phase == "Pending" and worker.reason in BEGINNING:
                problems.append(Problem("WorkerNotUp", text))
            else:
                # a worker that is Pending restarts, or waits for a file: it has not failed
                failed = failed or (worker.phase in {"Running", "Failed"} and not worker.reason.startswith(PASSING))
                problems.append(Problem(worker.reason or "WorkerFailed", text))
        problems.sort(key=lambda problem: problem.reason == "WorkerNotUp")
        return cls(aggregator, able, tuple(problems), failed)

    def problem_text(self) -> str:
        """Return the problems as text: the first one, and the reasons of others."""
        reasons = list(dict.fromkeys(problem.reason for problem in self.problems[1:]))
        more = f" (and {len(self.problems) - 1} more: {', '.join(reasons[:NAMED_REASONS])})" if reasons else ""
        return self.problems[0].message + more

    def too_few(self, least: int, number: int) -> Readiness:
        """Return the phase if fewer than ``least`` of ``number`` trainers can take part: then no round is possible."""
        if not self.problems:
            return Readiness("Pending", TOO_FEW, f"{self.able} of {number} trainers can take part: {least} must")
        first = self.problems[0]
        phase = "Failed" if self.failed else "Pending"
        text = f"{self.able} of {number} trainers can take part: {least} must; {self.problem_text()}"
        return Readiness(phase, first.reason, text)


def _nodes(observed: Observed) -> list[NodeSummary]:
    """Return the state of each node without counts, those that do not run first."""
    summaries = [msgspec.structs.replace(node_summary(share), task_info=None, code={}) for share in observed.shares]
    return sorted(summaries, key=lambda summary: summary.phase == "Running")[:MAX_SHOWN_NODES]
