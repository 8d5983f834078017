"""Gives samples to the model in use, or a share of them to a new one that is on trial.

A sample is given to one model and stays with it, from its pre-processing to its answer. So a model is replaced between
two batches with nothing lost and nothing answered twice, and the old one is closed once its last sample is answered.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from halimede.models.rollout import Rollout
from halimede.pipeline.executor import LoopWatchdog, watch
from halimede.pipeline.inference import Outcome
from halimede.pipeline.loaded_model import Infer, LoadedModel

if TYPE_CHECKING:
    from halimede.pipeline.sample import Sample

#: the worker's exit code for what starting again does not mend by itself: as ``worker.runtime`` has it
STUCK_CODE = 2


class ModelSlot:
    """Gives each sample to the model in use or to its canary, and closes a model that has answered its last sample.

    ``rollout`` decides which models those are; it is changed through the slot. ``current`` is its current version,
    which is never missing here, as an attribute: it is read for each sample.
    """

    def __init__(self, current: LoadedModel) -> None:
        self.current = current
        self.rollout = Rollout(current)
        #: whether models may answer on the event loop: only while a thread watches it
        self.guarded = False
        self._withdrawn: Callable[[str], None] | None = None
        self._leaving: dict[LoadedModel, asyncio.Task[None]] = {}

    @property
    def canary(self) -> LoadedModel | None:
        """The model on trial, if there is one."""
        return self.rollout.canary

    @property
    def percent(self) -> int:
        """The share of the samples that go to the canary."""
        return self.rollout.percent

    def choose(self, id_: bytes) -> LoadedModel:
        """Return the model for a sample: the same for the same id, however often it is asked, while nothing changes."""
        rollout = self.rollout
        if rollout.canary and zlib.crc32(id_) % 100 < rollout.percent:
            return rollout.canary
        return self.current

    def run_inline(self, infer: Infer, samples: Sequence[Sample]) -> list[Outcome] | None:
        """Run samples with the one model, on the event loop; None: they take longer, or are another model's."""
        if self.rollout.canary or not self.guarded:
            return None
        current = self.current
        for sample in samples:
            if sample.model is not None and sample.model is not current:
                return None
        return current.run_inline(infer, samples)

    def before(self, loaded: LoadedModel) -> LoadedModel | None:
        """Return who answers what a model on trial failed at; None for any other model."""
        return self.current if loaded.on_trial and loaded is not self.current else None

    def strike(self, canary: LoadedModel, error: str) -> None:
        """Note that the canary failed where the model before it did not; after some of these it is withdrawn."""
        if self.rollout.strike(canary, f"it failed where the model before it did not: {error}"):
            withdrawn, self._withdrawn = self._withdrawn, None
            self._leave(canary)
            if withdrawn:
                withdrawn(error)

    def replace(self, new: LoadedModel) -> None:
        """From now on ``new`` answers what comes, and no canary does."""
        leaving = self.rollout.replace(new)
        self.current = new
        new.on_trial = False
        self._withdrawn = None
        for old in leaving:
            self._leave(old)

    def try_out(self, new: LoadedModel | None, percent: int, withdrawn: Callable[[str], None] | None = None) -> None:
        """From now on ``new`` answers a share of what comes; None: the one in use answers everything.

        ``withdrawn`` is called with its last error if it fails so often that it no longer does.
        """
        leaving = self.rollout.try_out(new, percent) if new else self.rollout.withdraw()
        self._withdrawn = withdrawn
        if new:
            new.on_trial = True
        for old in leaving:
            self._leave(old)

    @property
    def loaded(self) -> list[LoadedModel]:
        """All models that are open."""
        canary = self.rollout.canary
        return [self.current, *([canary] if canary else []), *self._leaving]

    @property
    def busy_s(self) -> float:
        """Seconds that the longest call under way has taken so far."""
        return max(loaded.busy_s for loaded in self.loaded)

    async def watch(self, limit_s: float) -> None:
        """Run until cancelled; raise ModelStuckError when one call takes longer than ``limit_s`` seconds.

        Meanwhile short calls of models may run on the event loop.
        """
        text = (
            f"halimede worker: ModelStuck: the model has not answered for {limit_s:g} s and the event loop with it: "
            "restart it, or raise MODEL_TIMEOUT_S"
        )
        with LoopWatchdog(lambda: self.busy_s, limit_s, text=text, code=STUCK_CODE):
            self.guarded = True
            try:
                await watch(lambda: self.busy_s, limit_s)
            finally:
                self.guarded = False

    @property
    def lanes(self) -> int:
        """Calls that may run at a time."""
        return len(self.current.threads)

    @property
    def turn(self) -> int:
        """Samples that are best answered at once on the event loop; 0: it is a thread's work, however many."""
        return self.current.inline_policy.max_samples if self.guarded and self.current.model.ours else 0

    async def close(self) -> None:
        """Close everything at the worker's end."""
        for task in self._leaving.values():
            task.cancel()
        for loaded in self.loaded:
            await loaded.close()

    def _leave(self, old: LoadedModel) -> None:
        task = asyncio.create_task(old.retire(), name=f"retire model {old.version}")
        self._leaving[old] = task
        task.add_done_callback(lambda _: self._leaving.pop(old, None))
