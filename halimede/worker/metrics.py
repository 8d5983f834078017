"""A worker's metrics for Prometheus and its health, read from its ledger, queues and times on each scrape.

Counts come from the ledger, so they continue after a restart; times are of this process only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from prometheus_client.metrics_core import Metric

from halimede.bus import Bus
from halimede.bus.port import refusal_text, refused_names
from halimede.messages import TaskInfo
from halimede.messages.counters import Count, ExportedBy
from halimede.observe import Health
from halimede.observe.metrics import Samples, buses, counter, gauge, ledger_counters, sizes, times
from halimede.offload import OffloadClient
from halimede.offload.limits import State
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.transcode import UploadEncoder
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.overload import OverloadDetector
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.pipeline.workers import EdgeWorker, RequestWorker
from halimede.stats.agreement import agreement_of
from halimede.stats.ledger import Ledger
from halimede.tracing import CloudTimes, EdgeTimes
from halimede.worker.settings import WorkerSettings

CIRCUIT = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
EDGE_TIMES = "Time of a step of an answer at the edge: decode, wait, model (a call), offload."
CLOUD_TIMES = "Time of a step of an answer in the cloud: queue, decode, compute (a call), total."


@dataclass(slots=True)
class WorkerMetrics:
    """The metrics of one worker. The parts of its role are set when they exist."""

    settings: WorkerSettings
    connections: list[Bus] = field(default_factory=list)
    #: whether the broker sends samples to it
    ready: bool = False
    ledger: Ledger | None = None
    slot: ModelSlot | None = None
    edge: EdgeWorker | None = None
    cloud: RequestWorker | None = None
    #: set for a worker that requests a next tier
    offload: OffloadClient | None = None
    policy: UploadPolicy | None = None
    #: whether the next tier takes fewer samples than are hard
    overload: OverloadDetector = field(default_factory=OverloadDetector)
    #: metrics of only some roles
    more: list[Callable[[], Iterable[Metric]]] = field(default_factory=list)

    def health(self) -> Health:
        """Return the worker's checks."""
        health = Health()
        health.live("model", self._stuck)
        health.ready("broker", lambda: next((f"{b.client_id} is not connected" for b in self._away()), ""))
        health.ready("granted", self.refusal)
        health.ready("work", lambda: "" if self.ready else "starting")
        return health

    def refusal(self) -> str:
        """Return what the broker refuses to the worker, empty if nothing."""
        return refusal_text(refused_names(self.connections))

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield from buses(self.connections)
        if self.ledger:
            self.ledger.catch_up()
            exporter = ExportedBy.EDGE_WORKER if self.settings.role == "edge" else ExportedBy.CLOUD_WORKER
            yield from ledger_counters(self.ledger, exporter)
        if self.slot:
            yield from self._of_models(self.slot)
        if self.edge:
            yield from self._of_edge(self.edge)
        if self.cloud:
            yield from self._of_cloud(self.cloud)
        if self.offload:
            yield from self._of_offload(self.offload)
        if self.policy and self.ledger:
            yield from upload_metrics(self.policy, self.ledger)
        for metrics in self.more:
            yield from metrics()

    @staticmethod
    def _of_models(slot: ModelSlot) -> Iterator[Metric]:
        yield gauge("worker_model_call_seconds", "Age of the current model call.", slot.busy_s)
        by_version = {loaded.version: loaded for loaded in reversed(slot.loaded)}
        said = [({"version": v, "outcome": "answered"}, each.answered) for v, each in by_version.items()]
        said += [({"version": v, "outcome": "failed"}, each.failed) for v, each in by_version.items()]
        yield counter("worker_model_samples", "Samples by the version of the model that answered them.", said)
        calls = [({"version": v}, each.calls.histogram, each.calls.total) for v, each in by_version.items()]
        yield times("worker_model_seconds", "Time of a model's calls, by its version.", calls)

    @staticmethod
    def _of_edge(worker: EdgeWorker) -> Iterator[Metric]:
        responder = worker.responder
        reasons = [({"reason": str(reason)}, n) for reason, n in sorted(responder.degraded.items())]
        yield counter("worker_degraded_answers", "Hard samples that the edge answered itself, by reason.", reasons)
        yield gauge("worker_queued_frames", "Frames that are accepted and not answered yet.", worker.frames.inside)
        yield gauge("worker_outbox_results", "Results that wait for the broker.", responder.outbox.waiting)
        yield from _times("worker_edge", EDGE_TIMES, worker.times)

    def _of_offload(self, offload: OffloadClient) -> Iterator[Metric]:
        if self.cloud and self.ledger:
            yield from ledger_counters(self.ledger, ExportedBy.TIER)
        state = CIRCUIT[offload.circuit.state]
        yield gauge("worker_circuit_state", "Circuit breaker to the next tier: 0 closed, 1 half open, 2 open.", state)
        credits_ = [({"cloud_worker": name}, n) for name, n in sorted(offload.credits_left().items())]
        yield gauge("worker_cloud_credits", "Credits of each worker of the next tier, as last advertised.", credits_)

    @staticmethod
    def _of_cloud(worker: RequestWorker) -> Iterator[Metric]:
        stats = worker.intake.stats
        refused: Mapping[str, int] = {"overloaded": stats.refused, "expired": stats.expired, "failed": stats.failed}
        samples = [({"reason": reason}, n) for reason, n in refused.items()]
        yield counter("worker_unserved_samples", "Requests without a prediction, by reason.", samples)
        yield gauge("worker_queued_frames", "Frames that are accepted and not answered yet.", worker.pipeline.inside)
        yield from _times("worker_cloud", CLOUD_TIMES, worker.intake.times)

    def info(self, ledger: Ledger) -> TaskInfo:
        """Return the counts for reports, with the current values of this process."""
        told = ledger.info()
        if self.edge:
            told.queued = self.edge.frames.inside
            self._read_overload(self.edge.escalation, told)
        if self.policy and self.policy.drift:
            told.drifting = int(self.policy.drift.drifting)
        if self.cloud:
            self._read_overload(self.cloud.intake.escalation, told)
            taken = self.cloud.intake.times
            told.queued, told.queue_latency = self.cloud.pipeline.inside, taken.queue.histogram
            told.compute_latency = taken.compute.histogram
        return told

    def _read_overload(self, escalation: Escalation | None, info: TaskInfo) -> None:
        """Add to the report that the next tier takes fewer samples than are hard, with both rates."""
        if escalation is None:
            return
        self.overload.read(escalation.totals(), time.monotonic())
        if self.overload.overloaded:
            info.overloaded = 1
            info.hard_per_s = round(self.overload.hard_per_s, 2)
            info.taken_per_s = round(self.overload.answered_per_s, 2)

    def _stuck(self) -> str:
        limit = self.settings.model_timeout_s
        # loading a model may take longer than any call: it does not count as stuck
        busy = self.slot.busy_s if self.slot and (self.edge or self.cloud) else 0.0
        return f"its call has taken {busy:.0f} s, more than {limit:g}" if busy > limit else ""

    def _away(self) -> list[Bus]:
        return [bus for bus in self.connections if not bus.connected]


