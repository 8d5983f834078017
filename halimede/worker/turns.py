"""What waits for the model of an edge worker, and its turn in it.

Pixels are let go here, once the model has seen them: a sample may wait for the cloud without them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from halimede.frames.loaded import Loaded
from halimede.frames.pace import Pace
from halimede.frames.slot import Slot
from halimede.inference import Array
from halimede.messages import Frame, Load
from halimede.mining import Miner, is_ours
from halimede.pipeline.inline_policy import ENOUGH, SHORT_MS
from halimede.worker.learning import Learning
from halimede.worker.preparing import Preparer
from halimede.worker.sample import Judged, Sample, answer_and_judge, answer_and_judge_one, judge_again


class Turns:
    """Samples in the order of coming, each with the model that it is given to and what that gets of it."""

    def __init__(self, slot: Slot, miner: Miner, preparer: Preparer, pace: Pace, learning: Learning) -> None:
        self._slot = slot
        self._miner = miner
        self._preparer = preparer
        self._pace = pace
        self._learning = learning
        #: calls on the event loop whose CPU time is looked at, after a long one: the machine may just have been busy
        self._suspected = 0
        #: whether mining is ours as well, and waits for nothing
        self._ours = is_ours(miner)
        self._queue: deque[tuple[Sample, Array, Loaded]] = deque()
        self._arrived = asyncio.Event()
        #: samples that are being prepared for the model here, wait for it or are in it
        self._own = 0

    def __len__(self) -> int:
        return len(self._queue)

    def load(self) -> Load:
        """Return how much the model has to do."""
        places = max(0, self._pace.places - self._own)
        return Load(credits=places, service_ms=round(self._pace.service_ms, 3), queued=self._own)

    async def prepare(self, frame: Frame) -> tuple[Loaded, Array]:
        """Return the model that a frame is given to, and its input. ``put`` has to follow. Raises DecodeError."""
        self._own += 1
        try:
            return await self._preparer.begin(frame, self._slot)
        except BaseException:
            self._own -= 1
            raise

    def prepare_now(self, frame: Frame, size: int) -> tuple[Loaded, Array] | None:
        """Do as ``prepare``, of pixels of ``size`` bytes; None where that takes time."""
        given = self._preparer.begin_now(frame, self._slot, size)
        self._own += given is not None
        return given

    def put(self, sample: Sample, model: Loaded, array: Array) -> None:
        """Let a sample wait for its turn."""
        self._queue.append((sample, array, model))
        self._arrived.set()

    def newest(self) -> Sample:
        """Return the one that came last: the others are nearer to their turn."""
        return self._queue[-1][0]

    def withdraw(self) -> Sample:
        """Take the newest one back: somebody else will look at it."""
        sample, array, model = self._queue.pop()
        self._preparer.done(array)
        model.release()
        self._own -= 1
        return sample

    async def wait(self) -> None:
        """Wait until there is something to do."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()

    async def next(self) -> list[tuple[Sample, Judged]]:
        """Run each model on what waits for it."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._pace.batch))]
        parts: dict[Loaded, list[tuple[Sample, Array]]] = {}
        for sample, array, model in batch:
            parts.setdefault(model, []).append((sample, array))
        verdicts: dict[Sample, Judged] = {}
        for model, waiting in parts.items():
            arrays = [array for _, array in waiting]
            if self._here(model, len(arrays)):
                answers, ms = model.thread.inline(answer_and_judge, model.model, self._miner, arrays)
            else:
                answers, ms = await model.thread.call(answer_and_judge, model.model, self._miner, arrays)
            self._ran(model, arrays, answers, ms)
            verdicts.update(zip((sample for sample, _ in waiting), answers, strict=True))
            await judge_again(self._slot, model, self._miner, verdicts, [sample for sample, _ in waiting])
        self._own -= len(batch)
        answered = [(sample, verdicts[sample]) for sample, _, _ in batch]
        self._learning.learn(answered)
        return answered

    def at_once(self, sample: Sample, model: Loaded, array: Array) -> Judged | None:
        """Run the model on a sample here and now, if it is short and nothing waits; None: ``put`` has to follow."""
        if self._queue or not self._here(model, 1):
            return None
        used = time.thread_time() if self._suspected else 0.0
        said = model.thread.inline(answer_and_judge_one, model.model, self._miner, array)
        ms = (said.ended - said.outcome.began) * 1000
        if self._suspected:
            model.brief.learn(1, (time.thread_time() - used) * 1000)
            self._suspected -= 1
        elif ms > SHORT_MS:
            self._suspected = ENOUGH
        else:
            model.brief.learn(1, ms)
        self._preparer.done(array)
        model.release()
        model.learn((said.outcome,))
        self._own -= 1
        self._learning.learn_one(sample, said)
        return said

    def _here(self, model: Loaded, count: int) -> bool:
        """Whether a model may run on the event loop: its calls are short, and nothing of a user's is in them."""
        slot = self._slot
        return self._ours and model is slot.current and count <= slot.turn and model.thread.idle

    def _ran(self, model: Loaded, arrays: Sequence[Array], answers: Sequence[Judged], ms: float) -> None:
        for array in arrays:
            self._preparer.done(array)
        model.release(len(arrays))
        model.brief.learn(len(arrays), ms)
        model.learn([each.outcome for each in answers])
