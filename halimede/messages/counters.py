"""The counters of workers, each declared once as a member of ``Count``.

From ``Count`` come a worker's ledger (the file in which its counters survive a restart), the metrics of workers and of
GM, the status of a service, and the sums over several workers. ``TaskInfo`` is the message with the reported counters.
"""

from __future__ import annotations

from enum import Flag, IntEnum, auto, unique
from typing import Annotated, Self

from msgspec import Meta

from halimede.messages.base import Message, NonNegative, Short


class ExportedBy(Flag):
    """Who exports a counter as a metric: workers of a role or a tier, the upload policy, or GM for each service."""

    EDGE_WORKER = auto()
    CLOUD_WORKER = auto()
    UPLOAD_POLICY = auto()
    TIER = auto()
    SERVICE = auto()


# the members, for short declarations below
EDGE_WORKER, CLOUD_WORKER, UPLOAD_POLICY, TIER, SERVICE = ExportedBy


@unique
class Count(IntEnum):
    """A counter of a worker. Its value is its slot in the ledger's file, which never changes.

    A new counter takes the next free slot. The order is that of a service's status.

    Attributes:
        field: the field of ``TaskInfo`` that reports it; empty: it is not reported.
        text: what is counted, for people.
        metric: the metric's name without ``halimede_worker_`` or ``halimede_service_`` and ``_total``.
        exported_by: who exports the metric; a counter with ``SERVICE`` is in the service's status as well.

    """

    field: str
    text: str
    metric: str
    exported_by: ExportedBy

    def __new__(cls, slot: int, field: str, text: str, metric: str, exported_by: ExportedBy) -> Self:
        """Return the member of a slot: enum calls this with each tuple below."""
        self = int.__new__(cls, slot)
        self._value_ = slot
        self.field, self.text, self.metric, self.exported_by = field, text, metric, exported_by
        return self

    ACCEPTED = 0, "", "Frames accepted: each gets exactly one answer.", "accepted_frames", EDGE_WORKER
    ANSWERED = 1, "inference_number", "Samples answered.", "answers", EDGE_WORKER | SERVICE
    CLOUD = 2, "cloud_inference_number", "Samples that the cloud answered.", "cloud_answers", EDGE_WORKER | SERVICE
    HARD = 3, "hard_example_number", "Samples that the mining found hard.", "hard_samples", EDGE_WORKER | SERVICE
    UPLOADED = 5, "", "Samples that went up to the cloud.", "uploads", EDGE_WORKER
    DEGRADED = (
        4,
        "degraded",
        "Hard samples that the edge had to answer: no cloud worker, no answer in time, circuit open.",
        "degraded_answers",
        SERVICE,  # a worker exports them by reason
    )
    SKIPPED = (
        6,
        "skipped",
        "Frames passed over for newer ones, above the source's frames a second, or too old.",
        "skipped_frames",
        EDGE_WORKER | SERVICE,
    )
    LOST = (
        7,
        "lost",
        "Frames accepted by a worker that died before it could answer.",
        "lost_frames",
        EDGE_WORKER | SERVICE,
    )
    REJECTED = (
        8,
        "rejected",
        "Frames refused before they were accepted: malformed, oversized, of the wrong shape.",
        "rejected_frames",
        EDGE_WORKER | CLOUD_WORKER | SERVICE,
    )
    LATE = (
        9,
        "late",
        "Answers of the cloud that came after their deadline and were not used.",
        "late_replies",
        EDGE_WORKER | SERVICE,
    )
    UNASKED = (
        14,
        "unasked",
        "Answers of the cloud that nobody had asked for, or of a worker that was not asked; not used.",
        "unasked_replies",
        EDGE_WORKER | SERVICE,
    )
    DUPLICATE = 10, "", "Frames delivered again and dropped.", "duplicate_frames", EDGE_WORKER
    MINING_ERRORS = (
        11,
        "mining_errors",
        "Errors of the mining; the sample then counts as hard.",
        "mining_errors",
        EDGE_WORKER | SERVICE,
    )
    SERVED = 12, "served", "Samples that a cloud worker has answered.", "served_samples", CLOUD_WORKER
    BATCHES = 13, "batches", "Calls of the model that a cloud worker made for them.", "batches", CLOUD_WORKER
    UPLOADED_BYTES = (
        15,
        "uploaded_bytes",
        "Bytes of the samples that went to the next tier.",
        "uploaded_bytes",
        UPLOAD_POLICY | SERVICE,
    )
    WITHHELD = (
        16,
        "withheld",
        "Hard samples that were not sent: over the upload budget, or too late to be back in time.",
        "withheld_samples",
        SERVICE,  # a worker exports them by reason
    )
    AUDITED = (
        17,
        "audited",
        "Samples of the edge's own answers that the next tier was asked about all the same.",
        "audited_samples",
        UPLOAD_POLICY | SERVICE,
    )
    AUDIT_AGREED = (
        18,
        "audit_agreed",
        "Audited samples where both gave the same answer.",
        "agreed_samples",
        UPLOAD_POLICY | SERVICE,
    )
    OVERRULED = (
        19,
        "overruled",
        "Samples where the mixture of both answers says otherwise than the next tier.",
        "overruled_answers",
        UPLOAD_POLICY | SERVICE,
    )
    MODEL_ERRORS = (
        21,
        "model_errors",
        "Samples that the edge's model failed on; they count as hard.",
        "model_errors",
        EDGE_WORKER | SERVICE,
    )
    UNRECEIVED = (
        22,
        "unreceived",
        "Results that no client received: the broker had no subscriber for them.",
        "unreceived_results",
        EDGE_WORKER | SERVICE,
    )
    LABELLED = (
        23,
        "labelled",
        "Stored samples with a label: the next tier is sure of its answer.",
        "labelled_samples",
        EDGE_WORKER | SERVICE,
    )
    LABELLED_EASY = (
        24,
        "labelled_easy",
        "Labelled samples that the mining found easy: audited ones.",
        "labelled_easy_samples",
        EDGE_WORKER | SERVICE,
    )
    CANARY_ANSWERED = 25, "canary_answered", "Samples that a canary answered.", "canary_answers", EDGE_WORKER | SERVICE
    CANARY_HARD = (
        26,
        "canary_hard",
        "Samples of a canary that the mining found hard.",
        "canary_hard_samples",
        EDGE_WORKER | SERVICE,
    )
    CANARY_AUDITED = (
        27,
        "canary_audited",
        "Audited samples that a canary answered.",
        "canary_audited_samples",
        UPLOAD_POLICY | SERVICE,
    )
    CANARY_AGREED = (
        28,
        "canary_agreed",
        "Audited samples of a canary where both gave the same answer.",
        "canary_agreed_samples",
        UPLOAD_POLICY | SERVICE,
    )
    DEFERRED = 20, "deferred", "Samples that a tier in between passed on to the next one.", "deferred_samples", TIER

    @property
    def meta(self) -> Meta:
        """The annotation with the description of the counter's field in ``TaskInfo``."""
        return Meta(description=self.text)


