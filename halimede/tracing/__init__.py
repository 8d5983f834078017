"""What became of one frame, and how long frames take: contexts that travel, steps that are remembered, OpenTelemetry.

Nothing here is in a frame's way: a record costs some microseconds, an exporter that cannot keep up drops and counts.
"""

from halimede.tracing.context import TraceContext, read, trace_of, write
from halimede.tracing.latency import CloudTimes, Distribution, EdgeTimes
from halimede.tracing.record import Batch, Exporter, FrameRecord, TraceBuffer, TraceServer, new_span, origin, spans

__all__ = [
    "Batch",
    "CloudTimes",
    "Distribution",
    "EdgeTimes",
    "Exporter",
    "FrameRecord",
    "TraceBuffer",
    "TraceContext",
    "TraceServer",
    "new_span",
    "origin",
    "read",
    "spans",
    "trace_of",
    "write",
]
