"""The rules of a TrainingModel with a learning loop: what its controller does if ``spec.loop`` is set.

A learning loop trains a candidate for a Model on hard samples of a service, judges it and rolls it out, again and
again; each pass is a round. ``services.gm.loop_facts`` computes the loop's next state, and
``services.gm.candidate_version`` the desired versions of the Model. This module takes their input from what GM
observes. Their results become the resource that nodes receive, edits of the Model, and the status. A training runs only
in the states in which its round trains or compares; in all others its nodes hold nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.jointinference import PLURAL as JOINT_INFERENCE
from halimede.api.learning_loop import LoopSettings
from halimede.api.model import PLURAL as MODELS
from halimede.api.trainingmodel import AGGREGATOR, TrainingModelSpec
from halimede.learning_loop.states import LoopState, State, desired_loop, with_service
from halimede.messages import Status, TrainingProgress, WorkerSummary
from halimede.names import Key
from services.gm import loop_facts
from services.gm.candidate_version import desired_model, digest_of, is_full
from services.gm.cluster.port import NodeReport, StoredResource
from services.gm.controllers.base import Edit, Observed
from services.gm.controllers.worker_service import part_of, placed_workers
from services.gm.loop_facts import ObservedLoop
from services.gm.service_status import Problem, Readiness
from services.gm.worker_file_store import FULL

#: the reason of a loop that waits for its first trigger
WAITING = "WaitingForTrigger"
#: states in which the Model may have a candidate that nothing has proven
UNPROVEN = frozenset({"Judging", "Canary", "Withdrawn"})
#: how the reasons of trainers that cannot train begin
UNABLE = ("Dataset", "OutOfMemory", "TrainerInvalid", "TrainerFails")
#: the phase of a Model or training that has failed
FAILED = "Failed"


def state_of(status: Status | None) -> LoopState:
    """Return the loop's state in a status; without a readable one, the state in which a loop begins."""
    if status is None or not status.loop:
        return LoopState()
    try:
        return msgspec.convert(status.loop, LoopState)
    except msgspec.ValidationError:
        return LoopState()


def service_of(training: Resource[TrainingModelSpec]) -> Key:
    """Return the key of the service on whose samples a loop trains. The training must have a loop."""
    assert training.spec.loop is not None  # noqa: S101  # callers check it
    return Key(JOINT_INFERENCE, training.metadata.namespace, training.spec.loop.service.name)


def with_present_round(training: Resource[TrainingModelSpec], status: Status | None) -> Resource[Any]:
    """Return the training as nodes receive it: with a generation that counts the rounds.

    It has the present round while that trains or compares, else none.
    The generation is the user's own plus the number of rounds so far: nodes refuse one that is lower than before.
    """
    loop, spec = state_of(status), dict(training.body["spec"])
    if training.spec.loop:
        desired = desired_loop(loop, training.spec.loop)
        runs = desired.round and not is_leaving(training, loop)
        run = {"round": desired.round, "sinceS": desired.begins_s, "base": loop.base} if runs else None
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
    """Return the keys of the Models that a loop may edit: that in the spec, then the one that it leaves, if another."""
    names = dict.fromkeys(filter(None, (training.spec.model.name, loop.model)))
    return [Key(MODELS, training.metadata.namespace, name) for name in names]


def is_idle(training: Resource[TrainingModelSpec]) -> bool:
    """Whether a training has a loop whose round neither trains nor compares now: then nodes hold nothing of it.

    ``training``: as ``with_present_round`` returns it.
    """
    return training.spec.loop is not None and training.spec.loop.run is None


def model_edits(
    training: Resource[TrainingModelSpec], observed: Observed, model: StoredResource, run_id: str
) -> Iterator[Edit]:
    """Yield the edit that gives the Model what it must have in the loop's state; nothing if it has that.

    ``run_id``: uid of the training and its run, by which reports of its workers are recognized.
    """
    loop, settings = state_of(observed.status), training.spec.loop or LoopSettings()
    candidate = observed_loop(training, observed, model, run_id, None).candidate(training.metadata.name)
    file_facts = model.status.model if model.status else None  # of the present file, if known
    spec = model.resource.spec
    desired_spec = desired_model(loop, spec, settings, candidate, file_facts, as_pods=observed.as_pods)
    if desired_spec is not None:
        before, after = msgspec.to_builtins(spec), msgspec.to_builtins(desired_spec)
        names = sorted(before.keys() | after.keys())
        yield Edit(model, {name: after.get(name) for name in names if before.get(name) != after.get(name)})


