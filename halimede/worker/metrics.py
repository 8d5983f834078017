"""A worker's metrics for Prometheus, its health, and the counts in its reports (``WorkerMetrics``).

They are read from the worker's parts on each request. What comes from the ledger continues after a restart; all other
numbers begin with this process.
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

#: states of a circuit breaker as values of its metric
CIRCUIT = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
#: description of the metric of steps at the edge
EDGE_TIMES = "Time of a step of an answer at the edge: decode, wait, model (a call), offload."
#: description of the metric of steps in the cloud
CLOUD_TIMES = "Time of a step of an answer in the cloud: queue, decode, compute (a call), total."
#: description of the metric of agreement
AGREEMENT = (
    "Share of answers that are the next tier's, estimated from audits (value), with its 95 % interval (low, high)."
)


@dataclass(slots=True)
class WorkerMetrics:
    """The metrics of one worker. Its parts are set once they exist; None before, and for parts that it does not have.

    Attributes:
        settings: those of the worker.
        connections: its connections to the broker.
        ready: it gets samples.
        ledger: its counts.
        slot: its models.
        edge: its pipeline, at the edge.
        cloud: its pipeline, if it answers requests.
        offload: its requests to the next tier.
        policy: decides which samples go to the next tier.
        overload: detects that the next tier takes fewer samples than are hard.
        collectors: return the metrics of further parts.

    """

    settings: WorkerSettings
    connections: list[Bus] = field(default_factory=list)
    ready: bool = False
    ledger: Ledger | None = None
    slot: ModelSlot | None = None
    edge: EdgeWorker | None = None
    cloud: RequestWorker | None = None
    offload: OffloadClient | None = None
    policy: UploadPolicy | None = None
    overload: OverloadDetector = field(default_factory=OverloadDetector)
    collectors: list[Callable[[], Iterable[Metric]]] = field(default_factory=list)

    def health(self) -> Health:
        """Return the worker's checks, for its health address."""
        health = Health()
        health.live("model", self._stuck)
        health.ready("broker", self._lost_connection)
        health.ready("granted", self.refusal)
        health.ready("work", lambda: "" if self.ready else "starting")
        return health

    def refusal(self) -> str:
        """Return for users what the broker refuses to the worker; empty if nothing."""
        return refusal_text(refused_names(self.connections))

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from buses(self.connections)
        if self.ledger:
            self.ledger.catch_up()
            exporter = ExportedBy.EDGE_WORKER if self.settings.role == "edge" else ExportedBy.CLOUD_WORKER
            yield from ledger_counters(self.ledger, exporter)
        if self.slot:
            yield from self._model_metrics(self.slot)
        if self.edge:
            yield from self._edge_metrics(self.edge)
        if self.cloud:
            yield from self._cloud_metrics(self.cloud)
        if self.offload:
            yield from self._offload_metrics(self.offload)
        if self.policy and self.ledger:
            yield from upload_metrics(self.policy, self.ledger)
        for collect in self.collectors:
            yield from collect()

    @staticmethod
    def _model_metrics(slot: ModelSlot) -> Iterator[Metric]:
        """Yield the metrics of the models in use."""
        yield gauge("worker_model_call_seconds", "Age of the current model call.", slot.busy_s)
        by_version = {loaded.version: loaded for loaded in reversed(slot.loaded)}
        samples = [({"version": v, "outcome": "answered"}, loaded.answered) for v, loaded in by_version.items()]
        samples += [({"version": v, "outcome": "failed"}, loaded.failed) for v, loaded in by_version.items()]
        yield counter("worker_model_samples", "Samples by the version of the model that answered them.", samples)
        calls = [({"version": v}, loaded.calls.histogram, loaded.calls.total) for v, loaded in by_version.items()]
        yield times("worker_model_seconds", "Time of a model's calls, by its version.", calls)

    @staticmethod
    def _edge_metrics(worker: EdgeWorker) -> Iterator[Metric]:
        """Yield the metrics of an edge worker's pipeline."""
        responder = worker.responder
        reasons = [({"reason": str(reason)}, n) for reason, n in sorted(responder.degraded.items())]
        yield counter("worker_degraded_answers", "Hard samples that the edge answered itself, by reason.", reasons)
        yield gauge("worker_queued_frames", "Frames that are accepted and not answered yet.", worker.frames.inside)
        yield gauge("worker_outbox_results", "Results that wait for the broker.", responder.outbox.waiting)
        yield from _times("worker_edge", EDGE_TIMES, worker.times)

    def _offload_metrics(self, offload: OffloadClient) -> Iterator[Metric]:
        """Yield the metrics of the requests to the next tier."""
        if self.cloud and self.ledger:
            yield from ledger_counters(self.ledger, ExportedBy.TIER)
        state = CIRCUIT[offload.circuit.state]
        yield gauge("worker_circuit_state", "Circuit breaker to the next tier: 0 closed, 1 half open, 2 open.", state)
        credits_ = [({"cloud_worker": name}, n) for name, n in sorted(offload.credits_left().items())]
        yield gauge("worker_cloud_credits", "Credits of each worker of the next tier, as last advertised.", credits_)

    @staticmethod
    def _cloud_metrics(worker: RequestWorker) -> Iterator[Metric]:
        """Yield the metrics of the pipeline of a worker that answers requests."""
        stats = worker.intake.stats
        refused: Mapping[str, int] = {"overloaded": stats.refused, "expired": stats.expired, "failed": stats.failed}
        samples = [({"reason": reason}, n) for reason, n in refused.items()]
        yield counter("worker_unserved_samples", "Requests without a prediction, by reason.", samples)
        yield gauge("worker_queued_frames", "Frames that are accepted and not answered yet.", worker.pipeline.inside)
        yield from _times("worker_cloud", CLOUD_TIMES, worker.intake.times)

    def info(self, ledger: Ledger) -> TaskInfo:
        """Return the counts in the ledger for the worker's report, with what holds for the moment."""
        info = ledger.info()
        if self.edge:
            info.queued = self.edge.frames.inside
            self._read_overload(self.edge.escalation, info)
        if self.policy and self.policy.drift:
            info.drifting = int(self.policy.drift.drifting)
        if self.cloud:
            self._read_overload(self.cloud.intake.escalation, info)
            step_times = self.cloud.intake.times
            info.queued, info.queue_latency = self.cloud.pipeline.inside, step_times.queue.histogram
            info.compute_latency = step_times.compute.histogram
        return info

    def _read_overload(self, escalation: Escalation | None, info: TaskInfo) -> None:
        """Bring ``overload`` up to date, and write it into the report while the next tier is overloaded.

        The report then has the rates of hard samples, and of those that the next tier answered, in samples a second.
        """
        if escalation is None:
            return
        self.overload.read(escalation.totals(), time.monotonic())
        if self.overload.is_overloaded:
            info.overloaded = 1
            info.hard_per_s = round(self.overload.hard_per_s, 2)
            info.taken_per_s = round(self.overload.answered_per_s, 2)

    def _stuck(self) -> str:
        """Return that a model call takes too long; empty otherwise."""
        limit = self.settings.model_timeout_s
        # loading a model may take longer than any call: it does not count as stuck
        busy = self.slot.busy_s if self.slot and (self.edge or self.cloud) else 0.0
        return f"its call has taken {busy:.0f} s, more than {limit:g}" if busy > limit else ""

    def _lost_connection(self) -> str:
        """Return which connection to the broker is lost; empty if all are there."""
        return next((f"{bus.client_id} is not connected" for bus in self.connections if not bus.connected), "")


