"""From what waits to the model and on to the answers: batch by batch, in lanes side by side, or in the loop's own turn.

A batch is taken when somebody has nothing to do, and waited for only where that is wanted. Where the model is so short
that a task and a thread would cost more than it does, what has arrived is answered before the loop goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec

from halimede.frames.answers import Answers
from halimede.frames.backlog import Backlog
from halimede.frames.calls import calls
from halimede.frames.compute import Outcome
from halimede.frames.jobs import Job, Key
from halimede.frames.lanes import Lanes
from halimede.frames.limits import ServerLimits, ServerStats
from halimede.frames.pace import Pace
from halimede.frames.slot import Slot
from halimede.tracing import Book, CloudTimes

P = ParamSpec("P")


class Batches:
    """Takes batches of a backlog to the model in ``slot``, and what becomes of them to ``answers``.

    ``pace``, ``times`` and ``book`` learn how long it took; ``stats`` counts the model's calls.
    """

    def __init__(
        self,
        backlog: Backlog,
        slot: Slot,
        answers: Answers,
        *,
        pace: Pace,
        limits: ServerLimits,
        stats: ServerStats,
        times: CloudTimes,
        book: Book,
    ) -> None:
        self._backlog = backlog
        self._slot = slot
        self._answers = answers
        self._pace = pace
        self._limits = limits
        self._stats = stats
        self._times = times
        self._book = book
        self._lanes = Lanes()
        #: model calls that are under way
        self._calling = 0
        #: this turn of the loop ends with answers (``_answer_now``)
        self._answering = False

    def start(self, group: asyncio.TaskGroup) -> None:
        """Take batches from now on, in tasks of this group."""
        self._group = group
        for lane in range(self._slot.lanes):
            group.create_task(self._work(), name=f"batches {lane}")

    def rouse(self) -> None:
        """See to it that what waits is answered: in this very turn of the loop, where the model is that short."""
        if self._answering:
            return
        if self._slot.turn and self._answers.at_once and not (self._limits.delay_s or self._calling):
            self._answering = True
            self._soon(self._answer_now)
        else:
            self._lanes.rouse()

    def _answer_now(self) -> None:
        """Answer what waits without a task: as many samples as keep nobody waiting."""
        self._answering = False
        batch = self._next()
        if batch:
            jobs = self._backlog.jobs
            frames = [jobs[key].delivery.body for key in batch]
            began, batched = asyncio.get_running_loop().time(), time.monotonic()
            answered = self._slot.answer_now(frames, self._limits.batch)
            if answered is None:  # these take longer
                self._backlog.put_back(batch)
                self._lanes.rouse()
                return
            outcomes, made, version = answered
            self._stats.batches += made
            self._soon(self._learn, [jobs[key] for key in batch], outcomes, batched)  # once the replies are out
            for key, outcome in zip(batch, outcomes, strict=True):
                self._answers.answer_now(key, outcome, began, version)
        if self._backlog.queue:
            self.rouse()

    def _soon(self, work: Callable[P, None], *given: P.args, **named: P.kwargs) -> None:
        """Have something done in the next turn of the loop, after what leaves in this one."""

        def run() -> None:
            try:
                work(*given, **named)
            except Exception as error:  # noqa: BLE001 (as in a lane a defect ends the server, and no sample is lost)
                self._group.create_task(_fail(error), name="defect")

        asyncio.get_running_loop().call_soon(run)

    async def _work(self) -> None:
        """Batch what is waiting; wait for more only where that is wanted."""
        arrived = asyncio.Event()
        jobs, queue = self._backlog.jobs, self._backlog.queue
        while True:
            if not queue:
                await self._lanes.wait(arrived)
            self._lanes.look(arrived)
            if self._limits.delay_s and queue:
                await self._fill(arrived)
            batch = self._next()
            self._lanes.looked(arrived, left=bool(queue))
            if batch:
                self._calling += 1
                frames = [jobs[key].delivery.body for key in batch]
                began, batched = asyncio.get_running_loop().time(), time.monotonic()
                try:
                    answered, made = await self._slot.answer(frames, self._limits.batch)
                finally:
                    self._calling -= 1
                self._stats.batches += made
                self._learn([jobs[key] for key in batch], [outcome for outcome, _ in answered], batched)
                for key, (outcome, version) in zip(batch, answered, strict=True):
                    await self._answers.answer(key, outcome, began, version)
            if queue:
                await asyncio.sleep(0)  # short models answer on this loop: others get their turn

    async def _fill(self, arrived: asyncio.Event) -> None:
        """Wait until a batch is full, or its first sample has waited as long as it may: at most half of its time."""
        clock = asyncio.get_running_loop()
        queue = self._backlog.queue
        first = self._backlog.jobs[queue[0]]
        until = first.arrived + min(self._limits.delay_s, (first.until - first.arrived) / 2)
        while 0 < len(queue) < self._pace.batch and (left := until - clock.time()) > 0:
            arrived.clear()
            try:
                async with asyncio.timeout(left):
                    await arrived.wait()
            except TimeoutError:
                break

    def _next(self) -> list[Key]:
        """Take the next batch off the queue, and let go what nobody waits for any more."""
        free = max(1, self._slot.lanes - self._calling)  # those who have nothing to do share what is there
        most = min(self._pace.batch, self._slot.turn or -(-len(self._backlog.queue) // free))
        batch, late, hopeless = self._backlog.next(asyncio.get_running_loop().time(), most)
        if late or hopeless:
            self._answers.expire(late, hopeless)
        return batch

    def _learn(self, jobs: Sequence[Job], outcomes: Sequence[Outcome], batched: float) -> None:
        """Note how long it took: for the pace, for the times, and in each sample's trace."""
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.computed(batched, outcome, self._times)
        for call in calls(zip((job.trace for job in jobs), outcomes, strict=True)):
            self._pace.learn(call.samples, call.ms)
            self._times.batch.record(call.samples)
            self._times.compute.record(call.ms)
            self._book.batch(call.began, call.ended, call.records)


async def _fail(error: Exception) -> None:
    raise error
