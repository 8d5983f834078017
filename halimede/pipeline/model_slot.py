"""The models in use: each sample goes to the current model or to its canary.

A sample belongs to one model from its pre-processing to its answer. So a model can be replaced between two batches
without lost or repeated answers. The old model is closed after its last answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from halimede.frames.encodings import find
from halimede.inference import Model
from halimede.models.desired_state import DesiredModel
from halimede.models.rollout import ALL_PERCENT, Rollout
from halimede.pipeline.executor import BLOCK_BYTES, LONGEST_MS, SHORT_MS, InlinePolicy, LoopWatchdog, ModelThread, watch
from halimede.pipeline.inference import InferenceOutcome
from halimede.tracing.latency import Distribution

if TYPE_CHECKING:
    from halimede.pipeline.sample import Sample

log = structlog.get_logger()

#: seconds that a model may take to close; after that its thread is abandoned
CLOSE_S = 30.0
#: A long call on the event loop sets a countdown to MEASURE + SELDOM, a very long one to MEASURE + 1. Each call
#: decrements it; the call that reaches MEASURE has its CPU time measured, because the machine may only have been busy.
MEASURE, SELDOM = 1, 8
#: a model is reported as failing if it fails on more than this share of at least so many samples
FAILING_SHARE, FAILING_SAMPLES = 0.5, 20
#: runs a batch in the model's thread
Infer = Callable[[Model, Sequence["Sample"]], list[InferenceOutcome]]
#: exit code of the worker for a failure that a restart alone does not correct: the same as in ``worker.main``
STUCK_CODE = 2


class LoadedModel:
    """An opened model and its thread. ``version`` and ``digest`` are empty if unknown.

    ``owned`` is closed with it. ``more``: further threads for parallel calls, if the model allows them.
    """

    def __init__(  # noqa: PLR0917  # in the order in which they come to be
        self,
        model: Model,
        thread: ModelThread,
        version: str = "",
        digest: str = "",
        owned: AsyncExitStack | None = None,
        more: Sequence[ModelThread] = (),
    ) -> None:
        self.model, self.thread = model, thread
        self.threads = (thread, *more)
        self.version, self.digest = version, digest
        self.answered = self.failed = 0
        #: samples of ``failed`` that another model could have answered, and the error of the last one
        self.errors, self.last_error = 0, ""
        #: samples and errors at the last update of ``failing``, and its result then
        self._judged = 0, 0
        self._failing = ""
        #: the desired model for which it was opened, if known
        self.desired: DesiredModel | None = None
        #: whether it has run only as a canary
        self.on_trial = False
        #: durations of its calls in milliseconds
        self.calls = Distribution()
        #: decides whether its calls are short enough for the event loop
        self.inline_policy = InlinePolicy()
        self._owned = owned or AsyncExitStack()
        #: samples that this model must still answer
        self._held = 0
        #: calls until ``MEASURE``, when the CPU time of a call is measured; set by a long call on the event loop
        self._measured_in = 0
        self._released = asyncio.Event()

    def hold(self) -> None:
        """Count one more sample that this model must answer."""
        self._held += 1

    def release(self) -> None:
        """Count one sample as answered."""
        self._held -= 1
        self._released.set()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the model open within the block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    async def run(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome]:
        """Run samples in a thread; return their outcomes."""
        thread = next((each for each in self.threads if each.idle), self.thread)
        self._held += 1
        try:
            outcomes, cpu_ms = await thread.call(_timed, infer, self.model, samples)
        finally:
            self.release()
        self.inline_policy.learn(len(samples), cpu_ms)
        self._learn(samples, outcomes)
        return outcomes

    def run_inline(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome] | None:
        """Run samples on the event loop if they are short enough; None: they need a thread.

        The duration of a call counts as its CPU time. After a long call the CPU time of a later one is measured,
        because the machine may only have been busy. That measurement takes system calls.
        """
        thread, policy, count = self.thread, self.inline_policy, len(samples)
        if not (count <= policy.max_samples and self.model.ours and thread.idle and _is_light(samples)):
            return None
        if self._measured_in:
            self._measured_in -= 1
        if self._measured_in == MEASURE:
            outcomes, cpu_ms = thread.inline(_timed, infer, self.model, samples)
            self._measured_in = 0
            policy.learn(count, cpu_ms)
        else:
            began = time.monotonic()
            outcomes = thread.inline(infer, self.model, samples)
            ms = (time.monotonic() - began) * 1000
            if ms <= SHORT_MS * count:
                policy.learn(count, ms)
            elif not self._measured_in:
                self._measured_in = MEASURE + (1 if ms > LONGEST_MS * count else SELDOM)
        self._learn(samples, outcomes)
        return outcomes

    def _learn(self, samples: Sequence[Sample], outcomes: Sequence[InferenceOutcome]) -> None:
        """Count answers and failures, and record the durations of the calls."""
        calls: dict[float, float] = {}
        on_trial = self.on_trial
        for sample, outcome in zip(samples, outcomes, strict=True):
            sample.version, sample.on_trial = self.version, on_trial
            if outcome.prediction is None:
                self.failed += 1
                if not outcome.unfit:
                    self.errors, self.last_error = self.errors + 1, outcome.error
            else:
                self.answered += 1
            if outcome.batch:
                calls[outcome.began] = outcome.ms
        for ms in calls.values():
            self.calls.record(ms)

    def failing(self) -> str:
        """Return the error of a model that fails on most samples, empty if it does not. Called at intervals."""
        samples, errors = self.answered + self.errors, self.errors
        recent, wrong = samples - self._judged[0], errors - self._judged[1]
        if recent >= FAILING_SAMPLES:
            self._judged = samples, errors
            self._failing = ""
            if wrong > FAILING_SHARE * recent:
                self._failing = f"its model failed on {wrong} of the last {recent} samples: {self.last_error}"
        return self._failing

    @property
    def busy_s(self) -> float:
        """Duration of the longest running call in seconds."""
        return max(thread.busy_s for thread in self.threads)

    async def retire(self) -> None:
        """Close the model after its last answer."""
        while self._held:
            self._released.clear()
            await self._released.wait()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.thread.call(self.model.close)
        except Exception as error:  # noqa: BLE001 (the user's own close must not end the model that replaced it)
            log.warning("model not closed", version=self.version, error=type(error).__name__)
        await self._owned.aclose()

    async def close(self) -> None:
        """Close the model when the worker ends, without waiting for its calls: one may be stuck."""
        self.model.close()
        await self._owned.aclose()


def _timed(infer: Infer, model: Model, samples: Sequence[Sample]) -> tuple[list[InferenceOutcome], float]:
    """Run samples; return their outcomes, and the milliseconds of CPU time of this thread."""
    began = time.thread_time()
    outcomes = infer(model, samples)
    return outcomes, (time.thread_time() - began) * 1000


def _is_light(samples: Sequence[Sample]) -> bool:
    """Whether samples are cheap to read: prepared already, or small and in an encoding without compression."""
    size = 0
    for sample in samples:
        if sample.input is None:
            size += sample.frame.data.nbytes
            if not find(sample.frame.encoding).cheap:
                return False
    return size <= BLOCK_BYTES


class ModelSlot:
    """Gives each sample to the current model or its canary, and closes replaced models.
    ``rollout`` holds these models; change it only through the slot. ``current`` repeats its current version as an
    attribute that is never None, because each sample reads it.
    """

    def __init__(self, current: LoadedModel) -> None:
        self.current = current
        self.rollout = Rollout(current)
        #: least share of easy samples to audit, as the desired state requires it
        self.audit_share = 0.0
        #: called with each model before it gets samples, and with the percentage of them; may refuse it with any error
        self.adopt: Callable[[LoadedModel, int], None] | None = None
        #: whether models may run on the event loop: only while a thread watches it
        self.guarded = False
        self._withdrawn: Callable[[], None] | None = None
        self._leaving: dict[LoadedModel, asyncio.Task[None]] = {}

    def choose(self, id_: bytes) -> LoadedModel:
        """Return the model for a sample: the same one for the same id until the rollout changes."""
        rollout = self.rollout
        if rollout.canary and zlib.crc32(id_) % 100 < rollout.percent:
            return rollout.canary
        return self.current

    def share(self, samples: Sequence[Sample]) -> dict[LoadedModel, list[Sample]]:
        """Group samples by model: the one that a sample was prepared for, or the chosen one."""
        parts: dict[LoadedModel, list[Sample]] = {}
        for sample in samples:
            parts.setdefault(sample.model or self.choose(sample.frame.id), []).append(sample)
        return parts

    def run_inline(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome] | None:
        """Run samples with the current model on the event loop; None: they take longer, or need another model."""
        current = self.current
        if self.rollout.canary or not self.guarded or not current.inline_policy.max_samples:
            return None
        for sample in samples:
            if sample.model is not None and sample.model is not current:
                return None
        return current.run_inline(infer, samples)

    def before(self, loaded: LoadedModel) -> LoadedModel | None:
        """Return the model that answers if the canary fails; None for any other model."""
        return self.current if loaded.on_trial and loaded is not self.current else None

    def strike(self, canary: LoadedModel, error: str) -> None:
        """Count a sample on which only the canary failed; after several strikes the canary is withdrawn."""
        if self.rollout.strike(canary, f"it failed where the model before it did not: {error}"):
            withdrawn, self._withdrawn = self._withdrawn, None
            self._leave(canary)
            if withdrawn:
                withdrawn()

    def replace(self, new: LoadedModel) -> None:
        """Make ``new`` the current model and end the canary. Raises what ``adopt`` raises, before any change."""
        if self.adopt:
            self.adopt(new, ALL_PERCENT)
        leaving = self.rollout.replace(new)
        self.current = new
        new.on_trial = False
        self._withdrawn = None
        for old in leaving:
            self._leave(old)

    def try_out(self, new: LoadedModel | None, percent: int, withdrawn: Callable[[], None] | None = None) -> None:
        """Make ``new`` the canary for a share of the samples; None ends the canary.

        ``withdrawn`` is called if the canary is withdrawn after too many failures; ``rollout`` then has its last error.
        Raises what ``adopt`` raises, before any change.
        """
        if new and self.adopt:
            self.adopt(new, percent)
        leaving = self.rollout.try_out(new, percent) if new else self.rollout.withdraw()
        self._withdrawn = withdrawn
        if new:
            new.on_trial = True
        for old in leaving:
            self._leave(old)

    def failing(self) -> str:
        """Return the error of a current model that fails on most samples: see ``LoadedModel.failing``."""
        return self.current.failing()

    @property
    def loaded(self) -> list[LoadedModel]:
        """All models that are open."""
        canary = self.rollout.canary
        return [self.current, *([canary] if canary else []), *self._leaving]

    @property
    def busy_s(self) -> float:
        """Duration of the longest running call in seconds."""
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
        """The number of parallel model calls."""
        return len(self.current.threads)

    @property
    def inline_samples(self) -> int:
        """The number of samples to run in one call on the event loop; 0: run them in a thread."""
        current = self.current
        return (
            current.inline_policy.max_samples if self.guarded and current.model.ours and not self.rollout.canary else 0
        )

    async def close(self) -> None:
        """Close all models when the worker ends."""
        for task in self._leaving.values():
            task.cancel()
        for loaded in self.loaded:
            await loaded.close()

    def _leave(self, old: LoadedModel) -> None:
        task = asyncio.create_task(old.retire(), name=f"retire model {old.version}")
        self._leaving[old] = task
        task.add_done_callback(lambda _: self._leaving.pop(old, None))
