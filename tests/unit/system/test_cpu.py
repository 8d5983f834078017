"""How many cores there are to compute with: what the scheduler and the control group leave, at least one."""

from __future__ import annotations

import pytest

from halimede.system.cpu import allowed, cores


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("9900000 100000", 8),
        ("-1 100000", 8),
        ("", 8),
        (" ", 8),
        ("100000 0", 8),
        ("what is this", 8),
    ],
)
def test_a_control_groups_limit_counts_where_it_is_lower(limit: str, found: int) -> None:
    assert allowed(8, limit) == found


def test_there_is_always_one() -> None:
    assert allowed(0, "") == 1
    assert cores() >= 1
