"""Samples through a pipeline whose intake and responder only note what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence

from halimede.messages import Frame
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.inference import Inference
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.observer import IntakeMetrics, Observer
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.sample import Conclusion, Sample
from halimede.tracing import CloudTimes, TraceBuffer

LIMIT = 64


class Outbox:
    """Takes every answer at once."""

    immediate = ready = True

    async def wait_ready(self) -> None:
        return


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
    running = asyncio.create_task(pipeline.run())
    await asyncio.sleep(0)
    try:
        yield Answering(pipeline)
    finally:
        running.cancel()
        await asyncio.wait([running])
