"""Which frames are wanted and when: pure functions of time."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.cameras import ipc_messages
from halimede.cameras.camera import CameraBackoff
from halimede.cameras.frame_rate import JITTER_S, MOST_FPS, Brake, FrameThinner, Timeline


@given(st.floats(1, 240), st.floats(0.5, 120), st.lists(st.floats(-0.3, 0.3), min_size=64, max_size=64))
def test_as_many_frames_as_are_wanted_or_all_that_there_are(source: float, wanted: float, jitter: list[float]) -> None:
    thinner, seconds = FrameThinner(wanted), 20.0
    count = int(source * seconds)
    taken = sum(thinner.accepts((i + jitter[i % 64]) / source) for i in range(count))
    assert taken <= wanted * seconds + 2
    if source <= wanted * 0.55:  # the jitter brings two frames as near as 0.4 of the source's interval
        assert taken == count
    assert taken >= min(source, wanted) * seconds * 0.6 - 2


@pytest.mark.parametrize(("source", "wanted", "every"), [(25, 5, 5), (60, 30, 2), (30, 30, 1), (30, 10, 3)])
def test_of_a_steady_source_every_nth(source: int, wanted: int, every: int) -> None:
    thinner = FrameThinner(wanted)
    assert [i for i in range(100) if thinner.accepts(i / source)] == list(range(0, 100, every))


def arrivals(rate: float, delays: list[float]) -> list[float]:
    """Return when frames of a regular camera arrive that are late by these delays (s); none overtakes another."""
    return list(itertools.accumulate((i / rate + delay for i, delay in enumerate(delays)), max))


@given(
    limit=st.floats(0.5, 120),
    share=st.floats(0.05, 1.0),
    delays=st.lists(st.one_of(st.floats(0, JITTER_S - 1e-6), st.just(0.0)), min_size=1, max_size=200),
)
def test_a_regular_camera_below_the_limit_loses_none_to_jitter(limit: float, share: float, delays: list[float]) -> None:
    thinner = FrameThinner(limit, JITTER_S)
    assert all(thinner.accepts(at_s) for at_s in arrivals(limit * share, delays))


@given(
    limit=st.floats(0.5, 120),
    pauses=st.lists(st.one_of(st.floats(0, 0.1), st.floats(0, 3.0)), min_size=1, max_size=400),
)
def test_over_any_time_no_more_than_the_limit_and_its_tolerance_are_taken(limit: float, pauses: list[float]) -> None:
    thinner = FrameThinner(limit, JITTER_S)
    taken = [at_s for at_s in itertools.accumulate(pauses) if thinner.accepts(at_s)]
    for first, last in itertools.combinations(range(len(taken)), 2):
        assert last - first + 1 <= (taken[last] - taken[first] + JITTER_S) * limit + 2 + 1e-6


def test_a_source_that_was_away_owes_nothing() -> None:
    thinner = FrameThinner(10)
    assert thinner.accepts(0.0)
    assert [thinner.accepts(t) for t in (50.0, 50.01, 50.02, 50.1)] == [True, False, False, True]
    assert thinner.accepts(3.0)  # its clock went back


def test_a_flood_is_braked_and_a_burst_is_not() -> None:
    brake, now, waited = Brake(), 0.0, []
    for _ in range(1000):
        waited.append(pause := brake.pause(now))
        now += pause + 0.0001
    assert not any(waited[:50])
    assert 1000 / now == pytest.approx(MOST_FPS, rel=0.1)


def test_the_times_of_a_file_go_on_from_turn_to_turn() -> None:
    timeline = Timeline(-1.0, 1_000, 0.04)
    first = [timeline.due_ns(t) for t in (5.0, 5.04, 5.12)]
    timeline.again()
    second = [timeline.due_ns(t) for t in (5.0, 5.04)]
    assert [t - 1_000 for t in first + second] == [0, 40_000_000, 120_000_000, 160_000_000, 200_000_000]


def test_a_file_that_says_no_times_is_played_evenly() -> None:
    timeline = Timeline(0.0, 0, 0.04)
    assert [timeline.due_ns(None) for _ in range(3)] == [0, 40_000_000, 80_000_000]
    paced = Timeline(10.0, 0, 0.04)
    assert [paced.due_ns(7.0) for _ in range(3)] == [0, 100_000_000, 200_000_000]


def test_pauses_grow_to_a_bound_and_are_longer_where_a_password_is_wrong() -> None:
    backoff = CameraBackoff()
    assert [backoff.pause(n, ipc_messages.STALLED, 1.0) for n in (1, 2, 3, 50)] == [0.5, 1.0, 2.0, 30.0]
    assert backoff.pause(3, ipc_messages.STALLED, 0.0) == 1.0
    assert backoff.pause(1, ipc_messages.UNAUTHORIZED, 0.0) == 10.0
