"""Writes workers' desired models, and handles their reports on them: the effects of ``rollout.py``.

A worker is told a new model only while it runs and has said that it takes one. Whatever becomes of that, what it
answers with goes on until it says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from halimede.messages import ModelInUse, WorkerInfo
from services.lc.paths import NodePaths
from services.lc.supervisor.process import StartError
from services.lc.supervisor.rollout import FAILED, PROVEN_S, WorkerRollout, answers, load, save, tell, told
from services.lc.supervisor.worker_state import STABLE_S, WorkerState

log = structlog.get_logger()


class ModelAssignment:
    """The desired models of a node's workers, by worker entry.

    ``missing`` is called with a model's path when the file has vanished since it was prepared.
    """

    def __init__(self, folders: NodePaths, missing: Callable[[Path], None]) -> None:
        self._folders = folders
        self._missing = missing

    def begin(self, entry: WorkerState) -> None:
        """Find out how a worker stands that is looked after from now on."""
        folder = self._folders.worker(entry.worker)
        entry.rollout = load(folder)
        if entry.adopted:
            entry.told = entry.asked = told(folder)

    def first(self, entry: WorkerState) -> Path | None:
        """Tell a worker that is about to start what to begin with; return that model's file. Raises StartError."""
        start = entry.start
        if start is None or start.wish is None:
            return start.model if start else None
        self._keep(entry, entry.rollout.asked(start.wish))
        wish = entry.rollout.first(start.wish, entry.spec_hash)
        folder = self._folders.worker(entry.worker)
        try:
            tell(folder, wish)
        except OSError as error:
            text = f"{folder} cannot be written to: {error.strerror}: free some space, or correct its permissions"
            raise StartError("StateUnusable", text) from error
        entry.told, entry.answering, entry.untold = wish, None, ""
        return Path(wish.path)

    def heard(self, entry: WorkerState, info: WorkerInfo) -> None:
        """Take what a worker says of its model, and tell it the next one if that is due."""
        now, said, known = asyncio.get_running_loop().time(), info.model, entry.told
        if said and known:
            taken = answers(said, known) and not said.refused and not said.canary_version
            entry.answering = (entry.answering or now) if taken else None
            proven = entry.answering is not None and now - entry.answering >= PROVEN_S
            self._keep(entry, entry.rollout.heard(known, said, entry.spec_hash, proven=proven))
        self.next(entry)

    def next(self, entry: WorkerState) -> None:
        """Tell a worker what it is asked for, if it can be told and nothing is known against it."""
        wish = entry.start.wish if entry.start else None
        if wish is None:
            return
        self._keep(entry, entry.rollout.asked(wish))
        if wish == entry.told or entry.rollout.refusal(wish) or not swaps(entry):
            return
        if not Path(wish.path).is_file():  # it is told once it is here again, when the worker speaks next
            self._missing(Path(wish.path))
            return
        folder = self._folders.worker(entry.worker)
        try:
            tell(folder, wish)
        except OSError as error:  # it is tried again when the worker speaks next
            entry.untold = f"{folder} cannot be written to: {error.strerror}: free some space"
            log.warning("worker not told its model", worker=str(entry.worker), error=error.strerror)
            return
        log.info("worker told another model", worker=str(entry.worker), version=wish.version)
        entry.told, entry.answering, entry.untold = wish, None, ""

    def ended(self, entry: WorkerState, how: str) -> None:
        """Take that a worker has ended by itself."""
        if entry.told:
            self._keep(entry, entry.rollout.ended(entry.told, how, entry.spec_hash))

    def _keep(self, entry: WorkerState, rollout: WorkerRollout) -> None:
        if rollout != entry.rollout:
            entry.rollout = rollout
            save(self._folders.worker(entry.worker), rollout)


def swaps(entry: WorkerState) -> bool | None:
    """Whether a worker takes another model as it is; None: it may still say so."""
    if entry.process is None or entry.stop.is_set():
        return False
    if entry.info is None:
        return None if asyncio.get_running_loop().time() - entry.since < STABLE_S else False
    return entry.info.model is not None and entry.info.status == "running"


def model(entry: WorkerState) -> ModelInUse | None:
    """Return what a worker says of its model, with what it refused before it was started anew."""
    said = entry.info.model if entry.info else None
    refusal = entry.rollout.refusal(entry.start.wish if entry.start else None)
    if said is None or refusal is None or said.refused:
        return said
    return msgspec.structs.replace(said, refused=refusal.digest, reason=refusal.reason, message=refusal.message)


def trouble(entry: WorkerState) -> tuple[str, str]:
    """Return reason and message of a worker that runs without the model that it is asked to have; empty: it has it."""
    wish = entry.start.wish if entry.start else None
    said = entry.info.model if entry.info else None
    if wish and (refusal := entry.rollout.refusal(wish)):
        kept = f"version {said.version}" if said and said.version else "the one before"
        new = f"version {wish.version} of model {wish.name}"
        return FAILED, f"{new} was not taken, {kept} goes on: {refusal.reason}: {refusal.message}"
    if entry.untold:
        return FAILED, entry.untold
    return (FAILED, said.message) if said and said.reason and not said.refused else ("", "")


def used(entry: WorkerState) -> list[Path | str]:
    """Return the models that a worker uses or may go back to, by path or digest."""
    start, said = entry.start, entry.info.model if entry.info else None
    wishes = [wish for wish in (entry.told, entry.rollout.good) if wish]
    found: list[Path | str] = [Path(wish.path) for wish in wishes]
    return [*found, *([start.model] if start and start.model else []), *([said.digest] if said else [])]
