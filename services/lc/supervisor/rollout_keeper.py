"""Keeps the rollouts of a node's workers (``RolloutKeeper``), and assigns models to running workers.

A rollout is the state of new models and new settings (the process that the service asks for) in a worker: which are
proven, and which were refused. To assign a model is to write it as the desired one into a file that the worker reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from pathlib import Path

import msgspec
import structlog

from halimede.messages import ModelInUse, WorkerInfo
from halimede.models import Cache
from halimede.models.archive import is_intact
from halimede.models.cache import in_thread
from halimede.models.desired_state import DesiredModel
from services.lc.paths import NodePaths
from services.lc.supervisor.process import Start, StartError
from services.lc.supervisor.worker_rollout import (
    FAILED,
    PROVEN_S,
    SETTINGS_REFUSED,
    RefusedSettings,
    WorkerRollout,
    is_about,
    load,
    read_assigned,
    save,
    write_assigned,
)
from services.lc.supervisor.worker_state import STABLE_S, Assignment, WorkerState, failure

log = structlog.get_logger()


class RolloutKeeper:
    """Keeps the ``WorkerRollout`` of each worker, stores it, and assigns models. ``Supervisor`` calls it.

    A running worker gets a new model only after it has reported that it can change models. ``missing`` is called with a
    model's path if the file is missing or has changed since it was prepared.
    """

    def __init__(self, folders: NodePaths, missing: Callable[[Path], None], tasks: asyncio.TaskGroup) -> None:
        self._folders = folders
        self._missing = missing
        self._tasks = tasks
        self._cache = Cache(folders.models)

    def begin(self, entry: WorkerState) -> str:
        """Load the rollout of a worker that is supervised from now on; return the digest of its desired process.

        For an adopted worker that has returned to its previous settings, it is the digest of the refused ones.
        """
        folder = self._folders.worker(entry.worker)
        rollout = load(folder)
        if not entry.adopted:
            desired_model = entry.start.desired_model if entry.start else None
            entry.assignment = Assignment(planned_model=desired_model, rollout=rollout)
            return entry.spec_hash
        model = read_assigned(folder).only
        entry.assignment = Assignment(planned_model=model, model=model, rollout=rollout)
        is_returned = rollout.settings is not None and rollout.settings.digest == entry.process_hash
        refused = rollout.refused_settings
        return refused.spec_hash if refused and is_returned else entry.spec_hash

    def plan_model(self, entry: WorkerState, desired_model: DesiredModel | None) -> None:
        """Set the model that plans have for a running worker, and assign the model if the worker can change models."""
        entry.assignment.planned_model = desired_model
        self.assign_next(entry)

    def record_start(self, entry: WorkerState) -> None:
        """Record that a worker runs with the settings of its process."""
        if entry.start:
            rollout, desired = entry.assignment.rollout, entry.start.spec
            self._save(entry, rollout.with_start(rollout.spec(desired), desired))

    def record_failed_start(self, entry: WorkerState) -> RefusedSettings | None:
        """Record that a worker cannot start; return the refusal if it returns to its previous settings now, or None."""
        if entry.start is None:
            return None
        self._save(entry, entry.assignment.rollout.with_failed_start(entry.start.spec, failure(entry)))
        refused = entry.assignment.rollout.settings_refusal(entry.spec_hash)
        if refused:
            log.warning("settings refused, previous ones kept", worker=str(entry.worker), cause=refused.message)
        return refused

    def assign_first(self, entry: WorkerState, intact: Container[Path]) -> Path | None:
        """Assign the first model to a worker that is about to start; return the model's file, None: it has no model.

        ``intact``: paths of those of the worker's files that are intact. Raises StartError if the worker's folder
        cannot be written.
        """
        start = entry.start
        if start is None or start.desired_model is None:
            return start.model if start else None
        self._save(entry, entry.assignment.rollout.with_desired(start.desired_model))
        model = entry.assignment.rollout.first_model(start.desired_model, entry.process_hash, intact)
        folder = self._folders.worker(entry.worker)
        try:
            write_assigned(folder, model)
        except OSError as error:
            text = f"{folder} cannot be written to: {error.strerror}: free some space, or correct its permissions"
            raise StartError("StateUnusable", text) from error
        _record_assigned(entry.assignment, model)
        return Path(model.path)

    def receive(self, entry: WorkerState, info: WorkerInfo) -> None:
        """Record what a worker reports of its model, and assign the desired one if the worker does not have it."""
        now, report, assignment = asyncio.get_running_loop().time(), info.model, entry.assignment
        if report and (assigned := assignment.model):
            answers = is_about(report, assigned) and not report.refused and not report.canary_version
            assignment.answering = (assignment.answering or now) if answers else None
            proven = assignment.answering is not None and now - assignment.answering >= PROVEN_S
            self._save(entry, assignment.rollout.with_report(assigned, report, entry.process_hash, proven=proven))
        self.assign_next(entry)

    def assign_next(self, entry: WorkerState) -> None:
        """Assign the desired model to a worker, if it can change models and has not refused it."""
        desired_model = entry.start.desired_model if entry.start else None
        if desired_model is None:
            return
        self._save(entry, entry.assignment.rollout.with_desired(desired_model))
        if self._must_assign(entry, desired_model) and not entry.assignment.checking:
            entry.assignment.checking = True
            self._tasks.create_task(self._assign(entry, desired_model), name=f"assign {entry.worker}")

    def _must_assign(self, entry: WorkerState, desired_model: DesiredModel) -> bool:
        """Whether a model is still desired, not assigned and not refused, and the worker can change models."""
        is_desired = entry.start is not None and entry.start.desired_model == desired_model != entry.assignment.model
        return is_desired and entry.assignment.rollout.refusal(desired_model) is None and bool(can_swap(entry))

    async def _assign(self, entry: WorkerState, desired_model: DesiredModel) -> None:
        """Assign a model whose file is intact, unless another one is desired meanwhile."""
        path = Path(desired_model.path)
        try:
            intact = await in_thread(is_intact, self._cache, path)
        finally:
            entry.assignment.checking = False
        if not self._must_assign(entry, desired_model):
            return
        if not intact:  # it is assigned when it is so again, at the worker's next report
            self._missing(path)
            return
        folder = self._folders.worker(entry.worker)
        try:
            write_assigned(folder, desired_model)
        except OSError as error:  # the worker's next report triggers a retry
            entry.assignment.error = f"{folder} cannot be written to: {error.strerror}: free some space"
            log.warning("model not assigned to worker", worker=str(entry.worker), error=error.strerror)
            return
        log.info("model assigned to worker", worker=str(entry.worker), version=desired_model.version)
        _record_assigned(entry.assignment, desired_model)

    def record_stop(self, entry: WorkerState, successor: Start | None) -> None:
        """Tell a worker that is about to stop whether its successor, if any, continues its MQTT sessions.

        It ends them if not. ``successor``: how the worker starts again; None: it does not.
        """
        model, rollout = entry.assignment.model, entry.assignment.rollout
        current = rollout.spec(entry.start.spec) if entry.start else rollout.settings
        if model is None or current is None:
            return
        continues = successor is not None and current.has_same_sessions(successor.spec)
        try:
            write_assigned(self._folders.worker(entry.worker), model, successor=continues)
        except OSError as error:  # it ends its sessions: the frames until its successor runs have no subscriber
            log.warning("successor not recorded", worker=str(entry.worker), error=error.strerror)

    def record_end(self, entry: WorkerState, cause: str) -> None:
        """Record that a worker has ended by itself, for a cause."""
        if model := entry.assignment.model:
            self._save(entry, entry.assignment.rollout.with_end(model, cause, entry.process_hash))

    def _save(self, entry: WorkerState, rollout: WorkerRollout) -> None:
        """Set and store the rollout of a worker, if it has changed."""
        if rollout != entry.assignment.rollout:
            entry.assignment.rollout = rollout
            save(self._folders.worker(entry.worker), rollout)


def _record_assigned(assignment: Assignment, model: DesiredModel) -> None:
    """Record that a model was written as the desired one."""
    assignment.model, assignment.answering, assignment.error = model, None, ""


def can_swap(entry: WorkerState) -> bool | None:
    """Whether a worker can change its model while it runs; None: its first report is still pending."""
    if entry.process is None or entry.stop.is_set():
        return False
    if entry.info is None:
        patience = STABLE_S if entry.adopted else entry.patience_s
        return None if asyncio.get_running_loop().time() - entry.since < patience else False
    return entry.info.model is not None and entry.info.status == "running"


def model_report(entry: WorkerState) -> ModelInUse | None:
    """Return a worker's report on its model, with what it refused before a restart; None: it has not reported one."""
    report = entry.info.model if entry.info else None
    refusal = entry.assignment.rollout.refusal(entry.start.desired_model if entry.start else None)
    if report is None or refusal is None or report.refused:
        return report
    return msgspec.structs.replace(report, refused=refusal.digest, reason=refusal.reason, message=refusal.message)


