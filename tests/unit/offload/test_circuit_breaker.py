"""The breaker opens when nobody answers, asks now and then, and closes at the first sign of life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.offload.limits import CircuitBreaker, State


def opened(now: float = 0.0) -> CircuitBreaker:
    circuit = CircuitBreaker()
    circuit.nobody(now)
    return circuit


def test_it_opens_at_once_when_nobody_listens_whatever_comes_of_requests_before_that() -> None:
    circuit = opened()
    assert circuit.state is State.OPEN
    assert not circuit.admit(0.5)
    circuit.timed_out(0.9)
    circuit.nobody(0.9)
    assert circuit.admit(1.0)


def test_it_opens_after_timeouts_in_a_row_only() -> None:
    circuit = CircuitBreaker(failures=3)
    for _ in range(2):
        circuit.timed_out(0)
    circuit.succeeded()
    for _ in range(2):
        circuit.timed_out(0)
    assert circuit.admit(0)
    circuit.timed_out(0)
    assert not circuit.admit(0)


def test_a_timeout_while_others_were_answered_does_not_count() -> None:
    circuit = CircuitBreaker(failures=2)
    circuit.succeeded(5.0)
    for _ in range(10):
        circuit.timed_out(6.0, since=4.5)
    assert circuit.state is State.CLOSED
    for _ in range(2):
        circuit.timed_out(7.0, since=5.5)
    assert circuit.state is State.OPEN


def test_a_probe_that_times_out_opens_it_again_whoever_was_answered_before() -> None:
    circuit = CircuitBreaker(failures=1)
    circuit.succeeded(5.0)
    circuit.timed_out(7.0, since=6.0)
    assert circuit.admit(8.0)
    circuit.timed_out(9.0, since=4.0)
    assert circuit.state is State.OPEN


def test_one_probe_goes_through_after_the_back_off_and_its_success_closes() -> None:
    circuit = opened()
    assert circuit.admit(1.0)
    assert circuit.state is State.HALF_OPEN
    assert not circuit.admit(1.0)
    circuit.succeeded()
    assert circuit.admit(1.0)
    assert circuit.state is State.CLOSED


def test_a_failed_probe_doubles_the_back_off_up_to_its_limit() -> None:
    circuit = CircuitBreaker(retry_s=1.0, max_retry_s=3.0)
    now, waits = 0.0, []
    circuit.nobody(now)
    for _ in range(4):
        began = now
        while not circuit.admit(now):
            now += 0.5
        waits.append(now - began)
        circuit.timed_out(now)
    assert waits == [1.0, 2.0, 3.0, 3.0]


def test_an_abandoned_probe_leaves_its_place_to_the_next_request() -> None:
    circuit = opened()
    assert circuit.admit(1.0)
    circuit.abandoned(1.2)
    assert circuit.state is State.OPEN
    assert circuit.admit(1.2)


@pytest.mark.parametrize(
    ("change", "state"),
    [("succeeded", State.CLOSED), ("reconsider", State.HALF_OPEN)],
    ids=["a worker appears", "the connection changes"],
)
def test_the_next_request_goes_out_when_something_has_changed(change: str, state: State) -> None:
    circuit = opened()
    getattr(circuit, change)()
    assert circuit.admit(0.1)
    assert circuit.state is state


@pytest.mark.parametrize("state", list(State))
def test_abandoning_changes_nothing_but_a_probe(state: State) -> None:
    circuit = CircuitBreaker()
    circuit.state = state
    circuit.abandoned(0)
    assert circuit.state is (State.OPEN if state is State.HALF_OPEN else state)


@given(st.lists(st.sampled_from(["admit", "nobody", "timed_out", "abandoned"]), max_size=60))
def test_it_never_stays_open_for_ever(steps: list[str]) -> None:
    circuit, now = CircuitBreaker(), 0.0
    for step in steps:
        getattr(circuit, step)(now)
        now += 0.3
    circuit.abandoned(now)
    assert circuit.admit(now + 31)


@pytest.mark.parametrize("now", [0.5, 1.0])
@pytest.mark.parametrize("state", list(State))
def test_whether_it_would_refuse_can_be_seen_without_asking(state: State, now: float) -> None:
    circuit = opened()
    circuit.state = state
    refuses = circuit.is_refusing(now)
    assert circuit.state is state
    assert circuit.admit(now) is not refuses
