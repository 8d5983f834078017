"""What waits for the model of an edge worker, and its turn in it.

Pixels are let go here, once the model has seen them: a sample may wait for the cloud without them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from halimede.frames.pace import Pace
from halimede.frames.slot import Loaded, Slot
from halimede.inference import Array
from halimede.messages import Frame, Load
from halimede.mining import Miner
from halimede.worker.learning import Learning
from halimede.worker.preparing import Preparer
from halimede.worker.sample import Judged, Sample, answer_and_judge, judge_again


class Turns:
    """Samples in the order of coming, each with the model that it is given to and what that gets of it."""

    def __init__(self, slot: Slot, miner: Miner, preparer: Preparer, pace: Pace, learning: Learning) -> None:
        self._slot = slot
        self._miner = miner
        self._preparer = preparer
        self._pace = pace
        self._learning = learning
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
            answers = await model.thread.call(answer_and_judge, model.model, self._miner, arrays)
            for array in arrays:
                self._preparer.done(array)
            model.release(len(arrays))
            model.learn([each.outcome for each in answers])
            verdicts.update(zip((sample for sample, _ in waiting), answers, strict=True))
            await judge_again(self._slot, model, self._miner, verdicts, [sample for sample, _ in waiting])
        self._own -= len(batch)
        answered = [(sample, verdicts[sample]) for sample, _, _ in batch]
        self._learning.learn(answered)
        return answered
