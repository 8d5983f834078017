"""Exports finished frames to a collector: off the hot path, bounded, and without effect if it is down.

The event loop only appends to a queue; a thread of its own turns records into spans and sends them. What finds the
queue full, or cannot be sent, is dropped and counted. Switched by the standard variables, and off without them:
``OTEL_TRACES_EXPORTER`` (``otlp``, ``console``, ``none``) or an OTLP endpoint. Everything else the SDK reads itself.
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

from halimede.tracing.context import TraceContext
from halimede.tracing.record import Batch, Exporter, FrameRecord

log = structlog.get_logger()

#: frames and model calls that wait; how many leave at once: few, as the event loop waits while they are written
QUEUE, CHUNK = 2048, 32
#: seconds between two looks at the queue, and between two complaints
EVERY_S, COMPLAIN_S = 1.0, 60.0
#: seconds at the end: to send the rest, and to hear that what was under way is given up
CLOSE_S, SETTLE_S = 2.0, 0.5
KINDS = frozenset({"otlp", "console"})
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Sink(Protocol):
    """What sends. ``export`` and ``close`` may take their time: they run in a thread."""

    def samples(self, trace: int, parent: TraceContext | None) -> bool:
        """Whether a trace is to be exported."""

    def export(self, items: Sequence[FrameRecord | Batch]) -> bool:
        """Send, and return whether it was taken."""

    def close(self) -> None:
        """Send nothing more, and give up what is under way."""


def exporter_kind(environ: Mapping[str, str]) -> str:
    """Return which exporter the environment asks for; empty for none."""
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
    """Export within the block, if the environment wants that and it can be done. ``names``: see ``TraceServer``."""
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
    except Exception as error:  # noqa: BLE001 (whatever is wrong with its settings costs traces, not the worker)
        log.warning("no traces: OpenTelemetry refuses its settings (OTEL_...)", error=str(error)[:256])
    return None


class Pump:
    """A bounded queue and the thread that empties it.

    Attributes:
        dropped: items that found the queue full. lost: items that the collector did not take.

    """

    def __init__(self, sink: Sink) -> None:
        self.dropped = self.lost = 0
        self._sink = sink
        self._queue: deque[FrameRecord | Batch] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._failing = False
        self._complained = -COMPLAIN_S
        # a thread that hangs in a collector must not keep the process
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def samples(self, trace: int, parent: TraceContext | None) -> bool:
        """Ask the sampler."""
        return self._sink.samples(trace, parent)

    def finished(self, record: FrameRecord) -> None:
        """Queue a frame."""
        self._put(record)

    def batched(self, batch: Batch) -> None:
        """Queue a model call."""
        self._put(batch)

    def close(self) -> None:
        """Send what waits, for a short time, and end. Blocks."""
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
        except Exception as failure:  # noqa: BLE001 (a defect here must cost traces, not the thread)
            taken, error = False, f"{type(failure).__name__}: {failure}"[:256]
        self._failing = not taken
        if taken:
            return
        self.lost += len(items)
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            log.warning("traces not exported", error=error, lost=self.lost, dropped=self.dropped)
