"""One opened model in its place, with the threads that it runs in: its calls, what is learnt of them, and its end.

Where its calls are short enough they are made on the event loop itself (``pipeline.inline_policy``), else in a
thread. It is closed only once the last sample that it was given is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

import structlog

from halimede.frames.compute import Outcome, answer
from halimede.frames.encodings import find
from halimede.inference import Model
from halimede.messages import Frame
from halimede.models.desired import DesiredModel
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inline_policy import BLOCK_BYTES, InlinePolicy
from halimede.tracing.times import Distribution

log = structlog.get_logger()

#: seconds that a model may take to close before its thread is left behind
CLOSE_S = 30.0
#: of the calls on the event loop one in so many is timed: asking for a thread's CPU time is a call of the system
TIMED = 8


class Loaded:
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
        self.brief = InlinePolicy()
        self._owned = owned or AsyncExitStack()
        self._held = 0
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

    def room(self, frames: Sequence[Frame]) -> bool:
        """Whether these frames may be answered on the event loop."""
        return (
            len(frames) <= self.brief.max_samples
            and self.model.ours
            and sum(frame.data.nbytes for frame in frames) <= BLOCK_BYTES
            and all(find(frame.encoding).cheap for frame in frames)
        )

    async def answer(self, frames: Sequence[Frame], limit: int, *, inline: bool) -> tuple[list[Outcome], int]:
        """Answer frames; return what became of them, and model calls made. ``inline``: on the event loop if it may."""
        if inline and (now := self.answer_now(frames, limit)):
            return now
        self.hold(len(frames))
        try:
            outcomes, made, ms = await self._idle.call(_timed, self.model, frames, limit)
        finally:
            self.release(len(frames))
        self.brief.learn(len(frames), ms)
        self.learn(outcomes)
        return outcomes, made

    def answer_now(self, frames: Sequence[Frame], limit: int) -> tuple[list[Outcome], int] | None:
        """Answer frames on the event loop, if they may be: see ``answer``."""
        thread = self._idle
        if not (thread.idle and self.room(frames)):
            return None
        if self.calls.count % TIMED:
            outcomes, made = thread.inline(answer, self.model, frames, limit)
        else:
            outcomes, made, ms = thread.inline(_timed, self.model, frames, limit)
            self.brief.learn(len(frames), ms)
        self.learn(outcomes)
        return outcomes, made

    @property
    def _idle(self) -> ModelThread:
        """A thread that has nothing to do, if there is one."""
        return next((each for each in self.threads if each.idle), self.thread)

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Count what it answered, and how long its calls took."""
        if len(outcomes) == 1:
            (outcome,) = outcomes
            answered = int(outcome.prediction is not None)
            self.answered += answered
            self.failed += 1 - answered
            if outcome.batch:
                self.calls.record(outcome.ms)
            return
        answered = sum(outcome.prediction is not None for outcome in outcomes)
        self.answered += answered
        self.failed += len(outcomes) - answered
        for _, ms in {(outcome.began, outcome.ms) for outcome in outcomes if outcome.batch}:
            self.calls.record(ms)

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


def _timed(model: Model, frames: Sequence[Frame], limit: int) -> tuple[list[Outcome], int, float]:
    """Answer frames; return outcomes, model calls made, and the milliseconds of CPU that it took this thread."""
    began = time.thread_time()
    outcomes, calls = answer(model, frames, limit)
    return outcomes, calls, (time.thread_time() - began) * 1000
