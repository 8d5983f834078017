"""Sums of the counts of several workers, nodes or lives of a worker; used by LC and GM alike."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from halimede.messages import TaskInfo
from halimede.stats import histogram

COUNTS = [f.name for f in msgspec.structs.fields(TaskInfo) if type(f.default) is int]


def add_up(infos: Collection[TaskInfo]) -> TaskInfo:
    """Add up the counts of several workers (at least one), from the earliest start to the latest report.

    The upload ratio is weighted with the number of samples.
    """
    if len(infos) == 1:
        (only,) = infos
        total = {name: getattr(only, name) for name in COUNTS}  # most nodes have only one edge worker
    else:
        total = {name: sum(getattr(info, name) for info in infos) for name in COUNTS}
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