#: the index of a histogram's bucket
Bucket = Annotated[str, Meta(pattern=r"^-?[0-9]{1,3}$(?!\n)")]


class Histogram(Message, kw_only=True):
    """A distribution of latencies. Histograms of several workers are added bucket by bucket.

    ``buckets[i]`` counts values v with 1.05**(i-1) < v <= 1.05**i milliseconds, so every quantile read from it is
    within 5 %. The lowest index has all smaller values as well.
    """

    # DDSketch, Masson et al. 2019, arXiv 1908.10693

    buckets: Annotated[dict[Bucket, NonNegative], Meta(max_length=512)] = {}


class TaskInfo(Message, kw_only=True, omit_defaults=False):
    """Counts and latencies of a worker, a node or a service since ``start_time``: each field has its description."""

    inference_number: Annotated[NonNegative, Count.ANSWERED.meta] = 0
    hard_example_number: Annotated[NonNegative, Count.HARD.meta] = 0
    upload_cloud_ratio: Annotated[float, Meta(ge=0, le=1, description="Share of samples that went to the cloud.")] = 0.0
    start_time: Annotated[Short, Meta(description="When the first worker started.")] = ""
    current_time: Annotated[Short, Meta(description="When this was counted.")] = ""
    update_time: Annotated[Short, Meta(description="The same under its other name.")] = ""
    edge_inference_number: Annotated[NonNegative, Meta(description="Samples that the edge answered.")] = 0
    cloud_inference_number: Annotated[NonNegative, Count.CLOUD.meta] = 0
    degraded: Annotated[NonNegative, Count.DEGRADED.meta] = 0
    skipped: Annotated[NonNegative, Count.SKIPPED.meta] = 0
    lost: Annotated[NonNegative, Count.LOST.meta] = 0
    rejected: Annotated[NonNegative, Count.REJECTED.meta] = 0
    late: Annotated[NonNegative, Count.LATE.meta] = 0
    unasked: Annotated[NonNegative, Count.UNASKED.meta] = 0
    mining_errors: Annotated[NonNegative, Count.MINING_ERRORS.meta] = 0
    model_errors: Annotated[NonNegative, Count.MODEL_ERRORS.meta] = 0
    served: Annotated[NonNegative, Count.SERVED.meta] = 0
    batches: Annotated[NonNegative, Count.BATCHES.meta] = 0
    uploaded_bytes: Annotated[NonNegative, Count.UPLOADED_BYTES.meta] = 0
    withheld: Annotated[NonNegative, Count.WITHHELD.meta] = 0
    audited: Annotated[NonNegative, Count.AUDITED.meta] = 0
    audit_agreed: Annotated[NonNegative, Count.AUDIT_AGREED.meta] = 0
    overruled: Annotated[NonNegative, Count.OVERRULED.meta] = 0
    unreceived: Annotated[NonNegative, Count.UNRECEIVED.meta] = 0
    deferred: Annotated[NonNegative, Count.DEFERRED.meta] = 0
    labelled: Annotated[NonNegative, Count.LABELLED.meta] = 0
    labelled_easy: Annotated[NonNegative, Count.LABELLED_EASY.meta] = 0
    canary_answered: Annotated[NonNegative, Count.CANARY_ANSWERED.meta] = 0
    canary_hard: Annotated[NonNegative, Count.CANARY_HARD.meta] = 0
    canary_audited: Annotated[NonNegative, Count.CANARY_AUDITED.meta] = 0
    canary_agreed: Annotated[NonNegative, Count.CANARY_AGREED.meta] = 0
    drifting: Annotated[
        NonNegative, Meta(description="Workers whose samples are no longer like those that they were calibrated for.")
    ] = 0
    overloaded: Annotated[
        NonNegative, Meta(description="Workers whose next tier takes fewer samples than are hard.")
    ] = 0
    hard_per_s: Annotated[float, Meta(ge=0, description="Hard samples per second of those workers.")] = 0.0
    taken_per_s: Annotated[float, Meta(ge=0, description="Samples per second that the next tier answers them.")] = 0.0
    edge_latency: Annotated[Histogram | None, Meta(description="Milliseconds until the edge's answer.")] = None
    offload_latency: Annotated[Histogram | None, Meta(description="Milliseconds until the cloud's answer.")] = None
    queued: Annotated[NonNegative, Meta(description="Frames inside a worker now.")] = 0
    queue_latency: Annotated[
        Histogram | None, Meta(description="Milliseconds that samples waited for a cloud worker's model.")
    ] = None
    compute_latency: Annotated[
        Histogram | None, Meta(description="Milliseconds that the calls of a cloud worker's model took.")
    ] = None
