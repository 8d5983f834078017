"""The models in use: ``ModelSlot`` gives each sample to the current model or to its canary, a new version on trial.

A sample belongs to one model from its pre-processing to its answer. So a model can be replaced between two batches
without lost or repeated answers. The old model is closed after its last answer: until then, ``LoadedModel.acquire``
keeps it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

import structlog

from halimede.frames.encodings import find
from halimede.inference import Model
from halimede.models.desired_state import DesiredModel
from halimede.models.rollout import ALL_PERCENT, Rollout
from halimede.pipeline.executor import BLOCK_BYTES, LONG_MS, SHORT_MS, InlinePolicy, LoopWatchdog, ModelThread, watch
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.sample import Sample
from halimede.tracing.latency import Distribution

log = structlog.get_logger()

#: seconds that a model may take to close; after that its thread is abandoned
CLOSE_S = 30.0
#: which call after a long one on the event loop has its CPU time measured, because the machine may only have been busy;
#: after a very long one the next call has
MEASURED_CALL = 8
#: a model is reported as failing if it fails on more than this fraction of at least so many samples
FAILING_SHARE, FAILING_SAMPLES = 0.5, 20
#: runs samples through a model and returns the outcome of each; ``Inference`` is one
Infer = Callable[[Model, Sequence[Sample]], list[InferenceOutcome]]
#: exit code of the worker for a failure that a restart alone does not correct
STUCK_CODE = 2


class LoadedModel:
    """An opened model, its threads, and its counts. A ``rollout.OpenedVersion``.

    ``thread``, ``more``: the threads for its parallel calls. ``owned``: is closed with the model; None: nothing.

    Attributes:
        model: the opened model.
        threads: those for its parallel calls, the first one also for closing it.
        version: as reported; empty: not known.
        digest: SHA-256 of its content; empty: not known.
        answered: number of samples with a prediction.
        failed: number of samples without a prediction.
        errors: how many of ``failed`` another model could have answered, because the sample is not the cause.
        last_error: the text of the last such error; empty: there was none.
        desired: the desired model for which it was opened; None: not known.
        on_trial: it has run only as a canary.
        calls: durations of its calls in milliseconds.
        inline_policy: decides whether its calls are short enough for the event loop.

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
        self.errors, self.last_error = 0, ""
        #: samples and errors at the last update of ``failure``, and its result then
        self._judged = 0, 0
        self._failure = ""
        self.desired: DesiredModel | None = None
        self.on_trial = False
        self.calls = Distribution()
        self.inline_policy = InlinePolicy()
        self._owned = owned or AsyncExitStack()
        #: samples and batches that this model must still answer
        self._leases = 0
        #: number of calls until the one whose CPU time is measured, itself included; 0: none will be
        self._measured_in = 0
        self._released = asyncio.Event()

    def acquire(self) -> None:
        """Keep the model open until ``release`` is called once more: it has to answer another sample or batch."""
        self._leases += 1

    def release(self) -> None:
        """End one call of ``acquire``."""
        self._leases -= 1
        self._released.set()

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        """Keep the model open until the end of the block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    async def run(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome]:
        """Run samples in an idle thread, or if all are busy wait for the first thread; return their outcomes.

        The caller keeps the model open (``acquire``).
        """
        thread = self.thread
        if not thread.idle:
            thread = next((other for other in self.threads if other.idle), thread)
        outcomes, cpu_ms = await thread.call(_measure_cpu, infer, self.model, samples)
        self.inline_policy.learn(len(samples), cpu_ms)
        self._learn(samples, outcomes)
        return outcomes

    def try_inline(self, infer: Infer, samples: Sequence[Sample]) -> list[InferenceOutcome] | None:
        """Run samples on the event loop and return their outcomes; None: they need a thread, or another model.

        The duration of a call counts as its CPU time, because measuring that takes system calls. Only after a long call
        the CPU time of a later one is measured, because the machine may only have been busy.
        """
        thread, policy, count = self.thread, self.inline_policy, len(samples)
        if not (count <= policy.max_samples and self.model.ours and thread.idle and self._is_light(samples)):
            return None
        is_measured = self._measured_in == 1
        self._measured_in = max(0, self._measured_in - 1)
        if is_measured:
            outcomes, cpu_ms = thread.run_watched(_measure_cpu, infer, self.model, samples)
            policy.learn(count, cpu_ms)
        else:
            began = time.monotonic()
            outcomes = thread.run_watched(infer, self.model, samples)
            ms = (time.monotonic() - began) * 1000
            if ms <= SHORT_MS * count:
                policy.learn(count, ms)
            elif not self._measured_in:
                self._measured_in = 1 if ms > LONG_MS * count else MEASURED_CALL
        self._learn(samples, outcomes)
        return outcomes

    def _is_light(self, samples: Sequence[Sample]) -> bool:
        """Whether samples are cheap to read: prepared for this model, or small and not compressed."""
        size = 0
        for sample in samples:
            if sample.input is None:
                size += sample.frame.data.nbytes
                if not find(sample.frame.encoding).cheap:
                    return False
            elif sample.model is not self:
                return False
        return size <= BLOCK_BYTES

    def _learn(self, samples: Sequence[Sample], outcomes: Sequence[InferenceOutcome]) -> None:
        """Count answers and failures, record durations of calls, and write the version into the samples."""
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

    def failure(self) -> str:
        """Return the error of a model that fails on most samples; empty if it does not.

        Call it at intervals: it judges the samples since the last judgement, if they are enough.
        """
        samples, errors = self.answered + self.errors, self.errors
        recent, wrong = samples - self._judged[0], errors - self._judged[1]
        if recent >= FAILING_SAMPLES:
            self._judged = samples, errors
            self._failure = ""
            if wrong > FAILING_SHARE * recent:
                self._failure = f"its model failed on {wrong} of the last {recent} samples: {self.last_error}"
        return self._failure

    @property
    def busy_s(self) -> float:
        """Seconds since the start of the longest running call; 0: none runs."""
        return max(thread.busy_s for thread in self.threads)

    async def retire(self) -> None:
        """Wait, without a deadline, until nobody keeps the model open; then close it, within CLOSE_S seconds."""
        while self._leases:
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


def _measure_cpu(infer: Infer, model: Model, samples: Sequence[Sample]) -> tuple[list[InferenceOutcome], float]:
    """Run samples; return their outcomes, and the milliseconds of CPU time of this thread."""
    began = time.thread_time()
    outcomes = infer(model, samples)
    return outcomes, (time.thread_time() - began) * 1000


class ModelSlot:
    """Gives each sample to the current model or its canary, and closes replaced models.

    Attributes:
        current: the current model; the same as ``rollout.current``, but never None.
        rollout: has the current model, the canary and what was refused; change it only through the slot.
        audit_share: least fraction of easy samples to audit, as the desired state requires it.
        adopt: called with each model before it gets samples, and with the percentage of them; may refuse the model by
            raising any error; None: nothing is called.
        guarded: models may run on the event loop, because a thread watches it.

    """

    def __init__(self, current: LoadedModel) -> None:
        self.current = current
        self.rollout = Rollout(current)
        self.audit_share = 0.0
        self.adopt: Callable[[LoadedModel, int], None] | None = None
        self.guarded = False
        self._withdrawn: Callable[[], None] | None = None
        self._leaving: dict[LoadedModel, asyncio.Task[None]] = {}

    def choose(self, id_: bytes) -> LoadedModel:
        """Return the model for a sample, by its id: the same one for the same id until the rollout changes."""
        rollout = self.rollout
        if rollout.canary and zlib.crc32(id_) % 100 < rollout.percent:
            return rollout.canary
        return self.current

    def share(self, samples: Sequence[Sample]) -> dict[LoadedModel, list[Sample]]:
        """Return samples by model: the one that a sample was prepared for, or that ``choose`` returns."""
        shares: dict[LoadedModel, list[Sample]] = {}
        for sample in samples:
            shares.setdefault(sample.model or self.choose(sample.frame.id), []).append(sample)
        return shares

    def fallback(self, loaded: LoadedModel) -> LoadedModel | None:
        """Return the current model, which answers if the canary ``loaded`` fails; None if ``loaded`` is no canary."""
        return self.current if loaded.on_trial and loaded is not self.current else None

    def strike(self, canary: LoadedModel, error: str) -> None:
        """Count a sample on which only the canary failed; after several strikes the canary is withdrawn."""
        if self.rollout.strike(canary, f"it failed where the model before it did not: {error}"):
            withdrawn, self._withdrawn = self._withdrawn, None
            self._leave(canary)
            if withdrawn:
                withdrawn()

    def replace(self, new: LoadedModel) -> None:
        """Make ``new`` the current model and end the canary. Raises what ``adopt`` raises, as ``_offer`` does."""
        self._offer(new, ALL_PERCENT)
        leaving = self.rollout.replace(new)
        self.current = new
        new.on_trial = False
        self._withdrawn = None
        for old in leaving:
            self._leave(old)

    def try_out(self, new: LoadedModel | None, percent: int, withdrawn: Callable[[], None] | None = None) -> None:
        """Make ``new`` the canary for ``percent`` of the samples; None ends the canary.

        ``withdrawn``: called if the canary is withdrawn after too many failures; ``rollout`` then has its last error.
        Raises what ``adopt`` raises, as ``_offer`` does.
        """
        if new:
            self._offer(new, percent)
        leaving = self.rollout.try_out(new, percent) if new else self.rollout.withdraw()
        self._withdrawn = withdrawn
        if new:
            new.on_trial = True
        for old in leaving:
            self._leave(old)

    def failure(self) -> str:
        """Return the error of the current model if it fails on most samples; empty if it does not.

        Call it at intervals: it judges the samples since the last judgement, if they are enough.
        """
        return self.current.failure()

    @property
    def loaded(self) -> list[LoadedModel]:
        """All models that are open: the current one, the canary, and those that have to answer their last samples."""
        canary = self.rollout.canary
        return [self.current, *([canary] if canary else []), *self._leaving]

    @property
    def busy_s(self) -> float:
        """Seconds since the start of the longest running call of any model; 0: none runs."""
        return max(loaded.busy_s for loaded in self.loaded)

    async def watch(self, limit_s: float) -> None:
        """Run until cancelled. Raises ModelStuckError when a call takes longer than ``limit_s`` seconds.

        If the call blocks the event loop, the process ends. Meanwhile short calls may run on the event loop.
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
    def inline_model(self) -> LoadedModel | None:
        """The model to try on the event loop; None: calls run in a thread, as always while there is a canary."""
        current = self.current
        if self.rollout.canary or not (self.guarded and current.inline_policy.max_samples and current.model.ours):
            return None
        return current

    async def close(self) -> None:
        """Close all models when the worker ends, without waiting for their calls."""
        for task in self._leaving.values():
            task.cancel()
        for loaded in self.loaded:
            await loaded.close()

    def _offer(self, new: LoadedModel, percent: int) -> None:
        """Have ``adopt`` accept a model. Raises what it raises, and closes a refused model that has not been in use."""
        if self.adopt is None:
            return
        try:
            self.adopt(new, percent)
        except Exception:
            if new not in self.loaded:
                self._leave(new)
            raise

    def _leave(self, old: LoadedModel) -> None:
        """Close a replaced model in a task, after its last answer."""
        task = asyncio.create_task(old.retire(), name=f"retire model {old.version}")
        self._leaving[old] = task
        task.add_done_callback(lambda _: self._leaving.pop(old, None))
