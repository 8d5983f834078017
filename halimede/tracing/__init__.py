"""Traces and latencies of frames: propagated contexts, recorded steps, OpenTelemetry.

Tracing does not delay frames: a record costs some microseconds, and a slow exporter drops and counts.
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
