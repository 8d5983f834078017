"""Records as OpenTelemetry spans: the only file that needs the SDK (the extra ``otel``), imported on demand.

One frame is one trace: at the edge a span with a child for each step, in the cloud a span below the edge's ``offload``.
A model call is a separate trace, linked with its frames, because it belongs to all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.context import Context as Ambient
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace.status import Status, StatusCode

from halimede import __version__
from halimede.tracing.context import TraceContext
from halimede.tracing.record import Batch, FrameRecord, Step, named, new_span, wall_ahead_ns
from halimede.tracing.steps import COMPUTE, MODEL, OFFLOAD

#: names of the reason in a failed step
REASONS = ("error", "degraded")
ROOTS = {
    "camera": ("camera frame", SpanKind.PRODUCER),
    "edge": ("edge frame", SpanKind.CONSUMER),
    "cloud": ("cloud request", SpanKind.SERVER),
}
SCOPE = InstrumentationScope("halimede", __version__)


class OtelSink:
    """Sends spans by the exporter ``kind`` (otlp, console), sampled by OTEL_TRACES_SAMPLER."""

    def __init__(self, kind: str, role: str, names: Mapping[str, str], exporter: SpanExporter | None = None) -> None:
        for noisy in ("opentelemetry", "urllib3"):  # this project logs an unreachable collector itself, once
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        provider = TracerProvider(resource=_resource(role, names), shutdown_on_exit=False)
        self._sampler = provider.sampler
        self._resource = provider.resource
        self._root = ROOTS[role]
        self._exporter = exporter or (ConsoleSpanExporter() if kind == "console" else OTLPSpanExporter())

    def samples(self, trace: int, parent: TraceContext | None) -> bool:
        """Return the decision of the sampler, which gets the parent's decision."""
        ambient = set_span_in_context(NonRecordingSpan(_context_of(parent, remote=True)), Ambient()) if parent else None
        name, kind = self._root
        return self._sampler.should_sample(ambient, trace, name, kind).decision is Decision.RECORD_AND_SAMPLE

    def export(self, items: Sequence[FrameRecord | Batch]) -> bool:
        """Send frames and model calls."""
        ahead = wall_ahead_ns()
        spans = [span for item in items for span in self._spans(item, ahead)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Cancel a running export."""
        self._exporter.shutdown()

    def _spans(self, item: FrameRecord | Batch, ahead: int) -> Iterator[ReadableSpan]:
        if isinstance(item, Batch):
            links = [Link(_context_of(member)) for member in item.members]
            known = {"halimede.batch": item.size}
            times = _times(item.began, item.ended, ahead)
            yield self._span("batch", _context_of(item.here), None, times, known, links=links)
        elif item.steps:
            yield from self._frame(item, ahead)

    def _frame(self, record: FrameRecord, ahead: int) -> Iterator[ReadableSpan]:
        here = _context_of(record.here)
        parent = _context_of(record.parent, remote=True) if record.parent else None
        name, kind = self._root
        began, ended = min(step[1] for step in record.steps), max(step[2] for step in record.steps)
        known = {"halimede.frame": record.id.hex()}
        yield self._span(name, here, parent, _times(began, ended, ahead), known, kind=kind)
        asked = _context_of(record.asked or record.here._replace(span=new_span()))
        for step in record.steps:
            yield self._step(record, step, here, asked, ahead)

    def _step(self, record: FrameRecord, step: Step, here: SpanContext, asked: SpanContext, ahead: int) -> ReadableSpan:
        what, began, ended, *values = step
        known = named(what, values)
        reason = next((str(known[key]) for key in REASONS if key in known), "")
        links = [Link(_context_of(record.batch))] if record.batch and what in {MODEL, COMPUTE} else []
        return self._span(
            what[0],
            asked if what is OFFLOAD else _context_of(record.here._replace(span=new_span())),
            asked if what[0].startswith(f"{OFFLOAD[0]}.") else here,
            _times(began, ended, ahead),
            {f"halimede.{key}": value for key, value in known.items()},
            kind=SpanKind.CLIENT if what is OFFLOAD else SpanKind.INTERNAL,
            links=links,
            status=Status(StatusCode.ERROR, reason) if reason else Status(),
        )

    def _span(
        self,
        name: str,
        place: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: Mapping[str, str | int | float | bool],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
        status: Status | None = None,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            place,
            parent,
            self._resource,
            attributes,
            links=links,
            kind=kind,
            status=status or Status(),
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=SCOPE,
        )


def _times(began: float, ended: float, ahead: int) -> tuple[int, int]:
    return ahead + int(began * 1e9), ahead + int(max(began, ended) * 1e9)


def _context_of(context: TraceContext, *, remote: bool = False) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace, context.span, remote, flags, state)


def _resource(role: str, names: Mapping[str, str]) -> Resource:
    """Return this process's resource; names from the environment take precedence."""
    known = {
        "service.namespace": names["namespace"],
        "service.instance.id": names["worker"],
        "host.name": names["node"],
        "halimede.service": names["service"],
        "halimede.role": role,
    }
    named_already = os.environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if not named_already:
        known[SERVICE_NAME] = f"{names['service']}-{role}".strip("-")
    return Resource.create({key: value for key, value in known.items() if value})
