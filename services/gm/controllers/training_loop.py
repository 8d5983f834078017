"""The learning loop of a TrainingModel: what its controller does if ``spec.loop`` is set.

``services.gm.learning_loop`` decides; here its facts are taken from what GM observes, and its results become the
resource that nodes receive, edits of the Model, and the status. A training runs only in the states in which its round
trains or compares; in all others its nodes hold nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.api.learning_loop import LoopSettings
from halimede.api.model import PLURAL as MODELS
from halimede.api.trainingmodel import AGGREGATOR, TrainingModelSpec
from halimede.learning_loop.states import LoopState, State, serving
from halimede.messages import Status, WorkerSummary
from halimede.names import Key
from services.gm.cluster.port import StoredResource
from services.gm.controllers.base import Edit, Observed
from services.gm.controllers.worker_service import part_of, placed_workers
from services.gm.learning_loop import (
    ObservedLoop,
    ObservedService,
    ObservedTraining,
    advance,
    desired_model,
    digest_of,
    is_full,
    is_training,
    progress_of,
)
from services.gm.service_status import Problem, Readiness
from services.gm.worker_file_store import FULL

#: the reason of a loop that waits for its first trigger
WAITING = "WaitingForTrigger"
#: states in which the Model may have a candidate that nothing has proven
UNPROVEN = frozenset({"Judging", "Canary", "Withdrawn"})
#: how reasons of trainers that cannot train begin
UNABLE = ("Dataset", "OutOfMemory", "TrainerInvalid", "TrainerFails")
FAILED = "Failed"


def state_of(status: Status | None) -> LoopState:
    """Return the state that a status has; the first one without a readable state."""
    if status is None or not status.loop:
        return LoopState()
    try:
        return msgspec.convert(status.loop, LoopState)
    except msgspec.ValidationError:
        return LoopState()


def service_of(training: Resource[TrainingModelSpec]) -> Key:
    """Return the service of a loop."""
    assert training.spec.loop is not None  # noqa: S101  # callers check it
    return Key(JOINT_INFERENCE, training.metadata.namespace, training.spec.loop.service.name)


def with_present_round(training: Resource[TrainingModelSpec], status: Status | None) -> Resource[Any]:
    """Return what nodes receive: with the present round, and a generation that counts the rounds.

    The rounds count also after them, because nodes refuse a generation that is lower than one that they had.
    """
    loop, spec = state_of(status), dict(training.body["spec"])
    if training.spec.loop:
        trains = is_training(loop) and not is_leaving(training, loop)
        run = {"round": loop.round, "sinceS": loop.begins_s, "base": loop.base} if trains else None
        spec["loop"] = {**spec["loop"], "run": run}
    generation = training.metadata.generation + loop.round
    metadata = {**training.body["metadata"], "generation": generation}
    with_round = parse({**training.body, "metadata": metadata, "spec": spec})
    return replace(with_round, metadata=msgspec.structs.replace(training.metadata, generation=generation))


def is_leaving(training: Resource[TrainingModelSpec], loop: LoopState) -> bool:
    """Whether a loop has to give back the Model of its last round: it was removed, or has another Model or service."""
    if not loop.model:
        return False
    settings = training.spec.loop
    if settings is None or loop.model != training.spec.model.name:
        return True
    return loop.service not in {"", settings.service.name}


def models_of(training: Resource[TrainingModelSpec], loop: LoopState) -> list[Key]:
    """Return the Models that a loop may edit: the one that it names, and one that it leaves."""
    names = dict.fromkeys(filter(None, (training.spec.model.name, loop.model)))
    return [Key(MODELS, training.metadata.namespace, name) for name in names]


def is_idle(training: Resource[TrainingModelSpec]) -> bool:
    """Whether a loop runs no training: then nodes hold nothing of it."""
    return training.spec.loop is not None and training.spec.loop.run is None


def model_edits(
    training: Resource[TrainingModelSpec], observed: Observed, model: StoredResource, identity: str
) -> Iterator[Edit]:
    """Yield what the Model must have in the present state, if that differs."""
    loop, settings = state_of(observed.status), training.spec.loop or LoopSettings()
    facts = observe(training, observed, model, identity, None)
    model_facts = model.status.model if model.status else None
    desired_spec = desired_model(loop, facts, training.metadata.name, settings, model_facts)
    if desired_spec is not None:
        before, after = (msgspec.to_builtins(spec) for spec in (model.resource.spec, desired_spec))
        names = sorted(before.keys() | after.keys())
        yield Edit(model, {name: after.get(name) for name in names if before.get(name) != after.get(name)})


def withdraw(observed: Observed, model: StoredResource | None) -> Observed:
    """Return what is observed for a loop that is being deleted: a candidate that is on trial is withdrawn."""
    loop, status = state_of(observed.status), observed.status or Status()
    there = model is not None and bool(digest_of(loop.version, model.resource.spec))
    state: State = "Withdrawn" if loop.state in UNPROVEN and there else "Collecting"
    loop_fields = msgspec.to_builtins(msgspec.structs.replace(loop, state=state))
    return replace(observed, status=msgspec.structs.replace(status, loop=loop_fields))


def left_edits(training: Resource[TrainingModelSpec], observed: Observed, identity: str) -> list[Edit]:
    """Return what the Model that a loop leaves must have: without a candidate that nothing has proven."""
    model = observed.edited.get(models_of(training, state_of(observed.status))[-1])
    return list(model_edits(training, withdraw(observed, model), model, identity)) if model else []


def leave_model(training: Resource[TrainingModelSpec], observed: Observed, identity: str) -> LoopState:
    """Return the state of a loop that leaves a Model; its rounds count on."""
    if left_edits(training, observed, identity):
        model = observed.edited.get(models_of(training, state_of(observed.status))[-1])
        return state_of(withdraw(observed, model).status)
    return msgspec.structs.replace(
        state_of(observed.status),
        state="Collecting", reason="", message="", model="", base="", version="", restore=None,
    )  # fmt: skip


def observe(
    training: Resource[TrainingModelSpec],
    observed: Observed,
    model: StoredResource | None,
    identity: str,
    trouble: Readiness | None,
) -> ObservedLoop:
    """Return all that the loop depends on. ``trouble``: the state of the training by its workers."""
    service = service_of(training) if training.spec.loop else None
    reports = (observed.watched.get(service) if service else None) or {}
    parts = ((part_of(worker), observed.is_online(node), worker) for node, worker in placed_workers(observed))
    head, trainers, offline = progress_of(parts, identity, AGGREGATOR)
    error = f"{trouble.reason}: {trouble.message}" if trouble and trouble.phase == FAILED else ""
    if len(trainers) + len(offline) == len(training.spec.trainers):
        reasons = [progress.reason for progress in (*trainers, *offline)]
        if all(reason.startswith(UNABLE) for reason in reasons):
            error = error or f"{', '.join(dict.fromkeys(reasons))}: no trainer can train"
    digest = head.model.digest if head and head.model else ""
    if (why := observed.pulled.get(digest, "")).startswith(FULL):
        error = error or f"ModelNotFetched: the trained model is not in GM's store of files: {why}"
    status = model.status if model else None
    fails = status if status and status.phase == FAILED and is_status_current(model) else None
    return ObservedLoop(
        service=ObservedService.of(reports.values(), observed.is_online),
        training=ObservedTraining(head, trainers, error, pulled=observed.pulled.get(digest) == "", offline=offline),
        model=model.resource.spec if model else None,
        model_error=f"{fails.conditions[-1].reason}: {fails.conditions[-1].message}" if fails else "",
        command=training.spec.loop.command if training.spec.loop else 0,
        as_pods=observed.as_pods,
        pods_error=_pod_failure(observed.statuses.get(service)) if service and observed.as_pods else "",
    )


def _pod_failure(service: Status | None) -> str:
    """Return why a pod of a service has failed; empty: none has."""
    if service is None or not service.failed or not service.conditions:
        return ""
    return f"{service.conditions[-1].reason}: {service.conditions[-1].message}"


def rival(training: Resource[TrainingModelSpec], observed: Observed) -> Key | None:
    """Return the loop that has the Model or the service of this one: the oldest has both, else the first by name."""
    rivals = [job for job in observed.related.values() if isinstance(job.spec, TrainingModelSpec) and job.spec.loop]
    first = min([training, *rivals], key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.name))
    return first.key if first.key != training.key else None


def loop_problems(training: Resource[TrainingModelSpec], observed: Observed) -> list[Problem]:
    """Return what prevents rounds of the loop."""
    key, loop = service_of(training), state_of(observed.status)
    if observed.watched.get(key) is None:
        return [Problem("ServiceNotFound", f"spec.loop.service: {key} does not exist: apply it")]
    if first := rival(training, observed):
        return [Problem("LoopConflict", f"{first} has a loop of the same Model or service: delete one of the two")]
    service, name = observed.related.get(key), training.spec.model.name
    used = service.spec.edge_worker.model.name if service else ""
    if used and used != name:
        return [Problem("ModelNotUsed", f"the edge worker of {key} uses Model {used}, and spec.model is {name}")]
    return [*_no_round(training, observed, loop)]


def _no_round(training: Resource[TrainingModelSpec], observed: Observed, loop: LoopState) -> Iterator[Problem]:
    """Yield why a candidate could not become a version, or why none is trained."""
    key = models_of(training, LoopState())[0]
    model = observed.edited.get(key)
    there = model is not None and digest_of(loop.version, model.resource.spec)
    if model and not there and is_full(loop, model.resource.spec, training.metadata.name):
        yield Problem("TooManyVersions", f"{key} has no room for a candidate: remove one from spec.versions")
    reports = (observed.watched.get(service_of(training)) or {}).values()
    versions = ObservedService.of(reports, observed.is_online).versions
    if loop.state == "Collecting" and len(versions) > 1:
        text = f"edge workers use versions {', '.join(sorted(versions))}: a round begins once all use one"
        yield Problem("VersionsDiffer", text)


def is_status_current(model: StoredResource | None) -> bool:
    """Whether the status of a Model is about its present spec."""
    return (
        model is not None
        and model.status is not None
        and model.status.observed_generation >= model.resource.metadata.generation
    )


def next_state(
    training: Resource[TrainingModelSpec],
    observed: Observed,
    model: StoredResource | None,
    identity: str,
    trouble: Readiness,
) -> LoopState:
    """Return the next state of the loop."""
    assert training.spec.loop is not None  # noqa: S101  # callers check it
    loop = state_of(observed.status)
    if is_leaving(training, loop) or rival(training, observed):
        return leave_model(training, observed, identity)
    loop = serving(loop, training.spec.loop.service.name)
    facts = observe(training, observed, model, identity, trouble if is_training(loop) else None)
    if loop.state == "Collecting" and loop.restore is None and loop_problems(training, observed):
        return loop
    loop = advance(loop, facts, training.metadata.name, training.spec.loop, observed.now)
    return msgspec.structs.replace(loop, model=training.spec.model.name)


def verdict(loop: LoopState, training: Readiness, absent: list[Problem], shown: list[WorkerSummary]) -> Readiness:
    """Return phase and reason: the state of the loop, unless something that it needs is missing."""
    if absent:
        return Readiness("Pending", absent[0].reason, "; ".join(dict.fromkeys(problem.message for problem in absent)))
    if loop.state == "Training" and shown:
        return Readiness(loop.state, training.reason, training.message)
    return Readiness(loop.state, loop.reason or WAITING, loop.message)
