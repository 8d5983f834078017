"""Records service rate, times and traces of a pipeline, once for each answered batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halimede.errors import shorten_middle
from halimede.log import RateLimitedLogger
from halimede.messages import Count
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.sample import Sample
from halimede.stats.ledger import Latency, Ledger
from halimede.tracing import CloudTimes, EdgeTimes, FrameRecord, TraceBuffer
from halimede.tracing.latency import Distribution
from halimede.tracing.steps import COMPUTE, DECODE, MINE, MODEL, QUEUE, WAIT, Kind


@dataclass(frozen=True, slots=True)
class IntakeMetrics:
    """Names of the trace steps of an intake, and the distributions of their times.

    Attributes:
        wait: from arrival to the beginning of the model call; ``call``: that call; ``batch``: samples in it.
        ledger: counts failures of mining, and records the time until samples are concluded.

    """

    wait: Kind
    call: Kind
    wait_ms: Distribution
    decode_ms: Distribution
    call_ms: Distribution
    batch: Distribution
    ledger: Ledger | None = None
    latency: Latency | None = None

    @classmethod
    def at_edge(cls, times: EdgeTimes, ledger: Ledger) -> IntakeMetrics:
        """Return the metrics of camera frames."""
        return cls(WAIT, MODEL, times.wait, times.decode, times.model, times.batch, ledger, Latency.EDGE)

    @classmethod
    def in_cloud(cls, times: CloudTimes, ledger: Ledger | None = None) -> IntakeMetrics:
        """Return the metrics of requests."""
        return cls(QUEUE, COMPUTE, times.queue, times.decode, times.compute, times.batch, ledger)


class Observer:
    """Updates the rate, times, traces and counts of one pipeline."""

    def __init__(self, rate: ServiceRate, trace_buffer: TraceBuffer) -> None:
        self._rate = rate
        self._trace_buffer = trace_buffer
        self._limited_log = RateLimitedLogger()

    def observe(self, batch: Sequence[Sample], outcomes: Sequence[InferenceOutcome], concluded: float) -> None:
        """Record a batch that was answered or escalated at ``concluded`` (loop time)."""
        calls: dict[float, list[FrameRecord]] = {}
        for sample, outcome in zip(batch, outcomes, strict=True):
            metrics, trace, began = sample.intake.metrics, sample.trace, outcome.began
            if outcome.decoded:
                began, end = outcome.decoded
                trace.step((DECODE, began, end, outcome.scale))
                metrics.decode_ms.record((end - began) * 1000)
            if outcome.decoded or outcome.batch:
                trace.step((metrics.wait, sample.queued, began))
                metrics.wait_ms.record((began - sample.queued) * 1000)
            if outcome.batch:
                began = outcome.began
                trace.step((metrics.call, began, began + outcome.ms / 1000, outcome.batch))
                if began in calls:
                    calls[began].append(trace)
                else:
                    calls[began] = [trace]
                    self._rate.learn(outcome.batch, outcome.ms)
                    metrics.batch.record(outcome.batch)
                    metrics.call_ms.record(outcome.ms)
            if outcome.mined:
                self._mined(sample, outcome)
            if metrics.ledger and metrics.latency is not None:
                metrics.ledger.record(metrics.latency, (concluded - sample.accepted) * 1000)
                if outcome.prediction is None:
                    self._failed(metrics.ledger, outcome)
        if self._trace_buffer.exports:
            for outcome in outcomes:
                if traces := calls.pop(outcome.began, None):
                    self._trace_buffer.batch(outcome.began, outcome.began + outcome.ms / 1000, traces)

    def concluded(self, sample: Sample, now: float) -> None:
        """Record the time until a sample was answered or escalated (loop time)."""
        metrics = sample.intake.metrics
        if metrics.ledger and metrics.latency is not None:
            metrics.ledger.record(metrics.latency, (now - sample.accepted) * 1000)

    def _failed(self, ledger: Ledger, outcome: InferenceOutcome) -> None:
        """Count a sample that the model failed on, unless the sample itself is the cause."""
        if not outcome.unfit:
            ledger.add(Count.MODEL_ERRORS)
        self._limited_log.warning("model failed", error=shorten_middle(outcome.error, 256))

    def _mined(self, sample: Sample, outcome: InferenceOutcome) -> None:
        verdict, prediction, ledger = outcome.verdict, outcome.prediction, sample.intake.metrics.ledger
        if verdict is None or outcome.mined is None:
            return
        score = (prediction.score if prediction is not None else None) or 0.0
        sample.trace.step((MINE, *outcome.mined, verdict.hard, score))
        if verdict.error and ledger:
            ledger.add(Count.MINING_ERRORS)
            self._limited_log.warning("mining failed", error=shorten_middle(verdict.error, 256))
