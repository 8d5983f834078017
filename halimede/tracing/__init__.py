"""Traces and latencies of frames: their propagation between processes, their recorded steps, their export.

Tracing does not delay frames: a record costs some microseconds, and a slow exporter drops traces and counts them.
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
