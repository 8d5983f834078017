"""When a silent connection is pinged, and when it counts as dead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from halimede.bus.mqtt5.keepalive import KeepAlive

#: a line on which nothing is under way any more
IDLE: Any = SimpleNamespace(has_progress=lambda: False, arrived_bytes=100, put_bytes=100)


@pytest.mark.parametrize("keepalive_s", [3.0, 7.0, 15.0])
def test_a_slow_answer_has_the_whole_keepalive_and_a_dead_connection_is_found_in_one_and_a_half(
    keepalive_s: float,
) -> None:
    watch, now = KeepAlive(0.0, keepalive_s), 0.0
    while not watch.must_ping(now):
        now += watch.pause
    assert now < keepalive_s / 2, "the broker would call us dead before a slow ping arrives"
    watch.record_ping(now, at=100)
    slow = now + keepalive_s * 0.98
    while now < slow:
        assert not watch.why_dead(now, IDLE, waiting=False, blocked=False), "a slow line is taken for a dead one"
        now += watch.pause
    while not watch.why_dead(now, IDLE, waiting=False, blocked=False):
        now += watch.pause
    assert now <= 1.5 * keepalive_s


def test_a_connection_is_checked_sixteen_times_in_its_keepalive_and_each_second_at_least() -> None:
    assert [KeepAlive(0.0, keepalive_s).pause for keepalive_s in (8.0, 15.0, 32.0)] == [0.5, 0.9375, 1.0]


@pytest.mark.parametrize("direction", ["spoke", "alive"])
def test_a_ping_is_due_after_a_third_of_the_keepalive_without_a_byte_in_either_direction(direction: str) -> None:
    watch = KeepAlive(0.0, 15.0)
    watch.spoke = watch.alive = 100.0
    assert not watch.must_ping(104.9)
    setattr(watch, direction, 99.0)
    assert watch.must_ping(104.0)
    watch.record_ping(104.0, at=100)
    assert not watch.must_ping(200.0)
    watch.record_pong()
    assert watch.must_ping(200.0)


@pytest.mark.parametrize(("waiting", "blocked"), [(True, False), (False, True)])
def test_a_broker_that_acknowledges_or_accepts_nothing_for_a_minute_is_left(waiting: bool, blocked: bool) -> None:
    watch = KeepAlive(0.0, 15.0)
    assert not watch.why_dead(100.0, IDLE, waiting=False, blocked=False)
    assert not watch.why_dead(159.9, IDLE, waiting=waiting, blocked=blocked)
    assert watch.why_dead(160.0, IDLE, waiting=waiting, blocked=blocked) == "no acknowledgement for 60 s"
    watch.waiting_since = 101.0
    assert not watch.why_dead(160.9, IDLE, waiting=waiting, blocked=blocked)


def test_a_line_that_takes_bytes_is_waited_for_and_so_is_a_ping_that_is_still_on_its_way() -> None:
    watch = KeepAlive(0.0, 15.0)
    slow: Any = SimpleNamespace(has_progress=lambda: True, arrived_bytes=99)
    watch.record_ping(10.0, at=100)
    assert not watch.why_dead(60.0, slow, waiting=True, blocked=False)
    slow.arrived_bytes = 100
    assert not watch.why_dead(74.9, slow, waiting=True, blocked=False)
    assert watch.why_dead(75.0, slow, waiting=True, blocked=False) == "no answer to a ping"


@pytest.mark.parametrize(
    ("pinged", "waiting", "arrived", "dead_s"),
    [(False, True, 99, None), (True, False, 99, None), (True, True, 99, None), (True, False, 100, 25.0)],
    ids=["a packet", "a ping", "both", "a ping that has arrived"],
)
def test_a_slow_line_is_no_dead_one_while_bytes_arrive(
    pinged: bool, waiting: bool, arrived: int, dead_s: float | None
) -> None:
    watch = KeepAlive(0.0, 15.0)
    slow: Any = SimpleNamespace(has_progress=lambda: True, arrived_bytes=arrived)
    if pinged:
        watch.record_ping(10.0, at=100)
    times = [time for time in range(10, 1000) if watch.why_dead(time, slow, waiting=waiting, blocked=False)]
    assert times[:1] == ([dead_s] if dead_s else [])


def test_bytes_that_come_after_a_ping_prolong_the_wait_for_its_answer() -> None:
    watch = KeepAlive(0.0, 15.0)
    watch.record_ping(10.0, at=100)
    watch.alive = 12.0
    assert not watch.why_dead(26.9, IDLE, waiting=False, blocked=False)
    assert watch.why_dead(27.0, IDLE, waiting=False, blocked=False) == "no answer to a ping"


def test_a_connection_that_is_not_read_is_waited_for() -> None:
    watch = KeepAlive(0.0, 15.0)
    watch.record_ping(10.0, at=100)
    watch.record_pause(500.0)
    assert not watch.why_dead(559.9, IDLE, waiting=True, blocked=False)
    assert watch.why_dead(560.0, IDLE, waiting=True, blocked=False) == "no acknowledgement for 60 s"


def test_only_a_shorter_keepalive_of_the_broker_counts() -> None:
    watch = KeepAlive(0.0, 15.0)
    watch.shorten(600)
    assert watch.patience == 15
    watch.shorten(5)
    assert (watch.patience, watch.must_ping(1.6), watch.must_ping(1.7)) == (5, False, True)