def trouble(entry: WorkerState) -> tuple[str, str]:
    """Return why a worker runs without its desired settings or model: reason and message, both empty: it has both."""
    if entry.start and (refused := entry.assignment.rollout.settings_refusal(entry.spec_hash)):
        return SETTINGS_REFUSED, f"it cannot start with its new settings, the previous ones are kept: {refused.message}"
    model = entry.start.desired_model if entry.start else None
    report = entry.info.model if entry.info else None
    if model and (refusal := entry.assignment.rollout.refusal(model)):
        previous = f"version {report.version}" if report and report.version else "the previous version"
        new = f"version {model.version} of model {model.name}"
        return FAILED, f"{new} was refused, {previous} is kept: {refusal.reason}: {refusal.message}"
    if entry.assignment.error:
        return FAILED, entry.assignment.error
    return (FAILED, report.message) if report and report.reason and not report.refused else ("", "")


def models_in_use(entry: WorkerState) -> list[Path | str]:
    """Return the models that a worker uses or may return to, by path or digest."""
    start, rollout, report = entry.start, entry.assignment.rollout, entry.info.model if entry.info else None
    models = [model for model in (entry.assignment.model, rollout.good) if model]
    paths: list[Path | str] = [Path(model.path) for model in models]
    if rollout.settings and (path := rollout.settings.env.get("MODEL_URL")):
        paths.append(Path(path))
    if start:
        paths += [*([start.model] if start.model else []), *start.files]
    return [*paths, *([report.digest] if report else [])]
