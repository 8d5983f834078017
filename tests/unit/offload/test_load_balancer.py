"""Hard samples go to the better of two random workers, and to none that cannot take them."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from halimede.messages import Load
from halimede.offload.load_balancer import MAX_WORKERS, STALE_S, LoadBalancer


def load(credits_: int, service_ms: float = 1.0) -> Load:
    return Load(credits=credits_, service_ms=service_ms)


def known(credits_: int, sent: int = 0) -> LoadBalancer:
    """Return a table that knows the worker a, which was sent so many samples."""
    table = LoadBalancer()
    table.update("a", load(credits_), 0)
    for _ in range(sent):
        table.record_sent("a")
    return table


def test_more_credits_win_and_the_shorter_service_time_breaks_the_tie() -> None:
    table = LoadBalancer(choose=lambda names, count: list(names)[:count])
    table.update("a", load(3, 9.0), 0)
    table.update("b", load(5, 9.0), 0)
    assert table.pick(0) == "b"
    table.update("a", load(5, 2.0), 0)
    assert table.pick(0) == "a"


def test_a_worker_without_credits_is_known_but_not_picked() -> None:
    table = known(1, sent=1)
    assert table.pick(0) is None
    assert table.is_up(0)
    table.record_answer("a")
    assert table.pick(0) == "a"


def test_an_advertisement_replaces_what_was_counted_here() -> None:
    table = known(1)
    table.record_refusal("a")
    assert table.pick(0) is None
    table.update("a", load(2), 1)
    assert table.pick(1) == "a"


def test_what_is_on_its_way_there_is_not_advertised_yet() -> None:
    table = known(3, sent=3)
    table.update("a", Load(credits=2, service_ms=1.0, queued=1), 0.1)
    assert table.pick(0.1) is None
    table.record_answer("a", 0.2)
    assert table.pick(0.2) == "a"


def test_a_sample_given_up_stops_a_worker_only_if_it_has_answered_nothing_meanwhile() -> None:
    table = known(3, sent=3)
    table.record_answer("a", 1.0)
    table.record_silence("a", since=0.5)
    assert table.pick(1.0) == "a"
    table.record_silence("a", since=1.5)
    assert table.pick(1.0) is None


def test_a_cleared_worker_is_forgotten() -> None:
    table = known(1)
    table.remove("a")
    table.remove("a")
    assert table.pick(0) is None
    assert not table.is_up(0)


def test_a_silent_worker_is_taken_for_gone_and_new_again_when_it_speaks() -> None:
    table = LoadBalancer()
    assert table.update("a", load(1), 0)
    assert not table.update("a", load(1), STALE_S)
    late = 2 * STALE_S + 0.1
    assert table.pick(late) is None
    assert not table.is_up(late)
    assert table.update("a", load(1), late)


def test_made_up_names_cannot_fill_memory() -> None:
    table = LoadBalancer()
    for i in range(MAX_WORKERS):
        table.update(f"w{i}", load(0), 0)
    assert not table.update("one-more", load(9), 1)
    assert table.pick(1) is None
    assert table.update("one-more", load(9), STALE_S + 1)
    assert table.pick(STALE_S + 1) == "one-more"


def test_the_fast_worker_gets_most_of_the_work() -> None:
    table = LoadBalancer(choose=random.Random(1).sample)
    for name in "abcd":
        table.update(name, load(8 if name == "a" else 2), 0)
    picked = Counter(table.pick(0) for _ in range(400))
    assert picked["a"] > max(picked[name] for name in "bcd")


@given(
    st.lists(
        st.tuples(st.sampled_from(["record_sent", "record_answer", "record_refusal", "remove"]), st.sampled_from("ab"))
    )
)
def test_credits_never_fall_below_none(steps: list[tuple[str, str]]) -> None:
    table = known(2)
    for step, worker in steps:
        getattr(table, step)(worker)
    assert table.pick(0) in {None, "a"}
