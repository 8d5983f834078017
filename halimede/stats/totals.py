"""Sums of the counts of several workers, nodes or lives of a worker; used by LC and GM alike."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from halimede.messages import Count, TaskInfo
from halimede.stats import histogram

COUNTS = [f.name for f in msgspec.structs.fields(TaskInfo) if type(f.default) is int]
#: counts that never fall while the file lives in which a worker keeps them
GROWING = [count.field for count in Count if count.field]
RATES = ("taken_per_s", "hard_per_s")
#: what is added up
SUMMED = (*COUNTS, *RATES)
#: what only holds for the moment
MOMENTARY: dict[str, float] = {**dict.fromkeys(("queued", "drifting", "overloaded"), 0), **dict.fromkeys(RATES, 0.0)}


def add_up(infos: Collection[TaskInfo]) -> TaskInfo:
    """Add up the counts of several workers (at least one), from the earliest start to the latest report.

    The upload ratio is weighted with the number of samples.
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


def vanished(before: TaskInfo, now: TaskInfo) -> TaskInfo | None:
    """Return the part of a worker's earlier counts that its present ones do not contain; None: they contain all.

    A worker whose file of counts is gone counts from 0, with another start; then all earlier counts have vanished. If
    an older copy of the file came back, as after a power cut, only the difference has.
    """
    anew = bool(before.start_time and now.start_time) and before.start_time != now.start_time
    if not anew and all(getattr(before, name) <= getattr(now, name) for name in GROWING):
        return None
    if anew or not before.start_time:
        return msgspec.structs.replace(before, **MOMENTARY)
    less = {name: max(0, getattr(before, name) - getattr(now, name)) for name in COUNTS} | MOMENTARY
    times = {"start_time": before.start_time, "current_time": before.current_time, "update_time": before.update_time}
    return msgspec.structs.replace(TaskInfo(), **less, **times)
