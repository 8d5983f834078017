"""The exporter is switched by OpenTelemetry's variables, bounded, and no trouble to the worker."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import pytest

from halimede.tracing import Batch, FrameRecord, TraceBuffer, TraceContext
from halimede.tracing.export import MAX_EXPORTED, MAX_QUEUED, Pump, exporter_kind, open_exporter
from halimede.tracing.steps import DECODE
from tests.simulated import eventually

NAMES = {"namespace": "default", "service": "helmet", "worker": "w", "node": "n"}


class Sink:
    """A collector as a test wants it."""

    def __init__(self, *, takes: bool = True, hangs: bool = False, fails: bool = False) -> None:
        self.items: list[FrameRecord | Batch] = []
        self.takes, self.fails = takes, fails
        self.go = threading.Event()
        if not hangs:
            self.go.set()

    def must_sample(self, trace_id: int, parent: TraceContext | None) -> bool:
        return True

    def export(self, items: Sequence[FrameRecord | Batch]) -> bool:
        assert self.go.wait(30)
        if self.fails:
            raise RuntimeError("a defect")
        self.items += items
        return self.takes

    def close(self) -> None:
        self.go.set()


def frames(pump: Pump, count: int) -> None:
    trace_buffer = TraceBuffer(pump)
    for n in range(1, count + 1):
        record = trace_buffer.begin(n.to_bytes(16))
        record.step((DECODE, 1.0, 2.0))
        trace_buffer.finish(record)


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "Console"}, "console"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, ""),
    ],
)
def test_the_standard_variables_switch_it(environ: dict[str, str], kind: str) -> None:
    assert exporter_kind(environ) == kind


async def test_without_variables_there_is_no_exporter_and_no_thread() -> None:
    before = threading.active_count()
    async with open_exporter("edge", NAMES, {}) as exporter:
        assert exporter is None
        assert threading.active_count() == before


async def test_settings_that_the_sdk_refuses_cost_the_traces_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "a few")
    async with open_exporter("edge", NAMES, {"OTEL_TRACES_EXPORTER": "otlp"}) as exporter:
        assert exporter is None


async def test_a_missing_extra_costs_the_traces_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "halimede.tracing.otel", None)
    async with open_exporter("edge", NAMES, {"OTEL_TRACES_EXPORTER": "otlp"}) as exporter:
        assert exporter is None


async def test_what_is_queued_leaves_and_at_the_end_the_rest() -> None:
    sink = Sink()
    pump = Pump(sink)
    pump.start()
    frames(pump, 100)
    await eventually(lambda: len(sink.items) >= 64, 30)
    frames(pump, 3)
    pump.close()
    assert (len(sink.items), pump.dropped, pump.lost) == (103, 0, 0)


async def test_a_collector_that_hangs_costs_what_does_not_fit_into_the_queue() -> None:
    sink = Sink(hangs=True)
    pump = Pump(sink)
    pump.start()
    frames(pump, MAX_QUEUED * 2)
    assert MAX_QUEUED - MAX_EXPORTED <= pump.dropped <= MAX_QUEUED
    sink.go.set()
    pump.close()
    assert len(sink.items) + pump.dropped == MAX_QUEUED * 2


@pytest.mark.parametrize("sink", [Sink(takes=False), Sink(fails=True)], ids=["refuses", "fails"])
async def test_what_is_not_taken_is_counted_and_the_thread_goes_on(sink: Sink) -> None:
    pump = Pump(sink)
    pump.start()
    frames(pump, 64)
    await eventually(lambda: pump.lost == 64, 30)
    sink.takes, sink.fails = True, False
    sink.items.clear()
    frames(pump, 40)
    await eventually(lambda: len(sink.items) == 40, 30)
    pump.close()
    assert pump.lost == 64
