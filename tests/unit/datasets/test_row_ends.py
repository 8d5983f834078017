"""Rows that are counted together by their last fields, against a count of one row after the other."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from halimede.datasets.row_ends import MAX_COLUMNS, ROWS, count_ends, is_faster

VALUES = tuple(b"cat|hat|at|t||\0|\0\0|dog\r|d,g|\xc3\xa9|0|10|110".replace(b",", b";").split(b"|"))


def drawn_rows(values: tuple[bytes, ...], number: int) -> list[bytes]:
    draw = random.Random(7)
    firsts = (b"", b"cat", b"9,at", b"\0,", b"x" * 40)
    return [draw.choice(firsts) + b"," + draw.choice(values) for _ in range(number)]


@pytest.mark.parametrize("number", [1, ROWS - 1, ROWS, 3 * ROWS + 1])
@pytest.mark.parametrize("known", [1, 5, 8, 9, len(VALUES)])
def test_rows_are_counted_by_their_last_field(number: int, known: int) -> None:
    rows = drawn_rows(VALUES, number)
    plain = Counter(row.rpartition(b",")[2] for row in rows)
    counts = count_ends(b"".join(row + b"\n" for row in rows), b",", VALUES[:known])
    assert counts == {value: plain[value] for value in VALUES[:known]}


def test_values_that_take_more_columns_than_splitting_is_worth_do_not_fit() -> None:
    assert is_faster((b"x" * (MAX_COLUMNS - 1),) * 8)
    assert not is_faster((b"x" * MAX_COLUMNS,))
    assert not is_faster((b"x" * (MAX_COLUMNS // 2),) * 9)
