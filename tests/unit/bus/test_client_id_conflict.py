"""Who of two clients with one id gives way: decided from what each sees of its own connections alone."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from halimede.bus.client_id_conflict import (
    BRIEF,
    INCUMBENT,
    LONGEST,
    NEWCOMER,
    PAUSE,
    RETURNED,
    SETTLED,
    UNPROVEN,
    ClientIdConflict,
)

CHANCE = random.Random(1)
SHORT = BRIEF / 2


def until_it_gives_way(rivalry: ClientIdConflict, *, told: bool = False) -> int:
    """End brief connections until it gives way; return how many that took."""
    for count in range(1, 100):
        if rivalry.ended(SHORT, told=told, chance=CHANCE):
            return count
    raise AssertionError("it never gives way")


def settled() -> ClientIdConflict:
    rivalry = ClientIdConflict()
    assert rivalry.ended(SETTLED, told=False, chance=CHANCE) == 0
    return rivalry


def test_the_newcomer_gives_way_before_the_one_that_was_there() -> None:
    assert until_it_gives_way(ClientIdConflict()) == NEWCOMER
    assert until_it_gives_way(settled()) == INCUMBENT > 2 * NEWCOMER - 1


def test_with_the_brokers_word_a_newcomer_gives_way_at_once_and_the_other_still_does_not() -> None:
    assert until_it_gives_way(ClientIdConflict(), told=True) == 1
    assert until_it_gives_way(settled(), told=True) == INCUMBENT


def test_a_proof_sends_a_newcomer_away_and_no_settled_client() -> None:
    newcomer, incumbent = ClientIdConflict(), settled()
    assert newcomer.proven()
    assert newcomer.ended(SHORT, told=False, chance=CHANCE) >= PAUSE[0]
    assert not incumbent.proven()
    assert incumbent.ended(SHORT, told=False, chance=CHANCE) == 0


def test_one_that_came_back_gives_way_sooner_and_for_longer_up_to_a_bound() -> None:
    rivalry = ClientIdConflict()
    until_it_gives_way(rivalry)
    for factor in (UNPROVEN, UNPROVEN, UNPROVEN):
        for _ in range(RETURNED - 1):
            assert rivalry.ended(SHORT, told=False, chance=CHANCE) == 0
        pause = rivalry.ended(SHORT, told=False, chance=CHANCE)
        assert factor * PAUSE[0] <= pause <= factor * PAUSE[1]
    assert rivalry.suspected
    rivalry.ended(SETTLED, told=False, chance=CHANCE)
    assert until_it_gives_way(rivalry) == INCUMBENT


def test_with_the_brokers_word_it_gives_way_longer() -> None:
    rivalry = ClientIdConflict()
    for factor in (1, 2, LONGEST, LONGEST):
        assert factor * PAUSE[0] <= rivalry.ended(SHORT, told=True, chance=CHANCE) <= factor * PAUSE[1]


def test_connections_that_we_end_ourselves_say_nothing_of_a_rival() -> None:
    rivalry = ClientIdConflict()
    for _ in range(50):
        assert rivalry.ended(SHORT, told=False, explained=True, chance=CHANCE) == 0
    assert not rivalry.suspected


def test_a_broker_that_is_away_is_no_rival() -> None:
    rivalry = ClientIdConflict()
    for _ in range(50):
        rivalry.ended(SHORT, told=False, chance=CHANCE)
        rivalry.refused()
    assert not rivalry.suspected


@given(st.integers(0, 2**32), st.booleans(), st.tuples(st.booleans(), st.booleans()))
def test_whatever_two_have_seen_before_they_do_not_chase_each_other(
    seed: int, told: bool, were_settled: tuple[bool, bool]
) -> None:
    """A broker that lets in whoever comes and ends the other's connection, for an hour."""
    chance = random.Random(seed)
    clients = [settled() if was else ClientIdConflict() for was in were_settled]
    comes = [0.0, chance.uniform(0, 10)]
    holder, since, connects, now = -1, 0.0, [0, 0], 0.0
    while now < 3600:
        number = 0 if comes[0] <= comes[1] else 1
        now = comes[number]
        if now >= 3600:
            break
        connects[number] += 1
        comes[number] = float("inf")
        if holder == 1 - number:
            pause = clients[holder].ended(now - since, told=told, chance=chance)
            comes[holder] = now + (pause or chance.uniform(0.01, 0.4))
        holder, since = number, now
    # one change now and then: the one that gave way has to find out whether the other is still there
    assert sum(connects) < 3600 / PAUSE[0] * 2 + 40


def test_a_session_that_goes_round_makes_no_rivals() -> None:
    rivalry = ClientIdConflict(share=True)
    for told in (True, False) * 20:
        assert rivalry.ended(SHORT, told=told, chance=CHANCE) == 0
    assert not rivalry.suspected
