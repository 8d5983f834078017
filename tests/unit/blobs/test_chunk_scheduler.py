"""The pieces of one file: whatever comes, late, twice, short or not at all, it is given on whole and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halimede.blobs import chunk_scheduler as scheduler


def piece(file: bytes, offset: int, length: int) -> memoryview:
    return memoryview(file)[offset : offset + length]


@given(st.data())
def test_any_order_any_loss_and_short_pieces_give_the_file(data: st.DataObject) -> None:
    file = bytes(range(256)) * 2000
    start = data.draw(st.integers(0, len(file)))
    transfer, now, given_ = scheduler.ChunkScheduler(start, len(file)), 0.0, b""
    flying: list[tuple[int, int]] = []
    for _ in range(2000):
        given_ += b"".join(transfer.take_ready())
        if transfer.done:
            break
        flying += [(asked.offset, asked.length) for asked in transfer.next_requests(now)]
        now += 0.05
        fate = data.draw(st.sampled_from(["come", "come", "lost", "twice", "short"])) if flying else "late"
        if fate == "late":
            now += scheduler.MAX_TIMEOUT_S
        elif fate == "lost":
            flying.pop()
        else:
            offset, length = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            part = piece(file, offset, length // 2 + 1 if fate == "short" else length)
            transfer.add(offset, part, now)
            if fate == "twice":
                assert not transfer.add(offset, part, now)
        transfer.expire(now)
    assert given_ == file[start:]


def test_what_nobody_asked_for_is_not_taken() -> None:
    transfer = scheduler.ChunkScheduler(0, 10 * scheduler.FIRST_BYTES)
    first, second = transfer.next_requests(0.0)
    assert not transfer.add(5 * scheduler.FIRST_BYTES, memoryview(bytes(scheduler.FIRST_BYTES)), 0.1), "nobody asked"
    assert not transfer.add(first.offset, memoryview(bytes(first.length + 1)), 0.1), "too long"
    assert not transfer.add(first.offset, memoryview(b""), 0.1), "empty"
    assert transfer.add(second.offset, memoryview(bytes(second.length)), 0.1)
    assert transfer.take_ready() == [], "the first is not here yet"


def test_a_piece_that_was_given_up_is_taken_when_it_comes_after_all() -> None:
    transfer = scheduler.ChunkScheduler(0, scheduler.FIRST_BYTES)
    (asked,) = transfer.next_requests(0.0)
    assert transfer.expire(scheduler.FIRST_TIMEOUT_S) == 1
    assert transfer.misses == 1
    assert transfer.add(asked.offset, memoryview(bytes(asked.length)), scheduler.FIRST_TIMEOUT_S + 1)
    assert transfer.next_requests(scheduler.FIRST_TIMEOUT_S + 1) == []
    assert (len(transfer.take_ready()), transfer.done, transfer.misses) == (1, True, 0)


def test_a_reader_that_takes_nothing_bounds_what_is_asked_for() -> None:
    transfer, held = scheduler.ChunkScheduler(0, 10_000 * scheduler.MAX_BYTES), 0
    for _ in range(200):
        for asked in transfer.next_requests(0.0):
            transfer.add(asked.offset, memoryview(bytes(asked.length)), scheduler.FAST_S / 2)
            held += 1
    assert held <= scheduler.MAX_IN_FLIGHT + scheduler.MAX_WAITING


def test_another_source_is_asked_for_all_that_the_first_owes() -> None:
    transfer = scheduler.ChunkScheduler(0, 2 * scheduler.FIRST_BYTES)
    owed = {asked.offset for asked in transfer.next_requests(0.0)}
    transfer.switch_source()
    assert {asked.offset for asked in transfer.next_requests(1.0)} == owed


def test_a_fast_source_is_asked_for_more_and_a_slow_one_for_less() -> None:
    pace = scheduler.FlowControl()
    for _ in range(50):
        pace.record_arrival(0.005)
    assert (pace.window, pace.length) == (scheduler.MAX_IN_FLIGHT, scheduler.MAX_BYTES)
    for _ in range(50):
        pace.record_arrival(5.0)
    assert (pace.window, pace.length) == (1, scheduler.MIN_BYTES)
    assert pace.timeout_s > 5.0, "a piece that takes five seconds is not lost after one"
    for _ in range(50):
        pace.record_loss()
    assert pace.timeout_s == scheduler.MAX_TIMEOUT_S
