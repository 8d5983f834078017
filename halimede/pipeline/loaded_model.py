"""One opened model in its place, with the threads that it runs in: its calls, what is learnt of them, and its end.

Where its calls are short enough they are made on the event loop itself (``pipeline.inline_policy``), else in a
thread. It is closed only once the last sample that it was given is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from halimede.frames.encodings import find
from halimede.inference import Model
from halimede.models.desired import DesiredModel
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import Outcome
from halimede.pipeline.inline_policy import BLOCK_BYTES, ENOUGH, SHORT_MS, InlinePolicy
from halimede.tracing.times import Distribution

if TYPE_CHECKING:
    from halimede.pipeline.sample import Sample

log = structlog.get_logger()

#: seconds that a model may take to close before its thread is left behind
CLOSE_S = 30.0
#: what a worker does with a batch, in the model's thread
Infer = Callable[[Model, Sequence["Sample"]], list[Outcome]]


class LoadedModel:
    """An opened model with the thread that it runs in. ``version`` and ``digest`` are empty where nobody told them.

    ``owned``: what ends with it. ``more``: further threads that it may be called from at the same time, of a model that
    allows it.
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
        #: what it was opened for, where that is known
        self.desired: DesiredModel | None = None
        #: whether it had its share of the samples as a canary only
        self.on_trial = False
        #: milliseconds of its calls
        self.calls = Distribution()
        #: whether they are short enough for the event loop
        self.inline_policy = InlinePolicy()
        self._owned = owned or AsyncExitStack()
        self._held = 0
        #: calls on the event loop whose CPU time is measured, after a long one
        self._suspected = 0
        self._free = asyncio.Event()
        self._free.set()

    def hold(self, samples: int = 1) -> None:
        """So many more samples are this model's to answer."""
        self._held += samples
        self._free.clear()

    def release(self, samples: int = 1) -> None:
        """So many of them are answered, or need no answer."""
        self._held -= samples
        if not self._held:
            self._free.set()

    @contextlib.contextmanager
    def holding(self, samples: int = 1) -> Iterator[None]:
        """Hold samples within the block."""
        self.hold(samples)
        try:
            yield
        finally:
            self.release(samples)

    async def run(self, infer: Infer, samples: Sequence[Sample], *, inline: bool) -> list[Outcome]:
        """Run samples; return what became of them. ``inline``: on the event loop, if the calls are short enough."""
        if inline and (now := self.run_inline(infer, samples)):
            return now
        self.hold(len(samples))
        try:
            outcomes, cpu_ms = await self._idle_thread.call(_timed, infer, self.model, samples)
        finally:
            self.release(len(samples))
        self.inline_policy.learn(len(samples), cpu_ms)
        self._learn(samples, outcomes)
        return outcomes

    def run_inline(self, infer: Infer, samples: Sequence[Sample]) -> list[Outcome] | None:
        """Run samples on the event loop, if they are short enough; None: they are a thread's.

        The time of a call is taken for its CPU time. Only after a long one is that measured, which takes a system call:
        the machine may just have been busy.
        """
        thread, policy = self._idle_thread, self.inline_policy
        if not (len(samples) <= policy.max_samples and self.model.ours and thread.idle and _is_light(samples)):
            return None
        if self._suspected:
            self._suspected -= 1
            outcomes, cpu_ms = thread.inline(_timed, infer, self.model, samples)
            policy.learn(len(samples), cpu_ms)
        else:
            began = time.monotonic()
            outcomes = thread.inline(infer, self.model, samples)
            ms = (time.monotonic() - began) * 1000
            if ms > SHORT_MS * len(samples):
                self._suspected = ENOUGH
            else:
                policy.learn(len(samples), ms)
        self._learn(samples, outcomes)
        return outcomes

    @property
    def _idle_thread(self) -> ModelThread:
        """A thread that has nothing to do, if there is one."""
        for thread in self.threads:
            if thread.idle:
                return thread
        return self.thread

    def _learn(self, samples: Sequence[Sample], outcomes: Sequence[Outcome]) -> None:
        """Count what it answered, and how long its calls took."""
        began = -1.0
        for sample, outcome in zip(samples, outcomes, strict=True):
            sample.version = self.version
            if outcome.prediction is None:
                self.failed += 1
            else:
                self.answered += 1
            if outcome.batch and outcome.began != began:  # samples of one call stand together
                began = outcome.began
                self.calls.record(outcome.ms)

    @property
    def busy_s(self) -> float:
        """Seconds that the longest call under way has taken so far."""
        return max(thread.busy_s for thread in self.threads)

    async def retire(self) -> None:
        """Close it once its last sample is answered."""
        await self._free.wait()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.thread.call(self.model.close)
        except Exception as error:  # noqa: BLE001 (a user's own close must not end the model that took over)
            log.warning("model not closed", version=self.version, error=type(error).__name__)
        await self._owned.aclose()

    async def close(self) -> None:
        """Close it at the worker's end, whatever it does just now: a model that hangs is not waited for."""
        self.model.close()
        await self._owned.aclose()


def _timed(infer: Infer, model: Model, samples: Sequence[Sample]) -> tuple[list[Outcome], float]:
    """Run samples; return outcomes, and the milliseconds of CPU that it took this thread."""
    began = time.thread_time()
    outcomes = infer(model, samples)
    return outcomes, (time.thread_time() - began) * 1000


def _is_light(samples: Sequence[Sample]) -> bool:
    """Whether samples are quickly read: prepared already, or not large and in an encoding that needs no decoding."""
    size = 0
    for sample in samples:
        if sample.input is None:
            size += sample.frame.data.nbytes
            if not find(sample.frame.encoding).cheap:
                return False
    return size <= BLOCK_BYTES
