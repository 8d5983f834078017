"""Samples, workers and models, and a pipeline whose intake and responder only note what becomes of its samples."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.inference import Array
from halimede.messages import Count, Frame, Prediction
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import InlinePolicy, ModelThread
from halimede.pipeline.inference import Inference
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.observer import IntakeMetrics, Observer
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.sample import Conclusion, Sample
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Latency
from halimede.tracing import CloudTimes, TraceBuffer
from tests.unit.frames.clouds import NS, SERVICE, Brightness, frame

LIMIT = 64
UP, AUDIT = UploadDecision(ask=True, hard=True), UploadDecision(ask=True, hard=False, audit=True)


#: calls that are short before it is known that all are; stated here again, so that a change in the product is noticed
SHORT_CALLS = 50


class Ours(Brightness):
    """A model of ours; notes in which thread it runs."""

    ours = True

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        self.threads.append(threading.get_ident())
        return super().predict(batch)


class Held(Brightness):
    """Waits in its thread until it is let go, so that a test knows what waits in the queue.

    Simulated time stands while a thread works: such tests run on the real clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        assert self.gate.wait(20)
        return super().predict(batch)


def short() -> InlinePolicy:
    """Return a policy that knows calls as short."""
    policy = InlinePolicy()
    for _ in range(SHORT_CALLS):
        policy.learn(1, 0.05)
    return policy


def new_sample(body: Frame | None = None, intake: Any = None, **fields: Any) -> Sample:
    """Return a sample that was accepted at 0 and has all the time there is."""
    body = body or frame()
    usual = {"trace": TraceBuffer().begin(body.id), "accepted": 0.0, "until": math.inf, "queued": 0.0}
    return Sample(body, intake, **usual | fields)


def edge_worker(
    slot: ModelSlot, ledger: Any = None, outbox: Any = None, decoder: ModelThread | None = None, **options: Any
) -> EdgeWorker:
    """Return a worker whose results go to ``outbox``, and whose frames the thread of its model decodes."""
    ledger, outbox = ledger or Counts(), outbox or result_outbox(MemoryBus("e0", MemoryBroker()))
    address = topics.RESULT.at(ns=NS, service=SERVICE)
    responder = ResultResponder(Origin(SERVICE, "e0", "node-e0"), outbox, address, ledger)
    return EdgeWorker(slot, responder, ledger, decoder or slot.current.thread, **options)


class Outbox:
    """Takes every answer at once."""

    immediate = ready = True

    async def wait_ready(self) -> None:
        return


class Counts(Counter[Count]):
    """A ledger in memory. ``latencies``: what was recorded."""

    def __init__(self, *counts: Any) -> None:
        super().__init__(*counts)
        self.latencies: list[tuple[Latency, float]] = []

    def __bool__(self) -> bool:
        return True

    def add(self, count: Count, n: int = 1) -> None:
        self[count] += n

    def count(self, counts: Iterable[Count]) -> None:
        self.update(counts)

    def record(self, latency: Latency, milliseconds: float) -> None:
        self.latencies.append((latency, milliseconds))


class Collector:
    """The intake and the responder of samples, both in one: it keeps each sample's one conclusion."""

    drops_late = False
    gathers = True
    escalation: Escalation | None = None
    return_s = 0.0

    def __init__(self, metrics: IntakeMetrics) -> None:
        self.metrics = metrics
        self.outbox = Outbox()
        self.conclusions: dict[Sample, asyncio.Future[Conclusion]] = {}

    @property
    def responder(self) -> Collector:
        return self

    def sample(self, body: Frame, trace_buffer: TraceBuffer) -> Sample:
        now = asyncio.get_running_loop().time()
        sample = Sample(body, self, trace_buffer.begin(body.id), now, math.inf, time.monotonic())
        self.conclusions[sample] = asyncio.get_running_loop().create_future()
        return sample

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        self.conclusions[sample].set_result(conclusion)

    async def prepare(self, sample: Sample) -> None:
        return

    def release_input(self, sample: Sample) -> None:
        return

    def leave(self, sample: Sample) -> None:
        return

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        raise AssertionError("samples here have all the time there is")


class Answering:
    """A running pipeline in front of a slot. ``calls``: of models, so far."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._trace_buffer = TraceBuffer()
        self._metrics = IntakeMetrics.in_cloud(CloudTimes())

    @property
    def calls(self) -> int:
        return self._metrics.batch.count

    async def answer(self, frames: Sequence[Frame]) -> list[tuple[Sample, Conclusion]]:
        """Submit frames in one go; return each with its conclusion, in order."""
        collector = Collector(self._metrics)
        for body in frames:
            self.pipeline.submit(collector.sample(body, self._trace_buffer))
        found = [(sample, await conclusion) for sample, conclusion in collector.conclusions.items()]
        await asyncio.sleep(0)  # the observer has seen them, too
        return found


@contextlib.asynccontextmanager
async def answering(slot: ModelSlot) -> AsyncIterator[Answering]:
    """Run a pipeline that takes whatever is there in one batch."""
    trace_buffer, rate = TraceBuffer(), ServiceRate(queue=LIMIT, batch=LIMIT, horizon_s=1e6)
    rate.learn(1, 0.001)
    pipeline = Pipeline(slot, rate, Inference(LIMIT), Observer(rate, trace_buffer))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(pipeline.run())
        await asyncio.sleep(0)
        yield Answering(pipeline)
        running.cancel()