def with_withdrawn_candidate(observed: Observed, model: StoredResource | None) -> Observed:
    """Return what is observed, with the loop's state at its end: a candidate that nothing has proven is withdrawn."""
    loop, status = state_of(observed.status), observed.status or Status()
    has_candidate = model is not None and bool(digest_of(loop.version, model.resource.spec))
    state: State = "Withdrawn" if loop.state in UNPROVEN and has_candidate else "Collecting"
    loop_fields = msgspec.to_builtins(msgspec.structs.replace(loop, state=state))
    return replace(observed, status=msgspec.structs.replace(status, loop=loop_fields))


def _model_to_leave(training: Resource[TrainingModelSpec], observed: Observed) -> StoredResource | None:
    """Return the Model that a loop leaves, or has if it leaves none; None: it does not exist."""
    return observed.edited.get(models_of(training, state_of(observed.status))[-1])


def edits_on_leaving(training: Resource[TrainingModelSpec], observed: Observed, run_id: str) -> list[Edit]:
    """Return the edits of the Model that a loop leaves: they remove an unproven candidate.

    They also give the Model the settings of its roll-out back.
    """
    model = _model_to_leave(training, observed)
    return list(model_edits(training, with_withdrawn_candidate(observed, model), model, run_id)) if model else []


def state_on_leaving(training: Resource[TrainingModelSpec], observed: Observed, run_id: str) -> LoopState:
    """Return the state of a loop that leaves a Model: that of ``with_withdrawn_candidate`` while edits are due.

    Afterwards it is Collecting, without a Model. The number of rounds is kept.
    """
    if edits_on_leaving(training, observed, run_id):
        return state_of(with_withdrawn_candidate(observed, _model_to_leave(training, observed)).status)
    return msgspec.structs.replace(
        state_of(observed.status),
        state="Collecting", reason="", message="", model="", base="", version="", restore=None,
    )  # fmt: skip


def observed_loop(
    training: Resource[TrainingModelSpec],
    observed: Observed,
    model: StoredResource | None,
    run_id: str,
    readiness: Readiness | None,
) -> ObservedLoop:
    """Return all that the loop depends on.

    ``model``: the Model that it edits, if it exists. ``run_id``: uid and run of the training. ``readiness``: the phase
    of the training by its workers; None: it is not of interest.
    """
    service = service_of(training) if training.spec.loop else None
    aggregator, trainers, offline = _progress(observed, run_id)
    error = f"{readiness.reason}: {readiness.message}" if readiness and readiness.phase == FAILED else ""
    if len(trainers) + len(offline) == len(training.spec.trainers):  # once all trainers have reported
        reasons = [progress.reason for progress in (*trainers, *offline)]
        if all(reason.startswith(UNABLE) for reason in reasons):
            error = error or f"{', '.join(dict.fromkeys(reasons))}: no trainer can train"
    digest = aggregator.model.digest if aggregator and aggregator.model else ""
    if (why := observed.pulled.get(digest, "")).startswith(FULL):
        error = error or f"ModelNotFetched: the trained model is not in GM's store of files: {why}"
    status = model.status if model else None
    fails = status if status and status.phase == FAILED and is_status_current(model) else None
    return ObservedLoop(
        reports=_service_reports(training, observed),
        is_online=observed.is_online,
        aggregator=aggregator,
        trainers=trainers,
        offline=offline,
        training_error=error,
        is_pulled=observed.pulled.get(digest) == "",
        model=model.resource.spec if model else None,
        model_error=f"{fails.conditions[-1].reason}: {fails.conditions[-1].message}" if fails else "",
        command=training.spec.loop.command if training.spec.loop else 0,
        as_pods=observed.as_pods,
        pods_error=_pod_failure(observed.statuses.get(service)) if service and observed.as_pods else "",
    )


def _service_reports(training: Resource[TrainingModelSpec], observed: Observed) -> Collection[NodeReport]:
    """Return the nodes' reports on the service of a loop; none without a loop, or if the service does not exist."""
    return ((observed.watched.get(service_of(training)) if training.spec.loop else None) or {}).values()


