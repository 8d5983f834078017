"""Records the service rate, durations, traces and failures of a pipeline, once for each answered batch."""

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
    """What is recorded of the samples of one intake.

    Attributes:
        wait: the trace step from queueing (``Sample.queued``) to the beginning of decoding, or else of the model call.
        call: the trace step of the model call.
        wait_ms: milliseconds of that wait.
        decode_ms: milliseconds of decoding and preparation.
        call_ms: milliseconds of model calls.
        batch: numbers of samples in model calls.
        ledger: counts failures of mining; None: they are not counted.
        edge_ledger: has the latency from acceptance until samples are concluded, and counts failures of the model;
            None: the samples are requests, of which the responder counts the failed ones.

    """

    wait: Kind
    call: Kind
    wait_ms: Distribution
    decode_ms: Distribution
    call_ms: Distribution
    batch: Distribution
    ledger: Ledger | None = None
    edge_ledger: Ledger | None = None

    @classmethod
    def at_edge(cls, times: EdgeTimes, ledger: Ledger) -> IntakeMetrics:
        """Return the metrics for camera frames at an edge worker."""
        return cls(WAIT, MODEL, times.wait, times.decode, times.model, times.batch, ledger, ledger)

    @classmethod
    def in_cloud(cls, times: CloudTimes, ledger: Ledger | None = None) -> IntakeMetrics:
        """Return the metrics for requests at a worker that answers them."""
        return cls(QUEUE, COMPUTE, times.queue, times.decode, times.compute, times.batch, ledger)


class Observer:
    """Updates the service rate, and the metrics and traces of the samples, of one pipeline.

    ``trace_buffer``: exports the model calls.
    """

    def __init__(self, rate: ServiceRate, trace_buffer: TraceBuffer) -> None:
        self._rate = rate
        self._trace_buffer = trace_buffer
        self._limited_log = RateLimitedLogger()

    def observe(self, batch: Sequence[Sample], outcomes: Sequence[InferenceOutcome], concluded: float) -> None:
        """Record a batch, and its outcomes in the same order, that was answered or escalated at ``concluded``.

        ``concluded``: the time of the event loop in seconds.
        """
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
                self._record_mining(sample, outcome, outcome.mined)
            if ledger := metrics.edge_ledger:
                ledger.record(Latency.EDGE, (concluded - sample.accepted) * 1000)
                if outcome.prediction is None:
                    self._record_failure(ledger, outcome)
        if self._trace_buffer.exports:
            for outcome in outcomes:
                if traces := calls.pop(outcome.began, None):
                    self._trace_buffer.add_batch(outcome.began, outcome.began + outcome.ms / 1000, traces)

    def concluded(self, sample: Sample, now: float) -> None:
        """Record the latency of a sample that was answered or escalated at ``now``, the time of the event loop."""
        if ledger := sample.intake.metrics.edge_ledger:
            ledger.record(Latency.EDGE, (now - sample.accepted) * 1000)

    def _record_failure(self, ledger: Ledger, outcome: InferenceOutcome) -> None:
        """Log a failure of the model, and count it unless the sample itself is the cause."""
        if not outcome.unfit:
            ledger.add(Count.MODEL_ERRORS)
        self._limited_log.warning("model failed", error=shorten_middle(outcome.error))

    def _record_mining(self, sample: Sample, outcome: InferenceOutcome, mined: tuple[float, float]) -> None:
        """Record the step of mining, with its begin and end, and count its error if it failed."""
        verdict, prediction, ledger = outcome.verdict, outcome.prediction, sample.intake.metrics.ledger
        assert verdict is not None  # noqa: S101  # both are set at once
        score = (prediction.score if prediction is not None else None) or 0.0
        sample.trace.step((MINE, *mined, verdict.hard, score))
        if verdict.error and ledger:
            ledger.add(Count.MINING_ERRORS)
            self._limited_log.warning("mining failed", error=shorten_middle(verdict.error))
