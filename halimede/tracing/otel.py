"""Sends the records of frames as spans of OpenTelemetry.

This is the only module that needs its SDK (the extra ``otel``); ``export`` imports it on demand. One frame is one
trace: at the edge a span with a child for each step, in the cloud a span below the edge's ``offload``. A model call is
a separate trace, linked with its frames, because it belongs to all of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

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
from halimede.tracing.record import Batch, FrameRecord, Step, new_span, values_by_name, wall_clock_offset_ns
from halimede.tracing.steps import COMPUTE, MODEL, OFFLOAD

#: values of a step that hold the reason why it failed
REASONS = ("error", "degraded")
#: name and kind of a frame's own span, by the role of the process
ROOTS = {
    "camera": ("camera frame", SpanKind.PRODUCER),
    "edge": ("edge frame", SpanKind.CONSUMER),
    "cloud": ("cloud request", SpanKind.SERVER),
}
#: what made the spans
SCOPE = InstrumentationScope("halimede", __version__)


class OtelSink:
    """A ``Sink`` (export) that sends spans with OpenTelemetry's SDK, sampled by OTEL_TRACES_SAMPLER.

    ``target``: ``otlp`` or ``console``, if no ``exporter`` is given. ``role``: a key of ROOTS. ``names``: namespace,
    service, worker and node of this process. Making one raises what the SDK raises for wrong settings.
    """

    def __init__(self, target: str, role: str, names: Mapping[str, str], exporter: SpanExporter | None = None) -> None:
        for noisy in ("opentelemetry", "urllib3"):  # this project logs an unreachable collector itself, once
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
        provider = TracerProvider(resource=_resource(role, names), shutdown_on_exit=False)
        self._sampler = provider.sampler
        self._make_span = partial(ReadableSpan, resource=provider.resource, instrumentation_scope=SCOPE)
        self._root = ROOTS[role]
        self._exporter = exporter or (ConsoleSpanExporter() if target == "console" else OTLPSpanExporter())

    def must_sample(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Whether the SDK's sampler selects a trace for export. ``parent``: the context of its message, or None."""
        ambient = set_span_in_context(NonRecordingSpan(_context_of(parent, remote=True)), Ambient()) if parent else None
        return self._sampler.should_sample(ambient, trace_id, *self._root).decision is Decision.RECORD_AND_SAMPLE

    def export(self, items: Sequence[FrameRecord | Batch]) -> bool:
        """Send frames and model calls; return whether the exporter accepted them. Blocks as long as the SDK does."""
        offset_ns = wall_clock_offset_ns()
        spans = [span for item in items for span in self._spans_of(item, offset_ns)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Cancel a running export; later ones fail."""
        self._exporter.shutdown()

    def _spans_of(self, item: FrameRecord | Batch, offset_ns: int) -> Iterator[ReadableSpan]:
        """Yield the spans of a frame or a model call. ``offset_ns``: the wall clock minus the monotonic clock."""
        if isinstance(item, Batch):
            links = [Link(_context_of(member)) for member in item.members]
            attributes = {"halimede.batch": item.size}
            start, end = _times_ns(item.began, item.ended, offset_ns)
            context = _context_of(item.context)
            yield self._make_span("batch", context, attributes=attributes, links=links, start_time=start, end_time=end)
        elif item.steps:
            yield from self._frame_spans(item, offset_ns)

    def _frame_spans(self, record: FrameRecord, offset_ns: int) -> Iterator[ReadableSpan]:
        """Yield the span of a frame, which has steps, and the spans of its steps."""
        context = _context_of(record.context)
        parent = _context_of(record.parent, remote=True) if record.parent else None
        name, kind = self._root
        began, ended = min(step[1] for step in record.steps), max(step[2] for step in record.steps)
        start, end = _times_ns(began, ended, offset_ns)
        attributes = {"halimede.frame": record.id.hex()}
        yield self._make_span(name, context, parent, attributes=attributes, kind=kind, start_time=start, end_time=end)
        request = _context_of(record.request or record.context._replace(span=new_span()))
        for step in record.steps:
            yield self._step_span(record, step, context, request, offset_ns)

    def _step_span(
        self, record: FrameRecord, step: Step, frame_context: SpanContext, request: SpanContext, offset_ns: int
    ) -> ReadableSpan:
        """Return the span of a step. ``request``: the context of the frame's request to the next tier.

        The step ``offload`` has that context; steps named ``offload....`` are children of its span, all others are
        children of the frame's span. ``record.batch`` is the context of the frame's model call.
        """
        step_kind, began, ended, *values = step
        is_offload, is_part_of_offload = step_kind is OFFLOAD, step_kind[0].startswith(f"{OFFLOAD[0]}.")
        attributes = values_by_name(step_kind, values)
        reason = next((str(attributes[key]) for key in REASONS if key in attributes), "")
        links = [Link(_context_of(record.batch))] if record.batch and step_kind in {MODEL, COMPUTE} else []
        start, end = _times_ns(began, ended, offset_ns)
        return self._make_span(
            step_kind[0],
            request if is_offload else _context_of(record.context._replace(span=new_span())),
            request if is_part_of_offload else frame_context,
            attributes={f"halimede.{key}": value for key, value in attributes.items()},
            kind=SpanKind.CLIENT if is_offload else SpanKind.INTERNAL,
            links=links,
            status=Status(StatusCode.ERROR, reason) if reason else Status(),
            start_time=start,
            end_time=end,
        )


def _times_ns(began: float, ended: float, offset_ns: int) -> tuple[int, int]:
    """Return two times of the monotonic clock, in seconds, as nanoseconds since 1970, in the right order."""
    return offset_ns + int(began * 1e9), offset_ns + int(max(began, ended) * 1e9)


def _context_of(context: TraceContext, *, remote: bool = False) -> SpanContext:
    """Return a context in the SDK's form. ``remote``: it came from another process."""
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([context.state]) if context.state else None
    return SpanContext(context.trace, context.span, remote, flags, state)


def _resource(role: str, names: Mapping[str, str]) -> Resource:
    """Return what identifies this process in its spans; names from OTEL_... variables take precedence."""
    attributes = {
        "service.namespace": names["namespace"],
        "service.instance.id": names["worker"],
        "host.name": names["node"],
        "halimede.service": names["service"],
        "halimede.role": role,
    }
    if not os.environ.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = f"{names['service']}-{role}".strip("-")
    return Resource.create({key: value for key, value in attributes.items() if value})
