"""When clients connect again: soon after a connection was lost, spread out when the broker was away, and who of two
clients with one id gives way.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect

from hypothesis import given
from hypothesis import strategies as st

from halimede.bus.connection import ReconnectingBus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import NO_SHARED, Packet
from halimede.bus.reconnect import (
    BRIEF,
    FIRST_BACKOFF,
    INCUMBENT,
    LAST_BACKOFF,
    LONGEST,
    MOST_UNREADY,
    NEWCOMER,
    PAUSE,
    RETURNED,
    SETTLED,
    SPREAD,
    STABLE_AFTER,
    UNPROVEN,
    BrokerReadiness,
    ClientIdConflict,
    ReconnectBackoff,
)
from halimede.bus.transport import Deliver, Transport
from tests.simulated import eventually, simulated

CHANCE = random.Random(1)
SHORT = BRIEF / 2


def until_it_gives_way(rivalry: ClientIdConflict, *, takeover: bool = False) -> int:
    """End brief connections until it gives way; return how many that took."""
    for count in range(1, 100):
        if rivalry.ended(SHORT, takeover=takeover, chance=CHANCE):
            return count
    raise AssertionError("it never gives way")


def settled() -> ClientIdConflict:
    rivalry = ClientIdConflict()
    assert rivalry.ended(SETTLED, takeover=False, chance=CHANCE) == 0
    return rivalry


def test_the_newcomer_gives_way_before_the_one_that_was_there() -> None:
    assert until_it_gives_way(ClientIdConflict()) == NEWCOMER
    assert until_it_gives_way(settled()) == INCUMBENT > 2 * NEWCOMER - 1


def test_with_the_brokers_word_a_newcomer_gives_way_at_once_and_the_other_still_does_not() -> None:
    assert until_it_gives_way(ClientIdConflict(), takeover=True) == 1
    assert until_it_gives_way(settled(), takeover=True) == INCUMBENT


def test_a_proof_sends_a_newcomer_away_and_no_settled_client() -> None:
    newcomer, incumbent = ClientIdConflict(), settled()
    assert newcomer.proven()
    assert newcomer.ended(SHORT, takeover=False, chance=CHANCE) >= PAUSE[0]
    assert not incumbent.proven()
    assert incumbent.ended(SHORT, takeover=False, chance=CHANCE) == 0


def test_one_that_came_back_gives_way_sooner_and_for_longer_up_to_a_bound() -> None:
    rivalry = ClientIdConflict()
    until_it_gives_way(rivalry)
    for factor in (UNPROVEN, UNPROVEN, UNPROVEN):
        for _ in range(RETURNED - 1):
            assert rivalry.ended(SHORT, takeover=False, chance=CHANCE) == 0
        pause = rivalry.ended(SHORT, takeover=False, chance=CHANCE)
        assert factor * PAUSE[0] <= pause <= factor * PAUSE[1]
    assert rivalry.suspected
    rivalry.ended(SETTLED, takeover=False, chance=CHANCE)
    assert until_it_gives_way(rivalry) == INCUMBENT


def test_with_the_brokers_word_it_gives_way_longer() -> None:
    rivalry = ClientIdConflict()
    for factor in (1, 2, LONGEST, LONGEST):
        assert factor * PAUSE[0] <= rivalry.ended(SHORT, takeover=True, chance=CHANCE) <= factor * PAUSE[1]


def test_connections_that_we_end_ourselves_say_nothing_of_a_rival() -> None:
    rivalry = ClientIdConflict()
    for _ in range(50):
        assert rivalry.ended(SHORT, takeover=False, explained=True, chance=CHANCE) == 0
    assert not rivalry.suspected


def test_a_broker_that_is_away_is_no_rival() -> None:
    rivalry = ClientIdConflict()
    for _ in range(50):
        rivalry.ended(SHORT, takeover=False, chance=CHANCE)
        rivalry.refused()
    assert not rivalry.suspected


@given(st.integers(0, 2**32), st.booleans(), st.tuples(st.booleans(), st.booleans()))
def test_whatever_two_have_seen_before_they_do_not_chase_each_other(
    seed: int, takeover: bool, were_settled: tuple[bool, bool]
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
            pause = clients[holder].ended(now - since, takeover=takeover, chance=chance)
            comes[holder] = now + (pause or chance.uniform(0.01, 0.4))
        holder, since = number, now
    # one change now and then: the one that gave way has to find out whether the other is still there
    assert sum(connects) < 3600 / PAUSE[0] * 2 + 40


def test_a_session_that_goes_round_makes_no_rivals() -> None:
    rivalry = ClientIdConflict(share=True)
    for takeover in (True, False) * 20:
        assert rivalry.ended(SHORT, takeover=takeover, chance=CHANCE) == 0
    assert not rivalry.suspected


CLIENTS, AWAY_S = 1000, 0.3


class Waiting(ReconnectingBus):
    """A client of a broker that takes no connection before a time of the loop."""

    def __init__(self, number: int, until: float) -> None:
        super().__init__(f"lc.n{number}", None, where="here", chance=random.Random(number))
        self.until = until
        self.came_at = 0.0

    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
        now = asyncio.get_running_loop().time()
        if now >= self.until:
            self.came_at = now
            await asyncio.Event().wait()
        raise ConnectionRefusedError("nobody listens")


def widest(back_off: ReconnectBackoff) -> float:
    return max(back_off.pause() for _ in range(1000))


def test_pauses_widen_to_a_limit_and_start_small_again_after_a_connection_that_held() -> None:
    back_off, seen = ReconnectBackoff(random.Random(1)), []
    for _ in range(10_000):
        back_off.ended(STABLE_AFTER / 2)
        if len(seen) < 8:
            seen.append(widest(back_off))
    expected = [min(LAST_BACKOFF, FIRST_BACKOFF * 2**number) for number in range(8)]
    assert all(0.95 * most < found <= most for most, found in zip(expected, seen, strict=True))
    assert widest(back_off) <= LAST_BACKOFF
    back_off.ended(STABLE_AFTER)
    assert widest(back_off) <= FIRST_BACKOFF


def test_a_broker_that_takes_no_connection_is_given_a_second_at_least_and_one_that_did_is_not() -> None:
    back_off = ReconnectBackoff(random.Random(1))
    back_off.refused()
    assert 0.95 * SPREAD < widest(back_off) <= SPREAD
    back_off.ended(STABLE_AFTER)
    assert widest(back_off) <= FIRST_BACKOFF


@simulated
async def test_clients_of_a_broker_that_was_away_come_back_spread_over_a_second() -> None:
    clients = [Waiting(number, until=AWAY_S) for number in range(CLIENTS)]
    for client in clients:
        await client.__aenter__()
    await eventually(lambda: all(client.came_at for client in clients), 10)
    times = sorted(client.came_at for client in clients)
    busiest = max(bisect(times, at + 0.1) - number for number, at in enumerate(times))
    assert busiest < 0.18 * CLIENTS
    assert times[CLIENTS // 2] - AWAY_S < 0.6 * SPREAD, "no node is made slow by it"
    assert times[-1] - AWAY_S < 3 * SPREAD
    for client in clients:
        await client.__aexit__(None, None, None)


@simulated
async def test_one_that_lost_its_connection_alone_is_back_at_once() -> None:
    broker = MemoryBroker()
    async with MemoryBus("edge", broker) as bus:
        await bus.wait_connected(10)
        for round_ in range(10):
            await asyncio.sleep(60)
            bus.renew()
            await eventually(lambda before=round_: bus.stats.connects == before + 2, FIRST_BACKOFF + 0.05)  # type: ignore[misc]


DENIED = 0x87


def refusals(readiness: BrokerReadiness, answers: dict[str, int]) -> int:
    """Return how many connections in succession must end because of these answers."""
    for count in range(100):
        if not readiness.must_end(answers):
            return count
    raise AssertionError("no connection lives on")


def test_a_broker_that_grants_nothing_gets_six_more_connections_at_every_reconnect() -> None:
    readiness = BrokerReadiness()
    for _ in range(2):
        assert refusals(readiness, {"a": DENIED, "birth": DENIED}) == MOST_UNREADY == 6


def test_what_the_last_connection_had_is_asked_for_again_until_its_refusal_is_the_rule() -> None:
    readiness = BrokerReadiness()
    assert refusals(readiness, {"a": 0, "b": 1}) == 0
    assert refusals(readiness, {"a": 0, "b": DENIED}) == MOST_UNREADY
    assert refusals(readiness, {"a": 0, "b": DENIED}) == 0
    assert refusals(readiness, {"a": DENIED, "b": DENIED}) == MOST_UNREADY


def test_a_filter_that_was_never_granted_and_a_feature_that_is_missing_end_no_connection() -> None:
    readiness = BrokerReadiness()
    assert refusals(readiness, {"a": 0, "b": DENIED}) == 0
    assert refusals(readiness, {"a": NO_SHARED}) == 0
    assert refusals(readiness, {}) == 0


@given(st.integers())
def test_a_broker_that_is_not_ready_gets_more_than_five_seconds_and_is_tried_soon(seed: int) -> None:
    back_off = ReconnectBackoff(random.Random(seed))
    for _ in range(20):
        back_off.refused()
    pauses = []
    for times in range(1, MOST_UNREADY + 1):
        back_off.unready(times)
        pauses.append(back_off.pause())
    assert pauses[0] <= FIRST_BACKOFF
    assert sum(pauses[:-1]) > 3.0
    assert sum(pauses) > 5.0
