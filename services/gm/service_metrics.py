"""A service's counts and latencies, added up over its edge workers: a sample is counted where it was accepted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from halimede.messages import Metric, TaskInfo
from halimede.messages.counters import Count, ExportedBy
from halimede.stats import histogram
from halimede.stats.agreement import Estimate, agreement_of
from halimede.stats.totals import add_up

#: shown behind a counter: what is derived from it, or goes down again
SHOWN_BEHIND = {Count.ANSWERED: "edge_inference_number", Count.MINING_ERRORS: "queued"}


def _shown() -> Iterator[str]:
    """Return the fields of TaskInfo that a service's status shows, in this order."""
    for count in Count:
        if ExportedBy.SERVICE in count.exported_by:
            yield count.field
        if count in SHOWN_BEHIND:
            yield SHOWN_BEHIND[count]
    yield "drifting"


#: key in the status, field of TaskInfo
_KEYS = {field.name: field.encode_name for field in msgspec.structs.fields(TaskInfo)}
COUNTS = {_KEYS[name]: name for name in _shown()}
QUANTILES = {"P50Ms": 0.5, "P99Ms": 0.99}


def joint_accuracy(infos: Iterable[TaskInfo]) -> Estimate | None:
    """Estimate how often a service's answers are the cloud's, from its edge workers' audits; None without any."""
    found = list(infos)
    # without an audit there is nothing to add up, and mostly there is none
    return agreement_of(add_up(found)) if any(info.audited for info in found) else None


def metrics(
    infos: Iterable[TaskInfo], work: Iterable[TaskInfo] = (), agreement: Estimate | None = None
) -> list[Metric]:
    """Add up what edge workers have counted, and how long cloud workers (``work``, of any node) took.

    ``uploadCloudRatio`` is the share of all samples that went up to the cloud: the workers' own ratios, each weighted
    with its samples. ``jointAccuracy`` (``agreement``) and the ends of its 95 % interval appear with the first audit.
    Latencies are in milliseconds and appear with the first sample.
    """
    counted, worked = list(infos), list(work)
    found = [Metric(key=key, value=str(sum(getattr(info, name) for info in counted))) for key, name in COUNTS.items()]
    samples = sum(info.inference_number for info in counted)
    uploaded = sum(info.upload_cloud_ratio * info.inference_number for info in counted)
    found.append(Metric(key="uploadCloudRatio", value=_text(uploaded / samples if samples else 0.0)))
    if agreement:
        ends = {
            "jointAccuracy": agreement.value,
            "jointAccuracyLow": agreement.low,
            "jointAccuracyHigh": agreement.high,
        }
        found += [Metric(key=key, value=_text(value)) for key, value in ends.items()]
    for prefix, merged in (
        ("edgeLatency", histogram.merge(info.edge_latency for info in counted)),
        ("offloadLatency", histogram.merge(info.offload_latency for info in counted)),
        ("queueLatency", histogram.merge(info.queue_latency for info in worked)),
        ("computeLatency", histogram.merge(info.compute_latency for info in worked)),
    ):
        for suffix, share in QUANTILES.items():
            value = histogram.quantile(merged, share)
            if value is not None:
                found.append(Metric(key=prefix + suffix, value=_text(value)))
    return found


def _text(value: float) -> str:
    """Four digits behind the point, without trailing zeros."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
