"""Sums of the counts of several workers, nodes or lives of a worker; used by LC and GM alike."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from halimede.messages import Count, TaskInfo
from halimede.stats import histogram

#: fields of TaskInfo that are whole numbers
COUNTS = [f.name for f in msgspec.structs.fields(TaskInfo) if type(f.default) is int]
#: fields that never fall as long as the worker's ledger, the file of its counts, exists
GROWING = [count.field for count in Count if count.field]
#: fields in samples per second
RATES = ("taken_per_s", "hard_per_s")
#: fields that ``add_up`` adds
SUMMED = (*COUNTS, *RATES)
#: fields that hold only for the moment, with the value for a worker that has ended
MOMENTARY: dict[str, float] = {**dict.fromkeys(("queued", "drifting", "overloaded"), 0), **dict.fromkeys(RATES, 0.0)}


def add_up(infos: Collection[TaskInfo]) -> TaskInfo:
    """Return the sum of the counts of one or more workers, from the earliest start to the latest report.

    The upload ratio is the mean, weighted with each worker's samples; histograms are merged.
    """
    if len(infos) == 1:
        (only,) = infos
        total = {name: getattr(only, name) for name in SUMMED}  # most nodes have only one edge worker
    else:
        total = {name: sum(getattr(info, name) for info in infos) for name in SUMMED}
    samples = total["inference_number"]
    uploaded = sum(info.upload_cloud_ratio * info.inference_number for info in infos)
    return TaskInfo(
        **total,
        upload_cloud_ratio=min(1.0, uploaded / samples) if samples else 0.0,
        start_time=min((info.start_time for info in infos if info.start_time), default=""),
        current_time=max(info.current_time for info in infos),
        update_time=max(info.update_time for info in infos),
        edge_latency=histogram.merge(info.edge_latency for info in infos),
        offload_latency=histogram.merge(info.offload_latency for info in infos),
        queue_latency=histogram.merge(info.queue_latency for info in infos),
        compute_latency=histogram.merge(info.compute_latency for info in infos),
    )


def vanished_counts(before: TaskInfo, now: TaskInfo) -> TaskInfo | None:
    """Return the part of a worker's earlier counts ``before`` that its counts ``now`` lack; None if they lack nothing.

    A worker whose ledger is gone counts from 0, with another start time: then all earlier counts have vanished. If an
    older copy of the ledger came back, as after a power cut, only the difference has vanished: then the result has
    counts and times, but no ratio and no histograms.
    """
    is_anew = bool(before.start_time and now.start_time) and before.start_time != now.start_time
    if not is_anew and all(getattr(before, name) <= getattr(now, name) for name in GROWING):
        return None
    if is_anew or not before.start_time:
        return msgspec.structs.replace(before, **MOMENTARY)
    vanished = {name: max(0, getattr(before, name) - getattr(now, name)) for name in COUNTS} | MOMENTARY
    times = {"start_time": before.start_time, "current_time": before.current_time, "update_time": before.update_time}
    return msgspec.structs.replace(TaskInfo(), **vanished, **times)
