"""A trace buffer remembers the last frames and forgets the rest; a record says where its frame belongs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halimede.codec import decode, encode
from halimede.messages import TraceReply
from halimede.topics import TRACE_REPLY
from halimede.tracing import Batch, FrameRecord, TraceBuffer, TraceContext, spans
from halimede.tracing.record import MOST_STEPS
from halimede.tracing.steps import DECODE, MINE, MODEL, RESULT


def frame(number: int) -> bytes:
    return number.to_bytes(16)


class Kept:
    """An exporter that keeps what it gets, and samples even traces only."""

    def __init__(self) -> None:
        self.frames: list[FrameRecord] = []
        self.batches: list[Batch] = []

    def must_sample(self, trace_id: int, parent: TraceContext | None) -> bool:
        return trace_id % 2 == 0

    def export(self, record: FrameRecord | Batch) -> None:
        if isinstance(record, Batch):
            self.batches.append(record)
        else:
            self.frames.append(record)


def test_the_oldest_frame_makes_room() -> None:
    trace_buffer = TraceBuffer(size=3)
    records = [trace_buffer.begin(frame(n)) for n in range(1, 6)]
    assert [trace_buffer.find(frame(n)) for n in range(1, 6)] == [None, None, *records[2:]]


def test_a_frame_that_begins_again_has_its_newest_record_for_as_long_as_others() -> None:
    trace_buffer = TraceBuffer(size=3)
    first = trace_buffer.begin(frame(1))
    again = trace_buffer.begin(frame(1))
    assert trace_buffer.find(frame(1)) is again is not first
    trace_buffer.begin(frame(2))
    trace_buffer.begin(frame(3))  # takes the first one's place
    assert trace_buffer.find(frame(1)) is again
    trace_buffer.begin(frame(4))
    assert trace_buffer.find(frame(1)) is None


def test_the_last_frame_is_the_newest_with_a_result_also_after_the_buffer_has_gone_round() -> None:
    trace_buffer = TraceBuffer(size=4)
    assert trace_buffer.last() is None
    for number, hard in enumerate((True, False, True, False, False), 1):
        trace_buffer.begin(frame(number)).step((RESULT, 0.0, 1.0, "edge", hard, "5"))
    waiting = trace_buffer.begin(frame(6))
    waiting.step((MODEL, 0.0, 1.0, 1))  # not answered yet
    newest, hard = trace_buffer.last(), trace_buffer.last(hard=True)
    assert (newest and newest.id, hard and hard.id) == (frame(5), frame(3))  # type: ignore[attr-defined]
    waiting.step((RESULT, 0.0, 1.0, "cloud", True, "5"))
    waiting.step((DECODE, 0.0, 1.0))  # an audit adds steps after the result
    assert trace_buffer.last() is trace_buffer.last(hard=True) is waiting


def test_the_steps_that_are_reported_are_bounded() -> None:
    record = TraceBuffer().begin(frame(1))
    for n in range(1000):
        record.step((DECODE, n, n + 1))
    assert len(spans(record)) == MOST_STEPS
    reply = TraceReply(worker="w", role="edge", spans=spans(record))
    assert decode(TRACE_REPLY, encode(TRACE_REPLY, reply)) == reply


def test_what_is_no_number_or_empty_is_left_out_of_an_answer() -> None:
    record = TraceBuffer().begin(frame(1))
    record.step((MINE, 1.0, 2.5, True, math.nan))
    record.step((("x", ("a", "b")), 1.0, 0.5, "", 0))
    first, second = spans(record)
    assert (first.attributes, first.duration_ns) == ({"hard": True}, 1_500_000_000)
    assert (second.attributes, second.duration_ns) == ({"b": 0}, 0)


def test_without_an_exporter_a_context_passes_through_as_it_came() -> None:
    parent = TraceContext(7, 8, sampled=False, state="a=b")
    record = TraceBuffer().begin(frame(1), parent)
    assert record.context == record.request_context() == parent
    assert record.must_travel
    own = TraceBuffer().begin(frame(1))
    assert own.context.trace == 1
    assert own.context.span == own.request_context().span != 0
    assert not own.must_travel


def test_with_an_exporter_a_frame_has_spans_of_its_own_and_the_samplers_decision() -> None:
    trace_buffer = TraceBuffer(Kept())
    record = trace_buffer.begin(frame(1), TraceContext(8, 9, sampled=False, state="a=b"))
    assert record.context == TraceContext(8, record.context.span, sampled=True, state="a=b")
    assert len({9, record.context.span, record.request_context().span}) == 3
    assert record.request_context() == record.request_context()
    assert not trace_buffer.begin(frame(3)).context.sampled


def test_only_sampled_frames_and_their_model_calls_are_exported() -> None:
    kept = Kept()
    trace_buffer = TraceBuffer(kept)
    even, odd = trace_buffer.begin(frame(2)), trace_buffer.begin(frame(3))
    records: Sequence[FrameRecord] = (even, odd)
    trace_buffer.add_batch(1.0, 2.0, records)
    trace_buffer.add_batch(1.0, 2.0, [odd])
    for record in records:
        record.step((MODEL, 1.0, 2.0, 2))
        trace_buffer.finish(record)
    assert kept.frames == [even]
    (batch,) = kept.batches
    assert (batch.members, batch.size) == ([even.context], 2)
    assert even.batch == batch.context
