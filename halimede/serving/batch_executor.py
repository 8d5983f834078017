"""Batches the requests that wait for one model, and runs them in threads. It never waits to fill a batch.

The event loop puts requests into a queue; a thread takes the queued ones, up to ``most`` rows, and returns all answers
in one step. ONNX Runtime releases the interpreter while it computes, so several threads (``instances``) may share one
model.

Handing work to a thread and back takes some 50 microseconds, and several times that on a busy core. A model that was
measured to be faster runs on the event loop at once: no other request could wait long enough to share its call. An
``InlinePolicy`` decides that; after one slow call the model runs in its threads again.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from halimede.errors import describe_exception
from halimede.inference import SampleError
from halimede.pipeline.executor import InlinePolicy
from halimede.serving.errors import ExpiredError, ModelFailedError, OverloadedError, ServeError

T = TypeVar("T")

#: most requests that wait for one model
MAX_WAITING = 1024


@dataclass(slots=True, eq=False)
class BatchJob:
    """One request for a model.

    Attributes:
        work: what ``BatchExecutor.run`` gets for it.
        rows: its samples.
        answer: gets the answer, or a ServeError.
        put: when it was queued, in monotonic seconds.
        until: its deadline, in monotonic seconds.

    """

    work: Any
    rows: int
    answer: asyncio.Future[Any]
    put: float
    until: float = float("inf")


#: takes the works of jobs and returns an answer for each, in order; a SampleError or ServeError is that job's error
Run = Callable[[Sequence[Any]], Sequence[Any]]
#: called after each run: when its requests were queued, its rows, its begin and end, in monotonic seconds
Ran = Callable[[Sequence[float], int, float, float], None]

#: number of the event loop among a model's threads
EVENT_LOOP = -1


@dataclass(slots=True)
class BatchExecutor:
    """The threads of one model. Call ``start`` once, then ``submit``, and ``close`` after the last answer.

    Attributes:
        name: of the model, for messages.
        run: calls the model.
        most: rows from which a batch takes no further request.
        instances: the number of threads.
        ran: is called on the event loop after each call of the model; None: no function is.
        policy: decides which calls run on the event loop; None: none.
        begin: is called first in each thread; None: no function is.
        waiting: requests without an answer.

    """

    name: str
    run: Run
    most: int
    instances: int = 1
    ran: Ran | None = None
    policy: InlinePolicy | None = None
    begin: Callable[[], None] | None = None
    waiting: int = 0
    _queue: queue.SimpleQueue[BatchJob | None] = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop | None = None
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    #: the begin of each running call in monotonic seconds, by the number of its thread
    _began: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start the threads; they end with the process, or after ``close``. Call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._idle.set()
        for number in range(self.instances):
            threading.Thread(target=self._work, args=(number,), name=f"model_{self.name}", daemon=True).start()

    def is_quick(self, rows: int) -> bool:
        """Whether a call with so many ``rows`` is short enough for the event loop, by ``policy``; never without it."""
        return self.policy is not None and rows <= self.policy.max_samples > 0  # 0: no call, not even of 0 rows

    def run_inline(self, call: Callable[[], T], rows: int) -> T:
        """Run a call of the model on the event loop, and return its result. A SampleError becomes ModelFailedError."""
        began = self._began[EVENT_LOOP] = time.monotonic()
        spent = time.thread_time()
        try:
            return call()
        except SampleError as error:
            raise ModelFailedError(str(error)) from error
        finally:
            if self.policy:
                self.policy.learn(rows, (time.thread_time() - spent) * 1000)
            del self._began[EVENT_LOOP]
            if self.ran:
                self.ran((began,), rows, began, time.monotonic())

    def submit(self, work: Any, rows: int, until: float = float("inf")) -> asyncio.Future[Any]:
        """Queue a request; the future gets its answer or a ServeError. Raises OverloadedError if too many wait.

        ``until``: its deadline in monotonic seconds; a request that waits longer gets ExpiredError.
        """
        if self.waiting >= MAX_WAITING:
            raise OverloadedError(f"{self.waiting} requests wait for {self.name}: try again later")
        assert self._loop is not None, "started"  # noqa: S101 - for the type checker
        answer: asyncio.Future[Any] = self._loop.create_future()
        self.waiting += 1
        self._queue.put(BatchJob(work, rows, answer, time.monotonic(), until))
        return answer

    @property
    def busy_s(self) -> float:
        """Seconds for which the longest running call has run; 0 without one. Any thread may read it."""
        began = min(list(self._began.values()), default=None)
        return time.monotonic() - began if began is not None else 0.0

    async def wait_idle(self) -> None:
        """Wait until all requests are answered, without a deadline."""
        while self.waiting:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """Let the threads end after the queued jobs. Does not wait for them."""
        for _ in range(self.instances):
            self._queue.put(None)

    def _work(self, number: int) -> None:
        """Answer jobs until ``close``; the thread ``number`` runs this."""
        loop = self._loop
        assert loop is not None, "started"  # noqa: S101 - for the type checker
        if self.begin:
            self.begin()
        while (jobs := self._next()) is not None:
            began = time.monotonic()
            alive = [job for job in jobs if job.until > began and not job.answer.done()]
            answers = self._run_jobs(alive, number, began) if alive else ()
            try:
                loop.call_soon_threadsafe(self._set_answers, jobs, alive, answers, began, time.monotonic())
            except RuntimeError:
                return  # the loop is closed, and with it all waiting requests
            del jobs, alive, answers  # they may be large, and the next jobs may arrive much later

    def _run_jobs(self, jobs: Sequence[BatchJob], number: int, began: float) -> Sequence[Any]:
        """Run jobs in the thread ``number``, and return their answers; errors if the call fails."""
        works = [job.work for job in jobs]
        self._began[number] = began
        spent = time.thread_time()
        try:
            return self.run(works)
        except BaseException as error:  # noqa: BLE001  # the waiting requests need an answer, and the thread continues
            return [SampleError(f"the model failed: {describe_exception(error)}")] * len(works)
        finally:
            self._began.pop(number, None)
            if self.policy:
                self.policy.learn(sum(job.rows for job in jobs), (time.thread_time() - spent) * 1000)

    def _next(self) -> list[BatchJob] | None:
        """Wait for a job, and return it with further queued ones; None: the thread must end."""
        first = self._queue.get()
        if first is None:
            return None
        jobs, rows = [first], first.rows
        while rows < self.most:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._queue.put(None)
                break
            jobs.append(job)
            rows += job.rows
        return jobs

    def _set_answers(
        self, jobs: Sequence[BatchJob], alive: Sequence[BatchJob], answers: Sequence[Any], began: float, ended: float
    ) -> None:
        """Give jobs their answers, on the event loop. Jobs that are not ``alive`` have expired or were cancelled."""
        for job, answer in zip(alive, answers, strict=True):
            if job.answer.done():
                continue
            if error := _as_error(answer):
                job.answer.set_exception(error)
            else:
                job.answer.set_result(answer)
        for job in jobs:
            if not job.answer.done():
                job.answer.set_exception(ExpiredError("no time was left for the model"))
        self.waiting -= len(jobs)
        if self.ran and alive:
            self.ran([job.put for job in alive], sum(job.rows for job in alive), began, ended)
        if not self.waiting:
            self._idle.set()


def _as_error(answer: Any) -> ServeError | None:
    """Return the error to raise for an answer that is an error; None for any other answer."""
    if isinstance(answer, ServeError):
        return answer
    return ModelFailedError(str(answer)) if isinstance(answer, SampleError) else None
