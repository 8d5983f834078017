"""TrainingModels: an aggregator and trainers on nodes, and the version that a Model gets of them.

GM reads the progress in the reports of nodes. When the aggregator has exported the model, GM fetches the file into its
own store, adds it to the Model as a version, and makes it the version in force. Each of these steps follows from what
is there, so a GM that is killed in between continues. A training that is done needs no workers: its nodes drop it.
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
from halimede.api.trainingmodel import AGGREGATOR, PLURAL, TrainingModelSpec, brings_program, run_of
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
from services.gm.cluster.port import StoredResource
from services.gm.controllers import training_loop
from services.gm.controllers.base import Delivery, Edit, Observed, Pull, forget, nowhere, register
from services.gm.controllers.worker_service import (
    WorkersController,
    lacking,
    part_of,
    placed_workers,
    roles_of,
    workers,
)
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import MAX_SHOWN_NODES, Problem, Readiness, conclude
from services.gm.worker_file_store import WorkerFile
from services.gm.workloads.deployments import Built
from services.gm.workloads.pod_status import STARTING

DONE = "done"
#: versions, metrics and metadata that a Model can have; characters of a digest in the name of a version
MOST_VERSIONS, MOST_METRICS, MOST_METADATA, SHORT = 64, 64, 64, 12
#: the Model's metadata about where its version comes from
TRAINED_BY, TRAINED_ROUND = "trainedBy", "trainedRound"
#: reasons of trainers that end without an edit: when samples or the hour change, a node returns, a worker reports again
PASSING = ("Dataset", "OutsideHours", "Node", "WorkerSilent", "ModelMissing")
TOO_FEW = "TooFewTrainers"
#: reasons of workers that nothing prevents from starting
BEGINNING = frozenset({"", "Starting", *STARTING})
#: problems after the first that a message names
NAMED = 3


@register(PLURAL)
class TrainingModelController(WorkersController):
    """The rules of trainings: those of services with workers, until the training is done."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in sedna.io form; it edits the Model that gets the version.

        With a loop it has the round that its status names, and follows the loop's service and its Model.
        """
        made = native(resource) if resource.kind.api_version == SEDNA else parse(to_sedna(resource))
        loop = training_loop.state_of(status)
        if made.spec.loop or loop.round:
            made = training_loop.looped(made, status)
        watches = (training_loop.service_of(made), model_of(made)) if made.spec.loop else ()
        return ReferenceEntry(made, roles_of(made), edits=tuple(training_loop.models_of(made, loop)), watches=watches)

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send it to its nodes, and what its workers need before; a training that is done leaves them."""
        if training_loop.idle(desired) or _finished(desired, observed):
            yield from forget(desired, replace(observed, placed={}))
        else:
            yield from super().deliver(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects of its workers, in a cluster that runs pods; none for a training that is done."""
        if observed.pods is not None and (training_loop.idle(desired) or _finished(desired, observed)):
            return Built()
        return super().build(desired, observed)

    def edits(self, desired: Resource[Any], observed: Observed) -> Iterator[Pull | Edit]:
        """Fetch the model of a training that is done, then add it to the Model as a version.

        In a loop the state of the loop decides what the Model must be.
        """
        leaves = training_loop.leaves(desired, training_loop.state_of(observed.status))
        if desired.spec.loop or leaves:
            yield from _loop_edits(desired, observed, leaves=leaves)
            return
        progress, model = _aggregator(desired, observed), observed.edited.get(model_of(desired))
        deleting = desired.metadata.deletion_timestamp is not None
        if deleting or progress is None or progress.model is None or model is None or _finished(desired, observed):
            return
        if _scripted(desired) or self.withheld(desired, observed, progress):
            return
        if _version_of(model, progress.model.digest):
            return
        if _has(model, progress.model.digest):
            yield Edit(model, with_version(model.resource.spec, desired, progress))
        elif observed.pulled.get(progress.model.digest) != "":
            yield _pull(desired, progress.model, observed)
        elif fields := with_version(model.resource.spec, desired, progress):
            yield Edit(model, fields)

    def withheld(self, desired: Resource[Any], observed: Observed, progress: TrainingProgress) -> str:  # noqa: ARG002
        """Return why the Model does not get the model of a training that is done; empty: it gets it."""
        written = _scripted(desired) and (observed.as_pods or _scripts_ended(observed))
        return "its script writes the model" if written else ""

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Return the progress, and the state of each worker."""
        asked = observed.asked or desired
        training, progress = progress_of(desired, observed), _aggregator(desired, observed)
        if progress and progress.state == DONE and not training.version:
            training = msgspec.structs.replace(training, withheld=self.withheld(desired, observed, progress))
        places = placements(desired.spec)
        finished = training_loop.idle(desired) or (
            training.state == DONE and bool(training.version or training.withheld)
        )
        shown = [] if finished else explained(workers(desired, places, observed, pods=built is not None), observed)
        before = observed.status
        status = Status(
            active=sum(each.phase == "Running" for each in shown),
            failed=sum(each.phase == "Failed" for each in shown),
            start_time=before.start_time if before and before.start_time else observed.now,
            training=training,
            metrics=training.metrics,
            workers=[msgspec.structs.replace(each, output=None) for each in shown][:MAX_SHOWN_NODES],
            nodes=[] if finished else _nodes(observed),
        )
        if built is None or observed.pods is None:
            absent = list(lacking(desired, observed))
        else:
            absent = [*observed.pods.troubles, *built.problems, *nowhere(roles_of(desired), observed)]
            absent += uncontrolled(places, observed)
        absent += observed.refused
        verdict = judge(desired, training, shown, absent, _trouble(desired, observed))
        if desired.spec.loop:
            absent += training_loop.missing(desired, observed)
            model = observed.edited.get(model_of(desired))
            loop = training_loop.stepped(desired, observed, model, _identity(desired), verdict)
            status.loop = msgspec.to_builtins(loop)
            verdict = training_loop.verdict(loop, verdict, absent, shown)
        elif before and before.loop:
            status.loop = msgspec.to_builtins(training_loop.left(desired, observed, _identity(desired)))
        return conclude(status, verdict, before, asked.metadata.generation, observed.now)


def _loop_edits(desired: Resource[TrainingModelSpec], observed: Observed, *, leaves: bool) -> Iterator[Pull | Edit]:
    """Yield what a loop needs: the candidate's file, and edits of its Model, or of the one that it leaves."""
    deleting = desired.metadata.deletion_timestamp is not None
    if leaves or training_loop.rival(desired, observed):
        yield from training_loop.left_edits(desired, observed, _identity(desired))
        return
    progress, model = _aggregator(desired, observed), observed.edited.get(model_of(desired))
    if not deleting and progress and progress.model and observed.pulled.get(progress.model.digest) != "":
        yield _pull(desired, progress.model, observed)
    if model:
        seen = training_loop.ended(observed, model) if deleting else observed
        yield from training_loop.model_edits(desired, seen, model, _identity(desired))


def _pull(desired: Resource[TrainingModelSpec], file: TensorFile, observed: Observed) -> Pull:
    """Return the action that brings the trained model from the aggregator into GM's store of files."""
    meta, worker = desired.metadata, _head(desired, observed)
    assert worker is not None  # noqa: S101  # it reports the file
    return Pull(desired.key, WorkerFile(meta.namespace, meta.name, worker.name, file.digest, file.size))


def explained(shown: Sequence[WorkerSummary], observed: Observed) -> list[WorkerSummary]:
    """Return workers with what they report themselves: of a pod that runs the cluster knows no more."""
    told = {part_of(each): each for _, each in placed_workers(observed)}
    return [
        msgspec.structs.replace(each, reason=told[each.name].reason, message=told[each.name].message)
        if each.phase == "Running" and not each.reason and each.name in told
        else each
        for each in shown
    ]


def uncontrolled(places: Sequence[Placement], observed: Observed) -> Iterator[Problem]:
    """Yield nodes without a local controller: nobody would report the progress of their pods."""
    for node in sorted({place.pod.node_name for place in places} & observed.nodes.keys()):
        if not observed.nodes[node].controlled:
            text = f"node {node} has no local controller, which reports the training: label it halimede.io/node"
            yield Problem("NoLocalController", text)


def model_of(training: Resource[TrainingModelSpec]) -> Key:
    """Return the Model that gets a version."""
    return Key(MODELS, training.metadata.namespace, training.spec.model.name)


def _identity(desired: Resource[TrainingModelSpec]) -> str:
    return f"{desired.metadata.uid}.{run_of(desired.spec)}"


def _head(desired: Resource[TrainingModelSpec], observed: Observed) -> WorkerReport | None:
    """Return the report of the aggregator in the present training; None: there is none yet."""
    workers = (each for _, each in placed_workers(observed) if part_of(each) == AGGREGATOR)
    return next((each for each in workers if each.training and each.training.run == _identity(desired)), None)


def _aggregator(desired: Resource[TrainingModelSpec], observed: Observed) -> TrainingProgress | None:
    """Return the aggregator's progress in the present training; None: there is none yet.

    An aggregator that has not got an edit yet may be done with fewer rounds.
    """
    worker = _head(desired, observed)
    if worker is None or worker.training is None:
        return None
    same = worker.training.rounds == desired.spec.rounds or _scripted(desired)
    return worker.training if same else msgspec.structs.replace(worker.training, state="open", model=None)


def _finished(desired: Resource[TrainingModelSpec], observed: Observed) -> bool:
    """Whether this training is done and its Model has the version, by the last status that was written."""
    before = observed.status.training if observed.status else None
    if before is None or before.state != DONE or not (before.version or before.withheld):
        return False
    if before.run != run_of(desired.spec):
        return False
    # more rounds than those that were done, or another target, begin anew
    asked = observed.asked or desired
    return observed.status is not None and observed.status.observed_generation == asked.metadata.generation


def _scripted(desired: Resource[TrainingModelSpec]) -> bool:
    """Whether the aggregator is a user's program, such as a script written for Sedna."""
    return brings_program(desired.spec.aggregator.template)


def _scripts_ended(observed: Observed) -> bool:
    """Whether each trainer's script has ended at least once: it writes its model after the last round."""
    trainers = (each for _, each in placed_workers(observed) if part_of(each) != AGGREGATOR)
    return all(each.restarts or each.phase != "Running" for each in trainers)


def _version_of(model: StoredResource, digest: str) -> str:
    """Return the name of the version in force if it has a digest, else empty text."""
    spec: ModelSpec = model.resource.spec
    versions = (each for each in spec.versions if each.version == spec.target_version)
    return next((each.version for each in versions if each.sha256 == digest), "")


def _has(model: StoredResource, digest: str) -> bool:
    """Whether a version of a Model has a digest."""
    return any(each.sha256 == digest for each in model.resource.spec.versions)


def with_version(spec: ModelSpec, training: Resource[TrainingModelSpec], progress: TrainingProgress) -> dict[str, Any]:
    """Return the fields of a Model with the trained version in force; none if it has no room for another one.

    If it has as many versions as it can have, the oldest one of this training is replaced.
    """
    assert progress.model is not None  # noqa: S101  # callers check it
    digest, job = progress.model.digest, training.metadata.name
    versions = [each for each in spec.versions if each.sha256 != digest]
    if len(versions) >= MOST_VERSIONS:
        own = (each for each in versions if each.version.startswith(f"{job}-") and each.version != spec.target_version)
        oldest = next(own, None)
        if oldest is None:
            return {}
        versions.remove(oldest)
    version = ModelVersion(version=f"{job}-{digest[:SHORT]}", url=url(GM, digest), sha256=digest)
    metrics = {each.key: each.value for each in spec.metrics}
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
    """Return the progress: what the aggregator reports, else the last written one of the same training."""
    before = observed.status.training if observed.status else None
    run = run_of(desired.spec)
    if _finished(desired, observed) and before:
        return before
    told = _aggregator(desired, observed)
    if told is None:
        same = before and before.run == run and before.state != DONE
        return before if before and same else TrainingStatus(run=run, rounds=desired.spec.rounds)
    trainers = [each for _, each in placed_workers(observed) if part_of(each) != AGGREGATOR]
    model = observed.edited.get(model_of(desired))
    version = _version_of(model, told.model.digest) if told.model and model else ""
    return TrainingStatus(
        run=run,
        state=told.state,
        round=told.round,
        rounds=told.rounds,
        trainers=sum(each.phase == "Running" for each in trainers),
        samples=sum(each.training.samples for each in trainers if each.training),
        evaluated=told.evaluated,
        metrics=[Metric(key=key, value=f"{value:.4g}") for key, value in sorted(told.metrics.items())],
        dropped=[Metric(key=key, value=str(value)) for key, value in sorted(told.dropped.items())],
        bytes=told.bytes,
        digest=told.model.digest if told.model else "",
        size=told.model.size if told.model else 0,
        version=version,
        reason=told.reason if told.state == DONE else "",
    )


def _trouble(desired: Resource[TrainingModelSpec], observed: Observed) -> Problem | None:
    """Return why the model of a training that is done is no version of the Model yet."""
    progress = _aggregator(desired, observed)
    if progress is None or progress.model is None:
        return None
    model = observed.edited.get(model_of(desired))
    if model is None:
        return Problem("ModelNotFound", f"{model_of(desired)} does not exist: apply it")
    if why := observed.pulled.get(progress.model.digest):
        return Problem("ModelNotFetched", f"the trained model is not in GM's store of files yet: {why}")
    if observed.pulled.get(progress.model.digest) == "" and not with_version(model.resource.spec, desired, progress):
        text = f"{model.key} has {MOST_VERSIONS} versions, and none of this training: remove one from spec.versions"
        return Problem("TooManyVersions", text)
    return None


def judge(
    desired: Resource[TrainingModelSpec],
    training: TrainingStatus,
    shown: Sequence[WorkerSummary],
    absent: Sequence[Problem],
    trouble: Problem | None,
) -> Readiness:
    """Return the phase of a training, and its reason. Pure.

    Done: the Model has the version. Failed: the aggregator, or so many trainers that a round is impossible, have
    failed. Degraded: rounds go on without some trainers. Pending: they cannot begin or continue now.
    """
    spec = desired.spec
    metrics = ", ".join(f"{each.key} {each.value}" for each in training.metrics)
    after = f" after {max(0, training.evaluated - 1)} rounds{metrics and ': '}{metrics}"
    if training.state == DONE and training.version:
        return Readiness("Done", training.reason, f"version {training.version} of Model {spec.model.name}{after}")
    if training.state == DONE and training.withheld:
        return Readiness("Done", "NotAdded", f"no version of Model {spec.model.name}{after}: {training.withheld}")
    if absent:
        return Readiness("Pending", absent[0].reason, "; ".join(dict.fromkeys(each.message for each in absent)))
    if training.state == DONE:
        if trouble:
            return Readiness("Pending", trouble.reason, trouble.message)
        return Readiness("Running", "AddingVersion", f"the model{after} becomes a version of Model {spec.model.name}")
    found = _Workers.of(shown)
    if found.aggregator is not None:
        return Readiness(found.aggregator.phase, found.aggregator.reason, found.aggregator.message)
    if found.able < spec.min_clients:
        return found.too_few(spec.min_clients, len(spec.trainers))
    progress = f"round {training.round} of {training.rounds}" + (f", {metrics}" if metrics else "")
    if found.problems:
        first = found.problems[0]
        return Readiness("Degraded", first.reason, f"{progress}; {found.named()}")
    return Readiness("Running", "Training" if training.round else "Starting", progress)


@dataclass(frozen=True, slots=True)
class _Workers:
    """The workers of a training: why its aggregator does not run, trainers that can train, and problems of others."""

    aggregator: Readiness | None
    able: int
    problems: tuple[Problem, ...]
    failed: bool

    @classmethod
    def of(cls, shown: Sequence[WorkerSummary]) -> _Workers:
        """Return what the state of each worker means together."""
        aggregator: Readiness | None = Readiness("Pending", "WorkerNotUp", "aggregator: not placed yet")
        able, failed, problems = 0, False, list[Problem]()
        for each in shown:
            text = f"{each.name}{f' on node {each.node}' if each.node else ''}: {each.message or each.phase}"
            if each.name == AGGREGATOR:
                up = each.phase == "Running"
                phase = "Failed" if each.phase == "Failed" else "Pending"
                aggregator = None if up else Readiness(phase, each.reason or "WorkerNotUp", text)
                problems += [Problem(STARVED, text)] if up and each.reason == STARVED else []
            elif each.phase == "Running" and each.reason in {"", STARVED}:
                able += 1
                problems += [Problem(STARVED, text)] if each.reason else []
            elif each.phase == "Pending" and each.reason in BEGINNING:
                problems.append(Problem("WorkerNotUp", text))
            else:
                # a worker that is Pending restarts, or waits for a file: it has not failed
                failed = failed or (each.phase in {"Running", "Failed"} and not each.reason.startswith(PASSING))
                problems.append(Problem(each.reason or "WorkerFailed", text))
        problems.sort(key=lambda problem: problem.reason == "WorkerNotUp")
        return cls(aggregator, able, tuple(problems), failed)

    def named(self) -> str:
        """Return the problems as text: the first one, and the reasons of others."""
        rest = list(dict.fromkeys(each.reason for each in self.problems[1:]))
        more = f" (and {len(self.problems) - 1} more: {', '.join(rest[:NAMED])})" if rest else ""
        return self.problems[0].message + more

    def too_few(self, least: int, of: int) -> Readiness:
        """Return that a round is impossible: for good if trainers have failed, else until they are there."""
        if not self.problems:
            return Readiness("Pending", TOO_FEW, f"{self.able} of {of} trainers can take part: {least} must")
        first = self.problems[0]
        phase = "Failed" if self.failed else "Pending"
        text = f"{self.able} of {of} trainers can take part: {least} must; {self.named()}"
        return Readiness(phase, first.reason, text)


def _nodes(observed: Observed) -> list[NodeSummary]:
    """Return the state of each node, those with trouble first."""
    found = []
    for share in observed.shares:
        told = share.reported
        phase = told.phase if told else "Pending"
        running = sum(worker.phase == "Running" for worker in told.workers) if told else 0
        found.append(
            NodeSummary(
                node=share.node,
                online=share.online,
                phase=phase,
                reason=told.reason if told else "",
                message=told.message if told else "",
                workers=running,
            )
        )
    return sorted(found, key=lambda each: each.phase == "Running")[:MAX_SHOWN_NODES]
