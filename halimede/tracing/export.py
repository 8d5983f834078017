"""Exports the traces of finished frames to a collector of OpenTelemetry; frames never wait for it.

The event loop only appends to a queue (``Pump``). A thread converts records to spans and sends them (``Sink``). Records
are dropped and counted if the queue is full or sending fails. Export is off unless OpenTelemetry's variables enable it:
``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``, ``none``) or an OTLP endpoint. Its SDK reads all other variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import structlog

from halimede.errors import describe_exception, shorten_middle
from halimede.tracing.context import TraceContext
from halimede.tracing.record import Batch, Exporter, FrameRecord

log = structlog.get_logger()

#: most records that wait, and most that are exported at once: few, because the event loop waits for the interpreter's
#: lock while the thread converts them
MAX_QUEUED, MAX_EXPORTED = 2048, 32
#: seconds between two checks of the queue, and between two warnings
CHECK_PERIOD_S, WARNING_PERIOD_S = 1.0, 60.0
#: seconds at the end: to export what is queued, and to cancel a running export
CLOSE_TIMEOUT_S, CANCEL_TIMEOUT_S = 2.0, 0.5
#: values of OTEL_TRACES_EXPORTER that enable the export
EXPORTERS = frozenset({"otlp", "console"})
#: variables that enable ``otlp`` if OTEL_TRACES_EXPORTER is not set
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Sink(Protocol):
    """Sends records to a collector as spans. ``export`` and ``close`` may block: they run in a thread."""

    def must_sample(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Whether to export a trace. ``parent``: the context that came with the frame, None if none came."""

    def export(self, items: Sequence[FrameRecord | Batch]) -> bool:
        """Send records, and return whether the collector accepted them. May raise any exception."""

    def close(self) -> None:
        """Stop sending, and cancel a running export."""


def exporter_kind(environ: Mapping[str, str]) -> str:
    """Return the exporter that the environment selects: ``otlp`` or ``console``; empty for none."""
    choice = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if choice == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    if not choice:
        return "otlp" if any(environ.get(name) for name in ENDPOINT_VARIABLES) else ""
    if choice not in EXPORTERS:
        log.warning("no traces: OTEL_TRACES_EXPORTER is not one of otlp, console and none", value=choice[:64])
        return ""
    return choice


@contextlib.asynccontextmanager
async def open_exporter(
    role: str, names: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Exporter | None]:
    """Yield the exporter of this process; None if the environment enables none or the SDK cannot be used.

    After the block, records that are still queued are sent for up to CLOSE_TIMEOUT_S.

    Args:
        role: ``camera``, ``edge`` or ``cloud``.
        names: what identifies the process in its spans: namespace, service, worker, node.
        environ: environment variables.

    """
    kind = exporter_kind(environ)
    sink = await asyncio.to_thread(_open_sink, kind, role, names) if kind else None
    if sink is None:
        yield None
        return
    pump = Pump(sink)
    pump.start()
    try:
        yield pump
    finally:
        await asyncio.to_thread(pump.close)


def _open_sink(kind: str, role: str, names: Mapping[str, str]) -> Sink | None:
    """Return the sink of OpenTelemetry's SDK; None, with a warning in the log, if it cannot be used. Blocks."""
    try:
        from halimede.tracing.otel import OtelSink  # noqa: PLC0415 - an extra: only who wants it needs it

        return OtelSink(kind, role, names)
    except ImportError as error:
        log.warning("no traces: install halimede with its extra otel", missing=error.name)
    except Exception as error:  # noqa: BLE001 (wrong settings cost only traces, not the worker)
        log.warning("no traces: OpenTelemetry refuses its settings (OTEL_...)", error=shorten_middle(str(error)))
    return None


class Pump:
    """An ``Exporter`` (record) with a bounded queue, and the thread that sends its records to a sink.

    Attributes:
        dropped: records that found a full queue.
        lost: records that the collector did not accept.

    """

    def __init__(self, sink: Sink) -> None:
        self.dropped = self.lost = 0
        self._sink = sink
        self._queue: deque[FrameRecord | Batch] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._failing = False
        self._warned_at = -WARNING_PERIOD_S
        # a thread that hangs in a collector must not keep the process alive
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def must_sample(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Whether the sink exports a trace. ``parent``: the context that came with the frame, None if none came."""
        return self._sink.must_sample(trace_id, parent)

    def export(self, record: FrameRecord | Batch) -> None:
        """Queue a frame or a model call; drop it if the queue is full."""
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        self._queue.append(record)
        if len(self._queue) == MAX_EXPORTED:
            self._wake.set()

    def close(self) -> None:
        """Send queued records, and end the thread. Blocks for up to CLOSE_TIMEOUT_S + CANCEL_TIMEOUT_S."""
        self._closing = True
        self._wake.set()
        self._thread.join(0.0 if self._failing else CLOSE_TIMEOUT_S)
        self._sink.close()
        self._thread.join(CANCEL_TIMEOUT_S)
        lost = self.lost + len(self._queue)
        if self.dropped or lost:
            log.warning("traces lost", dropped=self.dropped, lost=lost)

    def _run(self) -> None:
        """Send queued records until ``close``; the thread runs this."""
        while not self._closing:
            self._wake.wait(CHECK_PERIOD_S)
            self._wake.clear()
            while self._queue:
                self._export([self._queue.popleft() for _ in range(min(MAX_EXPORTED, len(self._queue)))])
                if self._closing and self._failing:
                    return

    def _export(self, items: Sequence[FrameRecord | Batch]) -> None:
        """Send records; count them as lost if the collector does not accept them, and log that at intervals."""
        try:
            accepted, error = self._sink.export(items), "the collector did not take them"
        except Exception as failure:  # noqa: BLE001 (an unexpected error here must cost only traces, not the thread)
            accepted, error = False, shorten_middle(describe_exception(failure))
        self._failing = not accepted
        if accepted:
            return
        self.lost += len(items)
        now = time.monotonic()
        if now - self._warned_at >= WARNING_PERIOD_S:
            self._warned_at = now
            log.warning("traces not exported", error=error, lost=self.lost, dropped=self.dropped)
