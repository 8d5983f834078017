"""Gives samples to the model in use, or a share of them to a new one that is on trial.

A sample is given to one model and stays with it, from its pre-processing to its answer. So a model is replaced between
two batches with nothing lost and nothing answered twice, and the old one is closed once its last sample is answered.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence

from halimede.frames.compute import Outcome
from halimede.frames.loaded import Loaded
from halimede.messages import Frame
from halimede.models.rollout import Rollout
from halimede.pipeline.executor import LoopWatchdog, watch

#: the worker's exit code for what starting again does not mend by itself: as ``worker.runtime`` has it
STUCK_CODE = 2


class Slot:
    """Gives each sample to the model in use or to its canary, and closes a model that has answered its last sample.

    ``rollout`` decides which models those are; it is changed through the slot. ``current`` is its current version,
    which is never missing here, as an attribute: it is read for each sample.
    """

    def __init__(self, current: Loaded) -> None:
        self.current = current
        self.rollout = Rollout(current)
        #: whether models may answer on the event loop: only while a thread watches it
        self._guarded = False
        self._withdrawn: Callable[[str], None] | None = None
        self._leaving: dict[Loaded, asyncio.Task[None]] = {}

    @property
    def canary(self) -> Loaded | None:
        """The model on trial, if there is one."""
        return self.rollout.canary

    @property
    def percent(self) -> int:
        """The share of the samples that go to the canary."""
        return self.rollout.percent

    def choose(self, id_: bytes) -> Loaded:
        """Return the model for a sample: the same for the same id, however often it is asked, while nothing changes."""
        rollout = self.rollout
        if rollout.canary and zlib.crc32(id_) % 100 < rollout.percent:
            return rollout.canary
        return self.current

    def share(self, ids: Iterable[bytes]) -> dict[Loaded, list[int]]:
        """Part samples by the model that answers them; return positions."""
        parts: dict[Loaded, list[int]] = {}
        for position, id_ in enumerate(ids):
            parts.setdefault(self.choose(id_), []).append(position)
        return parts

    async def answer(self, frames: Sequence[Frame], limit: int) -> tuple[list[tuple[Outcome, str]], int]:
        """Give each frame to its model; return what became of it with that model's version, and model calls made."""
        if self.rollout.canary is None:
            loaded = self.current
            outcomes, calls = await loaded.answer(frames, limit, inline=self._guarded)
            return [(outcome, loaded.version) for outcome in outcomes], calls
        answered: list[tuple[Outcome, str]] = [(Outcome(), "")] * len(frames)
        calls = 0
        for loaded, positions in self.share(frame.id for frame in frames).items():
            outcomes, made = await loaded.answer([frames[i] for i in positions], limit, inline=self._guarded)
            calls += made
            for i, outcome in zip(positions, outcomes, strict=True):
                answered[i] = outcome, loaded.version
            failed = [i for i in positions if answered[i][0].prediction is None]
            calls += await self._again(loaded, frames, failed, answered, limit)
        return answered, calls

    def answer_now(self, frames: Sequence[Frame], limit: int) -> tuple[list[Outcome], int, str] | None:
        """Give frames to the one model, on the event loop; return also its version. None: they take longer."""
        if self.rollout.canary or not self._guarded:
            return None
        loaded = self.current
        answered = loaded.answer_now(frames, limit)
        return (*answered, loaded.version) if answered else None

    def before(self, loaded: Loaded) -> Loaded | None:
        """Return who answers what a model on trial failed at; None for any other model."""
        return self.current if loaded.on_trial and loaded is not self.current else None

    def strike(self, canary: Loaded, error: str) -> None:
        """Note that the canary failed where the model before it did not; after some of these it is withdrawn."""
        if self.rollout.strike(canary, f"it failed where the model before it did not: {error}"):
            withdrawn, self._withdrawn = self._withdrawn, None
            self._leave(canary)
            if withdrawn:
                withdrawn(error)

    def replace(self, new: Loaded) -> None:
        """From now on ``new`` answers what comes, and no canary does."""
        leaving = self.rollout.replace(new)
        self.current = new
        new.on_trial = False
        self._withdrawn = None
        for old in leaving:
            self._leave(old)

    def try_out(self, new: Loaded | None, percent: int, withdrawn: Callable[[str], None] | None = None) -> None:
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
    def loaded(self) -> list[Loaded]:
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
            self._guarded = True
            try:
                await watch(lambda: self.busy_s, limit_s)
            finally:
                self._guarded = False

    @property
    def lanes(self) -> int:
        """Calls that may run at a time."""
        return len(self.current.threads)

    @property
    def turn(self) -> int:
        """Samples that are best answered at once on the event loop; 0: it is a thread's work, however many."""
        return self.current.brief.max_samples if self._guarded and self.current.model.ours else 0

    async def close(self) -> None:
        """Close everything at the worker's end."""
        for task in self._leaving.values():
            task.cancel()
        for loaded in self.loaded:
            await loaded.close()

    async def _again(
        self,
        canary: Loaded,
        frames: Sequence[Frame],
        failed: Sequence[int],
        answered: list[tuple[Outcome, str]],
        limit: int,
    ) -> int:
        """Give what a canary failed at to the model before it; return model calls made.

        What that one cannot answer either is the sample's fault, and the first word on it stands.
        """
        before = self.before(canary)
        if before is None or not failed:
            return 0
        outcomes, calls = await before.answer([frames[i] for i in failed], limit, inline=False)
        for i, outcome in zip(failed, outcomes, strict=True):
            if outcome.prediction is not None:
                error = answered[i][0].error
                answered[i] = outcome, before.version
                self.strike(canary, error)
        return calls

    def _leave(self, old: Loaded) -> None:
        task = asyncio.create_task(old.retire(), name=f"retire model {old.version}")
        self._leaving[old] = task
        task.add_done_callback(lambda _: self._leaving.pop(old, None))
