"""Exports finished frames to a collector: off the hot path, bounded, and without effect if it is down.

The event loop only appends to a queue; a separate thread converts records to spans and sends them. Items are dropped
and counted if the queue is full or sending fails. The standard variables enable it, and it is off without them:
``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``, ``none``) or an OTLP endpoint. The SDK reads all other variables
itself.
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

#: most frames and model calls that wait; most that are sent at once: few, because the event loop waits meanwhile
QUEUE, CHUNK = 2048, 32
#: seconds between two checks of the queue, and between two warnings
EVERY_S, COMPLAIN_S = 1.0, 60.0
#: seconds at the end: to send the rest, and to cancel a running export
CLOSE_S, SETTLE_S = 2.0, 0.5
KINDS = frozenset({"otlp", "console"})
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Sink(Protocol):
    """Sends spans. ``export`` and ``close`` may block: they run in a thread."""

    def samples(self, trace: int, parent: TraceContext | None) -> bool:
        """Whether to export a trace."""

    def export(self, items: Sequence[FrameRecord | Batch]) -> bool:
        """Send items, and return whether the collector accepted them."""

    def close(self) -> None:
        """Stop sending, and cancel a running export."""


def exporter_kind(environ: Mapping[str, str]) -> str:
    """Return the exporter that the environment selects; empty for none."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    told = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if told == "none":
        return ""
    if not told:
        return "otlp" if any(environ.get(name) for name in ENDPOINTS) else ""
    if told not in KINDS:
        log.warning("no traces: OTEL_TRACES_EXPORTER is not one of otlp, console and none", value=told[:64])
        return ""
    return told


@contextlib.asynccontextmanager
async def exporting(
    role: str, names: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Exporter | None]:
    """Export within the block if the environment enables it and the SDK works. ``names``: see ``TraceServer``."""
    kind = exporter_kind(environ)
    sink = await asyncio.to_thread(_open, kind, role, names) if kind else None
    if sink is None:
        yield None
        return
    pump = Pump(sink)
    pump.start()
    try:
        yield pump
    finally:
        await asyncio.to_thread(pump.close)


def _open(kind: str, role: str, names: Mapping[str, str]) -> Sink | None:
    try:
        from halimede.tracing.otel import OtelSink  # noqa: PLC0415 - an extra: only who wants it needs it

        return OtelSink(kind, role, names)
    except ImportError as error:
        log.warning("no traces: install halimede with its extra otel", missing=error.name)
    except Exception as error:  # noqa: BLE001 (wrong settings cost only traces, not the worker)
        log.warning("no traces: OpenTelemetry refuses its settings (OTEL_...)", error=shorten_middle(str(error), 256))
    return None


class Pump:
    """A bounded queue and the thread that empties it.

    Attributes:
        dropped: items that found a full queue. lost: items that the collector did not accept.

    """

    def __init__(self, sink: Sink) -> None:
        self.dropped = self.lost = 0
        self._sink = sink
        self._queue: deque[FrameRecord | Batch] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._failing = False
        self._complained = -COMPLAIN_S
        # a thread that hangs in a collector must not keep the process alive
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def samples(self, trace: int, parent: TraceContext | None) -> bool:
        """Return the decision of the sampler."""
        return self._sink.samples(trace, parent)

    def finished(self, record: FrameRecord) -> None:
        """Queue a frame."""
        self._put(record)

    def batched(self, batch: Batch) -> None:
        """Queue a model call."""
        self._put(batch)

    def close(self) -> None:
        """Send queued items for a short time, and end. Blocks."""
        self._closing = True
        self._wake.set()
        self._thread.join(0.0 if self._failing else CLOSE_S)
        self._sink.close()
        self._thread.join(SETTLE_S)
        lost = self.lost + len(self._queue)
        if self.dropped or lost:
            log.warning("traces lost", dropped=self.dropped, lost=lost)

    def _put(self, item: FrameRecord | Batch) -> None:
        if len(self._queue) >= QUEUE:
            self.dropped += 1
            return
        self._queue.append(item)
        if len(self._queue) == CHUNK:
            self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(EVERY_S)
            self._wake.clear()
            while self._queue:
                self._export([self._queue.popleft() for _ in range(min(CHUNK, len(self._queue)))])
                if self._closing and self._failing:
                    return

    def _export(self, items: Sequence[FrameRecord | Batch]) -> None:
        try:
            taken, error = self._sink.export(items), "the collector did not take them"
        except Exception as failure:  # noqa: BLE001 (an unexpected error here must cost only traces, not the thread)
            taken, error = False, shorten_middle(describe_exception(failure), 256)
        self._failing = not taken
        if taken:
            return
        self.lost += len(items)
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            log.warning("traces not exported", error=error, lost=self.lost, dropped=self.dropped)
