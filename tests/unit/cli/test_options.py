"""Times as people type them, and the lines of logs that are recent enough."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from halimede.cli.commands import logs
from halimede.cli.options import time_of
from halimede.errors import InvalidFieldError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("10m", NOW - timedelta(minutes=10)),
        ("2h", NOW - timedelta(hours=2)),
        ("1d", NOW - timedelta(1)),
        ("2026-01-31T12:00:00+00:00", NOW),
        ("", None),
    ],
)
def test_a_time_is_so_long_ago_or_a_moment_or_none(text: str, time: datetime | None) -> None:
    assert time_of(text, NOW) == time


@pytest.mark.parametrize("text", ["1", "x", "1x", "-1m", "999999999d", "1w", "२m"])
def test_anything_else_says_what_to_write(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--since"):
        time_of(text, NOW)


def test_a_line_without_a_time_belongs_to_the_one_before() -> None:
    old, new = '{"timestamp": "2026-01-31T11:59:59Z"}', '{"timestamp": "2026-01-31T12:00:00.000001Z"}'
    assert list(logs.lines_since(["plain", old, "of the old", new, "of the new", old, "x"], NOW)) == [new, "of the new"]