def _progress(
    observed: Observed, run_id: str
) -> tuple[TrainingProgress | None, list[TrainingProgress], list[TrainingProgress]]:
    """Return the progress in a run: of the aggregator (or None), of trainers on online nodes, and of other trainers."""
    aggregator, trainers, offline = None, list[TrainingProgress](), list[TrainingProgress]()
    for node, worker in placed_workers(observed):
        progress = worker.training
        if progress is None or progress.run != run_id:
            continue
        if part_of(worker) == AGGREGATOR:
            aggregator = progress
        else:
            (trainers if observed.is_online(node) else offline).append(progress)
    return aggregator, trainers, offline


def _pod_failure(service: Status | None) -> str:
    """Return why a pod of a service has failed; empty: none has."""
    if service is None or not service.failed or not service.conditions:
        return ""
    return f"{service.conditions[-1].reason}: {service.conditions[-1].message}"


def rival_of(training: Resource[TrainingModelSpec], observed: Observed) -> Key | None:
    """Return the key of another loop that has this loop's Model or service; None: this loop may have both.

    Of several loops the oldest has them; of equally old ones, the first by name.
    """
    # related: only loops that watch this loop's Model or service
    rivals = [job for job in observed.related.values() if isinstance(job.spec, TrainingModelSpec) and job.spec.loop]
    first = min([training, *rivals], key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.name))
    return first.key if first.key != training.key else None


def loop_problems(training: Resource[TrainingModelSpec], observed: Observed) -> list[Problem]:
    """Return the problems that prevent the loop's next round."""
    key, loop = service_of(training), state_of(observed.status)
    if observed.watched.get(key) is None:
        return [Problem("ServiceNotFound", f"spec.loop.service: {key} does not exist: apply it")]
    if first := rival_of(training, observed):
        return [Problem("LoopConflict", f"{first} has a loop of the same Model or service: delete one of the two")]
    service, name = observed.related.get(key), training.spec.model.name
    used = service.spec.edge_worker.model.name if service else ""
    if used and used != name:
        return [Problem("ModelNotUsed", f"the edge worker of {key} uses Model {used}, and spec.model is {name}")]
    return [*_version_problems(training, observed, loop)]


def _version_problems(training: Resource[TrainingModelSpec], observed: Observed, loop: LoopState) -> Iterator[Problem]:
    """Yield problems with versions: no room for a candidate, or edge workers that use different ones."""
    key = models_of(training, loop)[0]  # that in the spec
    model = observed.edited.get(key)
    has_candidate = model is not None and digest_of(loop.version, model.resource.spec)
    if model and not has_candidate and is_full(loop, model.resource.spec, training.metadata.name):
        yield Problem("TooManyVersions", f"{key} has no room for a candidate: remove one from spec.versions")
    versions = ObservedLoop(_service_reports(training, observed), observed.is_online).versions
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
    run_id: str,
    readiness: Readiness,
) -> LoopState:
    """Return the next state of the loop: ``loop_facts.step``, unless it leaves its Model or cannot begin a round.

    ``model``: the Model that it edits, if it exists. ``run_id``: uid and run of the training. ``readiness``: the phase
    of the training by its workers.
    """
    assert training.spec.loop is not None  # noqa: S101  # callers check it
    loop = state_of(observed.status)
    if is_leaving(training, loop) or rival_of(training, observed):
        return state_on_leaving(training, observed, run_id)
    loop = with_service(loop, training.spec.loop.service.name)
    runs = desired_loop(loop, training.spec.loop).round
    facts = observed_loop(training, observed, model, run_id, readiness if runs else None)
    if loop.state == "Collecting" and loop.restore is None and loop_problems(training, observed):
        return loop
    loop = loop_facts.step(loop, facts, training.metadata.name, training.spec.loop, observed.now)
    return msgspec.structs.replace(loop, model=training.spec.model.name)


def loop_readiness(
    loop: LoopState, readiness: Readiness, problems: list[Problem], workers_in_status: list[WorkerSummary]
) -> Readiness:
    """Return the phase of a training with a loop: the loop's state, unless something that it needs is missing.

    ``readiness``: the phase by its workers. ``problems``: what is missing.
    """
    if problems:
        messages = dict.fromkeys(problem.message for problem in problems)
        return Readiness("Pending", problems[0].reason, "; ".join(messages))
    if loop.state == "Training" and workers_in_status:
        return Readiness(loop.state, readiness.reason, readiness.message)
    return Readiness(loop.state, loop.reason or WAITING, loop.message)
