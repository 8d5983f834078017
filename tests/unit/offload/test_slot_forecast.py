"""Which waiting requests get a slot in time, and the rate of requests that it depends on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.messages import Load
from halimede.offload.load_balancer import STALE_S, LoadBalancer
from halimede.offload.slot_forecast import AVERAGED_S, RequestRate, SlotForecast

seconds = st.floats(0.001, 100)
rates = st.floats(0, 1000)
forecasts = st.builds(SlotForecast, seconds, seconds)


@pytest.mark.parametrize(
    ("left_s", "requests_per_s", "capacity"),
    [
        (0.4, 0.0, 0),  # an answer takes half a second
        (0.5, 0.0, 1),
        (5.0, 0.0, 1 + 9),  # nine slots become free in time
        (5.0, 1.0, 1 + 4),  # half of them for requests that arrive meanwhile
        (5.0, 2.0, 1),
        (5.0, 9.0, 1),  # overload: the next slot is for the newest request, the others get none
    ],
)
def test_as_many_wait_as_slots_become_free_in_time(left_s: float, requests_per_s: float, capacity: int) -> None:
    assert SlotForecast(slot_s=0.5, answer_s=0.5).capacity(left_s, requests_per_s) == capacity


def test_a_request_in_a_hurry_is_hopeless_and_delays_nobody() -> None:
    forecast = SlotForecast(slot_s=0.5, answer_s=0.5)
    assert list(forecast.hopeless([0.4, 0.4, 5.0, 5.0], 9.0)) == [True, True, False, True]


@given(forecasts, st.lists(seconds, max_size=30), rates)
def test_never_more_wait_than_slots_become_free_and_always_one_that_can_be_in_time(
    forecast: SlotForecast, lefts_s: list[float], rate: float
) -> None:
    judged = zip(lefts_s, forecast.hopeless(lefts_s, rate), strict=True)
    waiting = [left_s for left_s, hopeless in judged if not hopeless]
    in_time = [left_s for left_s in lefts_s if left_s >= forecast.answer_s]
    assert bool(waiting) == bool(in_time)
    assert set(waiting) <= set(in_time)
    if in_time:
        assert len(waiting) <= 1 + (max(in_time) - forecast.answer_s) / forecast.slot_s


@given(forecasts, seconds, seconds, rates, rates)
def test_more_time_and_fewer_requests_give_more_places(
    forecast: SlotForecast, left_s: float, more_s: float, rate: float, more: float
) -> None:
    assert forecast.capacity(left_s, rate) <= forecast.capacity(left_s + more_s, rate)
    assert forecast.capacity(left_s, rate + more) <= forecast.capacity(left_s, rate)


@given(st.floats(0.1, 50), st.floats(0.01, 5))
def test_a_steady_rate_is_measured(per_s: float, every_s: float) -> None:
    rate, measured = RequestRate(), 0.0
    for i in range(int(10 * AVERAGED_S / every_s) + 1):
        measured = rate.read(int(per_s * i * every_s), i * every_s)
    assert measured == pytest.approx(per_s, rel=0.15, abs=1.5 / every_s * (1 if per_s * every_s < 1 else 0.1))


def test_a_burst_counts_as_little_and_silence_ends_it() -> None:
    rate = RequestRate()
    assert rate.read(0, 0.0) == 0
    assert rate.read(20, 0.1) == pytest.approx(20 / AVERAGED_S, rel=0.05)
    assert rate.read(20, 0.1) == pytest.approx(20 / AVERAGED_S, rel=0.05)
    assert rate.read(20, 60.0) < 0.01


def full(service_ms: float, queued: int = 0) -> Load:
    return Load(credits=0, service_ms=service_ms, queued=queued)


EVERY_HALF_SECOND = SlotForecast(slot_s=0.5, answer_s=0.5)


def test_slots_of_all_workers_count_by_the_share_that_this_requester_has() -> None:
    table = LoadBalancer()
    assert table.forecast(0) is None
    for _ in range(2):
        table.update("a", full(500), 0)
    assert table.forecast(0) == EVERY_HALF_SECOND
    for _ in range(2):
        table.update("b", full(250, 3), 0)  # all three are of other requesters: one of four with the next one
    both = table.forecast(0)
    assert (1 / both.slot_s, both.answer_s) == (pytest.approx(2 + 1), 0.25)
    table.update("c", full(0), 0)
    assert table.forecast(0) is None, "nothing is known of a worker that has not measured a call"
    table.remove("c")
    table.update("a", full(500), STALE_S)
    assert table.forecast(STALE_S + 1) == EVERY_HALF_SECOND, "the silent one does not count"


def test_the_time_of_a_models_first_call_alone_forecasts_nothing() -> None:
    table, forecasts_ = LoadBalancer(), []
    for now, service_ms in ((0, 0), (3, 3000), (3.1, 2), (4, 500), (5, 500)):
        table.update("a", full(service_ms), now)
        forecasts_.append(table.forecast(now))
    fast = SlotForecast(slot_s=0.002, answer_s=0.002)
    assert forecasts_ == [None, None, fast, fast, EVERY_HALF_SECOND], "the lower of the last two"


def test_a_worker_that_has_more_samples_than_places_gets_none_for_each_answer() -> None:
    table = LoadBalancer()
    table.update("a", Load(credits=3), 0)
    for _ in range(3):
        table.record_sent("a")
    # it is slow, as its first call has shown
    table.update("a", Load(credits=0, service_ms=1300, queued=3, places=1), 1)
    table.record_answer("a", 2)
    table.record_answer("a", 3)
    assert table.pick(3) is None
    table.record_answer("a", 4)
    assert table.pick(4) == "a"
