"""What is recorded of a batch: its calls once, and the times of each of its samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from halimede.messages import Count, Prediction
from halimede.mining import Verdict
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.observer import IntakeMetrics, Observer
from halimede.stats.ledger import Latency
from halimede.tracing import CloudTimes, EdgeTimes, TraceBuffer
from halimede.tracing.record import Batch
from halimede.tracing.steps import COMPUTE, DECODE, MINE, MODEL, QUEUE, WAIT
from tests.unit.frames.clouds import frame
from tests.unit.pipeline.answering import Counts, new_sample


class Exporter:
    """Keeps the batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, float, int]] = []

    def must_sample(self, trace_id: int, parent: object) -> bool:
        return True

    def export(self, record: Any) -> None:
        if isinstance(record, Batch):
            self.batches.append((record.began, record.ended, record.size))


ANSWER = Prediction(label="7", score=0.75)


async def test_each_call_of_a_batch_is_recorded_once_and_the_times_of_all_its_samples() -> None:
    times, exporter, rate = EdgeTimes(), Exporter(), ServiceRate(queue=64, batch=32, horizon_s=1.0)
    ledger: Any = Counts()
    buffer, intake = TraceBuffer(exporter), SimpleNamespace(metrics=IntakeMetrics.at_edge(times, ledger))
    batch = [
        new_sample(body, intake, trace=buffer.begin(body.id), accepted=50.0, queued=9.0)
        for body in map(frame, range(4))
    ]
    outcomes = [
        *[InferenceOutcome(ANSWER, batch=2, ms=500.0, began=10.0)] * 2,
        InferenceOutcome(
            ANSWER, batch=1, ms=250.0, began=11.0, decoded=(9.5, 9.75), scale=2,
            verdict=Verdict(hard=True, error="odd"), mined=(11.25, 11.5),
        ),
        InferenceOutcome(error="it broke", verdict=Verdict(hard=True), mined=(12.0, 12.5)),
    ]  # fmt: skip
    observer = Observer(rate, buffer)
    observer.observe(batch, outcomes, 52.0)
    observer.concluded(batch[0], 50.25)
    assert [sample.trace.steps for sample in batch] == [
        [(WAIT, 9.0, 10.0), (MODEL, 10.0, 10.5, 2)],
        [(WAIT, 9.0, 10.0), (MODEL, 10.0, 10.5, 2)],
        [(DECODE, 9.5, 9.75, 2), (WAIT, 9.0, 9.5), (MODEL, 11.0, 11.25, 1), (MINE, 11.25, 11.5, True, 0.75)],
        [(MINE, 12.0, 12.5, True, 0.0)],
    ]
    assert exporter.batches == [(10.0, 10.5, 2), (11.0, 11.25, 1)]
    distributions = (times.batch, times.model, times.wait, times.decode)
    assert [distribution.count for distribution in distributions] == [2, 2, 3, 1]
    assert [distribution.total for distribution in distributions] == [3.0, 750.0, 2500.0, 250.0]
    assert rate.service_ms == pytest.approx(250.0)
    assert (ledger[Count.MODEL_ERRORS], ledger[Count.MINING_ERRORS]) == (1, 1)
    assert ledger.latencies == [*[(Latency.EDGE, 2000.0)] * 4, (Latency.EDGE, 250.0)]


async def test_a_request_has_no_latency_of_an_edge_worker_and_its_responder_counts_its_failure() -> None:
    ledger: Any = Counts()
    for counts in (ledger, None):
        intake = SimpleNamespace(metrics=IntakeMetrics.in_cloud(CloudTimes(), counts))
        sample, rate = new_sample(intake=intake), ServiceRate(queue=64, batch=32, horizon_s=1.0)
        odd = Verdict(hard=True, error="odd")
        outcome = InferenceOutcome(batch=1, ms=500.0, began=10.0, error="it broke", verdict=odd, mined=(11.0, 12.0))
        Observer(rate, TraceBuffer()).observe([sample], [outcome], 52.0)
        assert [step[0] for step in sample.trace.steps] == [QUEUE, COMPUTE, MINE]
    assert (+ledger, ledger.latencies) == ({Count.MINING_ERRORS: 1}, [])