def _times(prefix: str, text: str, step_times: EdgeTimes | CloudTimes) -> Iterator[Metric]:
    """Yield the metrics of a pipeline's times, which ``text`` describes, and batches; ``prefix`` begins their names."""
    steps = {f.name: getattr(step_times, f.name) for f in fields(step_times)}
    batch = steps.pop("batch")
    yield times(f"{prefix}_seconds", text, [({"step": name}, d.histogram, d.total) for name, d in steps.items()])
    yield sizes(f"{prefix}_batch_samples", "Samples in one call of the model.", [({}, batch.histogram, batch.total)])


def encoder_metrics(encoder: UploadEncoder) -> Iterator[Metric]:
    """Yield the metrics of encoding for upload; counts begin with this process."""
    ready = [({"encoding": e, "changed": changed}, n) for (e, changed), n in sorted(encoder.ready.items())]
    text = "Samples ready for upload, by encoding and by change: none, encoding or size."
    yield counter("worker_upload_ready_samples", text, ready)
    refused = [({"reason": reason}, n) for reason, n in sorted(encoder.refused.items())]
    text = "Samples that cannot be encoded as the service requires for uploads, by reason."
    yield counter("worker_upload_refused_samples", text, refused)
    written = [({"when": "before"}, encoder.before), ({"when": "after"}, encoder.after)]
    text = "Bytes of the samples that were encoded again, before and after."
    yield counter("worker_upload_written_bytes", text, written)
    text, encode_times = "Time to encode one sample again, decoding included.", encoder.times
    yield times("worker_upload_writing_seconds", text, [({}, encode_times.histogram, encode_times.total)])


