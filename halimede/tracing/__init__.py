"""What became of one frame, and how long frames take: contexts that travel, steps that are remembered, OpenTelemetry.

Nothing here is in a frame's way: a record costs some microseconds, an exporter that cannot keep up drops and counts.
"""

from halimede.tracing.context import TraceContext, read, write
from halimede.tracing.latency import CloudTimes, EdgeTimes
from halimede.tracing.record import Batch, FrameRecord, TraceBuffer, TraceServer, origin, spans

__all__ = [
    "Batch",
    "CloudTimes",
    "EdgeTimes",
    "FrameRecord",
    "TraceBuffer",
    "TraceContext",
    "TraceServer",
    "origin",
    "read",
    "spans",
    "write",
]
