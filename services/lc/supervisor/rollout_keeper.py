"""Keeps the rollouts of a node's workers, and assigns models to running ones."""

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
    WorkerRollout,
    is_about,
    load,
    read_assigned,
    save,
    write_assigned,
)
from services.lc.supervisor.worker_state import STABLE_S, WorkerState, failure

log = structlog.get_logger()


class RolloutKeeper:
    """Keeps the rollouts of a node's workers, and writes their desired models: the effects of ``WorkerRollout``.

    A worker gets a new model only while it runs and has reported that it can change models. Whatever the outcome, its
    current model counts as in use until it reports another one.

    ``missing`` is called with a model's path if the file has vanished or changed since it was prepared.
    """

    def __init__(self, folders: NodePaths, missing: Callable[[Path], None], tasks: asyncio.TaskGroup) -> None:
        self._folders = folders
        self._missing = missing
        self._tasks = tasks
        self._cache = Cache(folders.models)

    def begin(self, entry: WorkerState) -> None:
        """Load the rollout state of a worker that is supervised from now on."""
        folder = self._folders.worker(entry.worker)
        entry.rollout = load(folder)
        if entry.adopted:
            entry.assigned = entry.planned_model = read_assigned(folder).only
            settings, refused = entry.rollout.settings, entry.rollout.refused_settings
            if settings and refused and settings.digest == entry.process_hash:
                entry.spec_hash = refused.spec_hash

    def record_start(self, entry: WorkerState) -> None:
        """Record that a worker runs with the settings of its process."""
        if entry.start:
            desired = entry.start.spec
            self._save(entry, entry.rollout.with_start(entry.rollout.spec(desired), desired))

    def record_failed_start(self, entry: WorkerState) -> bool:
        """Record that a worker cannot start; return whether it returns to its previous settings now."""
        if entry.start is None:
            return False
        self._save(entry, entry.rollout.with_failed_start(entry.start.spec, failure(entry)))
        refused = entry.rollout.settings_refusal(entry.spec_hash)
        if refused:
            log.warning("settings refused, previous ones kept", worker=str(entry.worker), cause=refused.message)
        return refused is not None

    def assign_first(self, entry: WorkerState, intact: Container[Path]) -> Path | None:
        """Assign the first model to a worker that is about to start; return its file. Raises StartError.

        ``intact``: the intact ones of the worker's files.
        """
        start = entry.start
        if start is None or start.desired_model is None:
            return start.model if start else None
        self._save(entry, entry.rollout.with_desired(start.desired_model))
        model = entry.rollout.first_model(start.desired_model, entry.process_hash, intact)
        folder = self._folders.worker(entry.worker)
        try:
            write_assigned(folder, model)
        except OSError as error:
            text = f"{folder} cannot be written to: {error.strerror}: free some space, or correct its permissions"
            raise StartError("StateUnusable", text) from error
        entry.assigned, entry.answering, entry.assign_error = model, None, ""
        return Path(model.path)

    def receive(self, entry: WorkerState, info: WorkerInfo) -> None:
        """Receive a worker's report on its model, and assign the next one if due."""
        now, report, assigned = asyncio.get_running_loop().time(), info.model, entry.assigned
        if report and assigned:
            answers = is_about(report, assigned) and not report.refused and not report.canary_version
            entry.answering = (entry.answering or now) if answers else None
            proven = entry.answering is not None and now - entry.answering >= PROVEN_S
            self._save(entry, entry.rollout.with_report(assigned, report, entry.process_hash, proven=proven))
        self.assign_next(entry)

    def assign_next(self, entry: WorkerState) -> None:
        """Assign the desired model to a worker, if it can change models and has not refused it."""
        desired_model = entry.start.desired_model if entry.start else None
        if desired_model is None:
            return
        self._save(entry, entry.rollout.with_desired(desired_model))
        if self._must_assign(entry, desired_model) and not entry.assigning:
            entry.assigning = True
            self._tasks.create_task(self._assign(entry, desired_model), name=f"assign {entry.worker}")

    def _must_assign(self, entry: WorkerState, desired_model: DesiredModel) -> bool:
        is_desired = entry.start is not None and entry.start.desired_model == desired_model != entry.assigned
        return is_desired and entry.rollout.refusal(desired_model) is None and bool(can_swap(entry))

    async def _assign(self, entry: WorkerState, desired_model: DesiredModel) -> None:
        """Assign a model whose file is intact, unless another one is desired meanwhile."""
        path = Path(desired_model.path)
        try:
            intact = await in_thread(is_intact, self._cache, path)
        finally:
            entry.assigning = False
        if not self._must_assign(entry, desired_model):
            return
        if not intact:  # it is assigned when it is so again, at the worker's next report
            self._missing(path)
            return
        folder = self._folders.worker(entry.worker)
        try:
            write_assigned(folder, desired_model)
        except OSError as error:  # the worker's next report triggers a retry
            entry.assign_error = f"{folder} cannot be written to: {error.strerror}: free some space"
            log.warning("model not assigned to worker", worker=str(entry.worker), error=error.strerror)
            return
        log.info("model assigned to worker", worker=str(entry.worker), version=desired_model.version)
        entry.assigned, entry.answering, entry.assign_error = desired_model, None, ""

    def record_stop(self, entry: WorkerState, successor: Start | None) -> None:
        """Record for a worker that is about to stop whether its successor continues its sessions with the broker."""
        desired = entry.start.spec if entry.start else None
        current = entry.rollout.spec(desired) if desired else entry.rollout.settings
        if entry.assigned is None or current is None:
            return
        continues = successor is not None and current.has_same_sessions(successor.spec)
        try:
            write_assigned(self._folders.worker(entry.worker), entry.assigned, successor=continues)
        except OSError as error:  # it ends its sessions: the frames until its successor runs have no subscriber
            log.warning("successor not recorded", worker=str(entry.worker), error=error.strerror)

    def record_end(self, entry: WorkerState, cause: str) -> None:
        """Record that a worker has ended by itself."""
        if entry.assigned:
            self._save(entry, entry.rollout.with_end(entry.assigned, cause, entry.process_hash))

    def _save(self, entry: WorkerState, rollout: WorkerRollout) -> None:
        if rollout != entry.rollout:
            entry.rollout = rollout
            save(self._folders.worker(entry.worker), rollout)


