"""How many cores there are to compute with, at least one; limits of processor time hold for a block, and no longer."""

from __future__ import annotations

import pytest

from halimede.system.cpu import cores, limited_cores
from tests.programs import run_python


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
    assert limited_cores(8, limit) == found


def test_there_is_always_one() -> None:
    assert limited_cores(0, "") == 1
    assert cores() >= 1


PROGRAM = """
import contextlib, signal
from halimede.system.process_limits import limited_time

with contextlib.suppress(ValueError), limited_time(50, 60):
    print(*(signal.getitimer(timer)[0] > 40 for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL)))
    raise ValueError
print(*(signal.getitimer(timer)[0] for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL)))
"""


def test_the_limits_of_a_block_end_with_it_also_where_it_raises() -> None:
    """In a process of its own: SIGALRM here is that of the limit of tests."""
    assert run_python("-c", PROGRAM, check=True).stdout.splitlines() == ["True True", "0.0 0.0"]
