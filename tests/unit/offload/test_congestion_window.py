"""How many bytes may be on their way: a good line never notices, a narrow one is not filled for minutes ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halimede.offload.limits import MOST, CongestionWindow

SIZE = 60_000


def test_a_line_that_keeps_up_never_notices() -> None:
    way = CongestionWindow()
    for _ in range(1000):
        assert way.allows(SIZE, 255 * SIZE)
        way.carried(SIZE)
    assert way.window == MOST


def test_each_sample_that_is_late_and_not_even_acknowledged_halves_what_may_be_under_way() -> None:
    way = CongestionWindow()
    way.late(SIZE, 32 * SIZE)
    assert (way.allows(SIZE, 15 * SIZE), way.allows(SIZE, 16 * SIZE)) == (True, False)
    for _ in range(10):
        way.late(SIZE, 8 * SIZE)
    assert not way.allows(SIZE, SIZE)


def test_one_sample_may_always_go_behind_results_and_reports() -> None:
    way = CongestionWindow()
    for _ in range(10):
        way.late(SIZE, SIZE)
    assert way.allows(SIZE, SIZE - 1)


def test_a_late_sample_that_was_acknowledged_says_nothing_of_the_way() -> None:
    way = CongestionWindow()
    way.late(SIZE, 0)
    assert way.window == MOST


def test_a_line_that_got_better_has_room_again() -> None:
    way = CongestionWindow()
    way.late(SIZE, SIZE)
    for _ in range(600):
        way.carried(SIZE)
    assert way.allows(SIZE, 30 * SIZE)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**24), st.integers(0, 2**33)), max_size=50))
def test_it_is_never_closed_for_good_nor_open_beyond_its_bound(steps: list[tuple[bool, int, int]]) -> None:
    way = CongestionWindow()
    for carried, size, owed in steps:
        if carried:
            way.carried(size)
        else:
            way.late(size, owed)
        assert 1 <= way.window <= MOST
        assert way.allows(max(size, 1), 0)