def can_swap(entry: WorkerState) -> bool | None:
    """Whether a worker can change its model while it runs; None: its first report is still pending."""
    if entry.process is None or entry.stop.is_set():
        return False
    if entry.info is None:
        patience = STABLE_S if entry.adopted else entry.patience_s
        return None if asyncio.get_running_loop().time() - entry.since < patience else False
    return entry.info.model is not None and entry.info.status == "running"


def model_report(entry: WorkerState) -> ModelInUse | None:
    """Return a worker's report on its model, with what it refused before its restart."""
    report = entry.info.model if entry.info else None
    refusal = entry.rollout.refusal(entry.start.desired_model if entry.start else None)
    if report is None or refusal is None or report.refused:
        return report
    return msgspec.structs.replace(report, refused=refusal.digest, reason=refusal.reason, message=refusal.message)


def trouble(entry: WorkerState) -> tuple[str, str]:
    """Return reason and message of a worker that runs without its desired settings or model; empty: it has both."""
    if entry.start and (refused := entry.rollout.settings_refusal(entry.spec_hash)):
        return SETTINGS_REFUSED, f"it cannot start with its new settings, the previous ones are kept: {refused.message}"
    model = entry.start.desired_model if entry.start else None
    report = entry.info.model if entry.info else None
    if model and (refusal := entry.rollout.refusal(model)):
        previous = f"version {report.version}" if report and report.version else "the previous version"
        new = f"version {model.version} of model {model.name}"
        return FAILED, f"{new} was refused, {previous} is kept: {refusal.reason}: {refusal.message}"
    if entry.assign_error:
        return FAILED, entry.assign_error
    return (FAILED, report.message) if report and report.reason and not report.refused else ("", "")


def models_in_use(entry: WorkerState) -> list[Path | str]:
    """Return the models that a worker uses or may return to, by path or digest."""
    start, report = entry.start, entry.info.model if entry.info else None
    models = [model for model in (entry.assigned, entry.rollout.good) if model]
    paths: list[Path | str] = [Path(model.path) for model in models]
    if entry.rollout.settings and (path := entry.rollout.settings.env.get("MODEL_URL")):
        paths.append(Path(path))
    if start:
        paths += [*([start.model] if start.model else []), *start.files]
    return [*paths, *([report.digest] if report else [])]
