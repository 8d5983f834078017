"""When a silent connection is pinged, and when it counts as dead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from halimede.bus.mqtt5.keepalive import KeepAlive

#: a line on which nothing is under way any more
IDLE: Any = SimpleNamespace(arrives=lambda: False, arrived_bytes=100, put_bytes=100)


@pytest.mark.parametrize("keepalive_s", [3.0, 7.0, 15.0])
def test_a_slow_answer_has_the_whole_keepalive_and_a_dead_connection_is_found_in_one_and_a_half(
    keepalive_s: float,
) -> None:
    watch, now = KeepAlive(0.0, keepalive_s), 0.0
    while not watch.ping_due(now):
        now += watch.pause
    assert now < keepalive_s / 2, "the broker would call us dead before a slow ping arrives"
    watch.pinged(now, at=100)
    slow = now + keepalive_s * 0.98
    while now < slow:
        assert not watch.dead(now, IDLE, waiting=False, blocked=False), "a slow line is taken for a dead one"
        now += watch.pause
    while not watch.dead(now, IDLE, waiting=False, blocked=False):
        now += watch.pause
    assert now <= 1.5 * keepalive_s