def upload_metrics(policy: UploadPolicy, ledger: Ledger) -> Iterator[Metric]:
    """Yield the metrics of the upload policy; counts by reason begin with this process, all others with the ledger."""
    yield from ledger_counters(ledger, ExportedBy.UPLOAD_POLICY)
    withheld = [({"reason": reason}, n) for reason, n in sorted(policy.withheld.items())]
    text = "Hard samples that were not uploaded: over the budget, or too slow."
    yield counter("worker_withheld_samples", text, withheld)
    yield from _budget_metrics(policy.budget, ledger)
    bounds = policy.thresholds.state if policy.thresholds else None
    pair: Samples = [({"bound": "low"}, bounds.low), ({"bound": "high"}, bounds.high)] if bounds else []
    yield gauge("worker_upload_threshold_ratio", "Mean of each adapted threshold on the probability of a class.", pair)
    agreement = agreement_of(ledger.info())
    interval = [({"bound": name}, getattr(agreement, name)) for name in ("value", "low", "high")] if agreement else []
    yield gauge("worker_agreement_ratio", AGREEMENT, interval)
    drift = policy.drift
    state: Samples = [({}, float(drift.drifting))] if drift else []
    yield gauge("worker_drift_state", "1 if samples differ from those of the calibration, else 0.", state)
    changes = [({"of": name}, value) for name, value in drift.metrics().items()] if drift else []
    text = "Change since calibration: of hardness and classes (stability index), of agreement (share lost)."
    yield gauge("worker_drift_index", text, changes)


def _budget_metrics(budget: Budget | None, ledger: Ledger) -> Iterator[Metric]:
    """Yield the metrics of the budget of uploads, without values if there is none."""
    values: dict[str, float] = {}
    if budget:
        answered = ledger[Count.ANSWERED]
        error = ledger[Count.UPLOADED] / answered - budget.target if answered else 0.0
        values = {"target": budget.target, "error": error} | ({} if budget.cut is None else {"cut": budget.cut})
    text = "Target share of uploaded samples, of a worker with a budget."
    yield gauge("worker_upload_target_ratio", text, values.get("target", []))
    text = "Share of uploaded samples so far, minus the target."
    yield gauge("worker_upload_error_ratio", text, values.get("error", []))
    text = "Cut of a worker with a budget; infinite while no sample may be uploaded."
    yield gauge("worker_upload_cut_hardness", text, values.get("cut", []))