def _times(prefix: str, text: str, taken: EdgeTimes | CloudTimes) -> Iterator[Metric]:
    steps = {f.name: getattr(taken, f.name) for f in fields(taken)}
    batch = steps.pop("batch")
    yield times(f"{prefix}_seconds", text, [({"step": name}, d.histogram, d.total) for name, d in steps.items()])
    yield sizes(f"{prefix}_batch_samples", "Samples in one call of the model.", [({}, batch.histogram, batch.total)])


def encoder_metrics(encoder: UploadEncoder) -> Iterator[Metric]:
    """Return the metrics of encoding for upload; counts start with this process."""
    ready = [({"encoding": e, "changed": changed}, n) for (e, changed), n in sorted(encoder.ready.items())]
    text = "Samples ready for upload, by encoding and by change: none, encoding or size."
    yield counter("worker_upload_ready_samples", text, ready)
    refused = [({"reason": reason}, n) for reason, n in sorted(encoder.refused.items())]
    text = "Samples that cannot be encoded as the service requires for uploads, by reason."
    yield counter("worker_upload_refused_samples", text, refused)
    written = [({"when": "before"}, encoder.before), ({"when": "after"}, encoder.after)]
    yield counter(
        "worker_upload_written_bytes", "Bytes of the samples that were encoded again, before and after.", written
    )
    text, taken = "Time to encode one sample again, decoding included.", encoder.times
    yield times("worker_upload_writing_seconds", text, [({}, taken.histogram, taken.total)])


def upload_metrics(policy: UploadPolicy, ledger: Ledger) -> Iterator[Metric]:
    """Return the metrics of the upload policy: counts continue after a restart, reasons do not."""
    yield from ledger_counters(ledger, ExportedBy.UPLOAD_POLICY)
    withheld = [({"reason": reason}, n) for reason, n in sorted(policy.withheld.items())]
    yield counter(
        "worker_withheld_samples", "Hard samples that were not uploaded: over the budget, or too slow.", withheld
    )
    yield from _of_budget(policy.budget, ledger)
    bounds = policy.thresholds.state if policy.thresholds else None
    pair: Samples = [({"bound": "low"}, bounds.low), ({"bound": "high"}, bounds.high)] if bounds else []
    yield gauge("worker_upload_threshold_ratio", "Mean of each adapted threshold on the probability of a class.", pair)
    found = agreement_of(ledger.info())
    interval = [({"bound": name}, getattr(found, name)) for name in ("value", "low", "high")] if found else []
    text = (
        "Share of answers that are the next tier's, estimated from audits (value), with its 95 % interval (low, high)."
    )
    yield gauge("worker_agreement_ratio", text, interval)
    drift = policy.drift
    state: Samples = [({}, float(drift.drifting))] if drift else []
    yield gauge("worker_drift_state", "1 if samples differ from those of the calibration, else 0.", state)
    changes = [({"of": name}, value) for name, value in drift.metrics().items()] if drift else []
    text = "Change since calibration: of hardness and classes (stability index), of agreement (share lost)."
    yield gauge("worker_drift_index", text, changes)


def _of_budget(budget: Budget | None, ledger: Ledger) -> Iterator[Metric]:
    answered = ledger[Count.ANSWERED]
    error = ledger[Count.UPLOADED] / answered - budget.target if budget and answered else 0.0
    for name, text, value in (
        (
            "target_ratio",
            "Target share of uploaded samples, of a worker with a budget.",
            budget.target if budget else None,
        ),
        ("error_ratio", "Share of uploaded samples so far, minus the target.", error if budget else None),
        (
            "cut_hardness",
            "Cut of a worker with a budget; infinite while no sample may be uploaded.",
            budget.cut if budget else None,
        ),
    ):
        yield gauge(f"worker_upload_{name}", text, [] if value is None else value)
