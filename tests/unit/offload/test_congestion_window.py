"""How many bytes may be on their way: a good line never notices, a narrow one is not filled for minutes ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halimede.offload.limits import MAX_WINDOW, CongestionWindow

SIZE = 60_000


def test_a_line_that_keeps_up_never_notices_nor_one_whose_late_samples_were_acknowledged() -> None:
    congestion = CongestionWindow()
    for _ in range(1000):
        assert congestion.has_capacity(SIZE, 255 * SIZE)
        congestion.carried(SIZE)
    congestion.late(SIZE, 0)
    assert congestion.window == MAX_WINDOW


def test_each_sample_that_is_late_and_not_even_acknowledged_halves_what_may_be_under_way() -> None:
    congestion = CongestionWindow()
    congestion.late(SIZE, 32 * SIZE)
    assert (congestion.has_capacity(SIZE, 15 * SIZE), congestion.has_capacity(SIZE, 16 * SIZE)) == (True, False)
    for _ in range(10):
        congestion.late(SIZE, 8 * SIZE)
    assert not congestion.has_capacity(SIZE, SIZE)


def test_one_sample_may_always_go_behind_results_and_reports() -> None:
    congestion = CongestionWindow()
    for _ in range(10):
        congestion.late(SIZE, SIZE)
    assert congestion.has_capacity(SIZE, SIZE - 1)


def test_a_line_that_got_better_has_room_again() -> None:
    congestion = CongestionWindow()
    congestion.late(SIZE, SIZE)
    for _ in range(600):
        congestion.carried(SIZE)
    assert congestion.has_capacity(SIZE, 30 * SIZE)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**24), st.integers(0, 2**33)), max_size=50))
def test_it_is_never_closed_for_good_nor_open_beyond_its_bound(steps: list[tuple[bool, int, int]]) -> None:
    congestion = CongestionWindow()
    for carried, size, owed in steps:
        if carried:
            congestion.carried(size)
        else:
            congestion.late(size, owed)
        assert 1 <= congestion.window <= MAX_WINDOW
        assert congestion.has_capacity(max(size, 1), 0)
