"""An OpenTelemetry collector on loopback: takes spans over HTTP and keeps them, read back as plain values."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.ports import serve_app


@dataclass
class Span:
    """One span; ids are hex, ``links`` are (trace, span)."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    resource: dict[str, Any]
    error: str


@dataclass
class Collector:
    """What came in, and where to send it."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for group in message.resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                for span in scope.spans:
                    links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
                    self.spans.append(
                        Span(
                            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                            span.start_time_unix_nano, span.end_time_unix_nano, links, _values(span.attributes),
                            resource, span.status.message if span.status.code == 2 else "",
                        )
                    )  # fmt: skip
        return web.Response(body=b"", content_type="application/x-protobuf")


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made, app = Collector(), web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/traces", made.take)
    async with serve_app(app) as address:
        made.url = f"http://{address}"
        yield made
