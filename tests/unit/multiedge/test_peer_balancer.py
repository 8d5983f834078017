"""The next frame goes to whoever would be done with it first, and to nobody who has no room for it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.messages import Load
from halimede.multiedge.peer_offload import MAX_COMPARED, SAMPLE_SIZE, Balance, has_changed, spare_load


def load(queued: int = 0, service_ms: float = 10.0, credits_: int = 9) -> Load:
    return Load(credits=credits_, service_ms=service_ms, queued=queued)


def known(**peers: Load) -> Balance:
    table = Balance()
    for name, said in peers.items():
        table.update(name, said, 0)
    return table


def chosen(table: Balance, home: Load) -> str | None:
    choice = table.faster_peer(home, 0)
    return choice.worker if choice else None


@pytest.mark.parametrize(
    ("peer", "keeps", "gives_away"),
    [
        (load(), load(queued=0), load(queued=2)),
        (load(queued=2), load(queued=3), load(queued=5)),  # what is known of it is a guess
        (load(service_ms=100), load(queued=9), load(queued=11)),
        (load(service_ms=0), load(queued=0, service_ms=50), load(queued=2, service_ms=50)),
    ],
    ids=[
        "an idle worker keeps its frames and a busy one gives them away",
        "a peer has to be better by a sample",
        "a peer ten times slower gets a frame when ten wait everywhere else",
        "a peer that has answered nothing yet is thought to be as fast as this worker",
    ],
)
def test_a_frame_is_given_away_when_a_peer_would_be_done_first(peer: Load, keeps: Load, gives_away: Load) -> None:
    table = known(a=peer)
    assert chosen(table, keeps) is None
    assert chosen(table, gives_away) == "a"


def test_the_peer_that_would_be_done_first_is_chosen() -> None:
    table = known(a=load(queued=3), b=load(queued=1), c=load(queued=0, service_ms=100))
    assert chosen(table, load(queued=50)) == "b"


def test_a_peer_without_credits_gets_nothing() -> None:
    table = known(a=load(credits_=0))
    assert chosen(table, load(queued=50)) is None
    assert table.pick(0) is None


def test_what_was_sent_from_here_counts_until_the_next_advertisement() -> None:
    table = known(a=load(), b=load(), c=load())
    sent: Counter[str] = Counter()
    for _ in range(9):
        choice = table.faster_peer(load(queued=20), 0)
        table.record_sent(choice.worker)
        sent[choice.worker] += 1
    assert sent == {"a": 3, "b": 3, "c": 3}


def test_an_advertisement_does_not_hide_what_is_still_under_way_from_here() -> None:
    table = known(a=load(), b=load(queued=2))
    for _ in range(4):
        table.record_sent("a")
    table.update("a", load(), 0)  # said before the four were there
    assert chosen(table, load(queued=50)) == "b"


def test_a_long_way_keeps_frames_at_home_and_an_answer_that_waited_long_says_that_its_worker_is_busy() -> None:
    table = known(a=load())
    table.learn("a", reply_ms=510, worker_ms=10)
    assert chosen(table, load(queued=5)) is None
    table = known(a=load(), b=load(queued=3))
    table.learn("a", reply_ms=101, worker_ms=100)
    assert chosen(table, load(queued=50)) == "b"


def test_one_slow_answer_makes_a_way_little_longer_and_a_fast_one_shortens_it() -> None:
    table = known(a=load(service_ms=0))
    for took in (2, 200):
        table.learn("a", reply_ms=took, worker_ms=0)
    choice = table.faster_peer(load(queued=50, service_ms=1), 0)
    assert 10 < choice.ms < 15
    table.learn("a", reply_ms=2, worker_ms=0)
    again = table.faster_peer(load(queued=50, service_ms=1), 0)
    assert again.ms < 9


def test_a_peer_that_says_nonsense_of_its_speed_does_no_harm() -> None:
    table = known(a=load(service_ms=5e-324), b=load(service_ms=1.7e308, queued=5))
    for name in "ab":
        table.learn(name, reply_ms=100, worker_ms=0)
    assert chosen(table, load(queued=50)) == "a"


def test_a_preferred_peer_is_picked_once_and_only_while_it_has_room() -> None:
    table = known(a=load(queued=5), b=load())
    assert chosen(table, load(queued=50)) == "b"
    table.prefer("a")
    assert table.pick(0) == "a"
    assert table.pick(0) == "b"
    table.prefer("a")
    table.record_refusal("a")
    assert table.pick(0) == "b"


def test_no_peer_is_picked_for_a_second_try_that_would_be_slower_than_this_worker() -> None:
    table = known(a=load(), b=load(queued=40))
    assert chosen(table, load(queued=5)) == "a"
    table.record_refusal("a")
    assert table.pick(0) is None


def test_of_many_peers_each_asker_looks_at_a_few_at_random() -> None:
    looked: list[int] = []

    def choose(names: Sequence[str], count: int) -> Sequence[str]:
        looked.append(count)
        return random.sample(names, count)

    table = Balance(choose=choose)
    for number in range(MAX_COMPARED):
        table.update(f"w{number}", load(), 0)
    table.faster_peer(load(queued=9), 0)
    assert not looked
    table.update("one-more", load(), 0)
    found = Counter(chosen(table, load(queued=9)) for _ in range(200))
    assert set(looked) == {SAMPLE_SIZE}
    assert len(found) > MAX_COMPARED


@given(queued=st.integers(0, 500), service_ms=st.floats(0, 10_000), most=st.integers(1, 64))
def test_a_worker_offers_what_it_answers_within_the_horizon(queued: int, service_ms: float, most: int) -> None:
    said = spare_load(load(queued, service_ms), most=most, horizon_s=0.25)
    assert 0 <= said.credits <= most
    assert said.credits == 0 or (queued + said.credits) * service_ms <= 250 or (queued, said.credits) == (0, 1)
    assert queued or said.credits


def test_others_are_told_when_it_would_change_their_choice() -> None:
    assert not has_changed(load(queued=4), load(queued=4))
    assert not has_changed(load(queued=10), load(queued=11))
    assert has_changed(load(queued=0), load(queued=1))
    assert has_changed(load(queued=9, credits_=1), load(queued=9, credits_=0))
