"""When clients connect again: soon after a connection was lost, spread out when the broker was away, and who of two
clients with one id gives way.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.bus.connection import ReconnectingBus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import NO_SHARED, Packet
from halimede.bus.reconnect import BrokerReadiness, ClientIdConflict, ReconnectBackoff
from halimede.bus.transport import Deliver, Transport
from tests.simulated import eventually
from tests.unit.bus.test_memory_broker import Always
from tests.worlds import connected

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
FIRST_BACKOFF, LAST_BACKOFF, SPREAD, STABLE_AFTER = 0.2, 5.0, 1.0, 5.0
PAUSE, BRIEF = (20.0, 40.0), 2.0
SETTLED, RETURNED, NEWCOMER, INCUMBENT = 5.0, 2, 3, 6
MOST_UNREADY = 6

CHANCE = random.Random(1)
LEAST, MOST = Always(0.0), Always(1.0)

SHORT = BRIEF / 2


def until_it_gives_way(rivalry: ClientIdConflict, *, takeover: bool = False) -> int:
    """End brief connections until it gives way; return how many that took."""
    for count in range(1, 100):
        if rivalry.pause_after(SHORT, takeover=takeover, chance=CHANCE):
            return count
    raise AssertionError("it never gives way")


def settled() -> ClientIdConflict:
    rivalry = ClientIdConflict()
    assert rivalry.pause_after(SETTLED, takeover=False, chance=CHANCE) == 0
    return rivalry


@pytest.mark.parametrize(("takeover", "newcomer"), [(False, NEWCOMER), (True, 1)], ids=["silence", "the broker's word"])
def test_the_newcomer_gives_way_before_the_one_that_was_there(takeover: bool, newcomer: int) -> None:
    assert until_it_gives_way(ClientIdConflict(), takeover=takeover) == newcomer
    assert until_it_gives_way(settled(), takeover=takeover) == INCUMBENT > 2 * newcomer - 1


def test_a_proof_sends_a_newcomer_away_and_no_settled_client() -> None:
    newcomer, incumbent = ClientIdConflict(), settled()
    assert newcomer.must_disconnect()
    assert newcomer.pause_after(SHORT, takeover=False, chance=CHANCE) >= PAUSE[0]
    assert not incumbent.must_disconnect()
    assert incumbent.pause_after(SHORT, takeover=False, chance=CHANCE) == 0


@pytest.mark.parametrize(
    ("share", "explained", "away"),
    [(True, False, False), (False, True, False), (False, False, True)],
    ids=["a session goes round", "we end them ourselves", "the broker is away"],
)
def test_connections_that_end_for_another_reason_say_nothing_of_a_rival(
    share: bool, explained: bool, away: bool
) -> None:
    rivalry = ClientIdConflict(share=share)
    for number in range(50):
        takeover = share and number % 2 == 0
        assert rivalry.pause_after(SHORT, takeover=takeover, explained=explained, chance=CHANCE) == 0
        if away:
            rivalry.record_failure()
    assert not rivalry.suspected


def test_only_connections_of_less_than_two_seconds_are_brief_and_those_of_five_settle_a_client() -> None:
    for lasted, brief in ((1.99, True), (2.0, False), (4.99, False)):
        rivalry = ClientIdConflict()
        pauses = [rivalry.pause_after(lasted, takeover=False, chance=CHANCE) for _ in range(10)]
        assert any(pauses) is brief
        if not brief:
            assert until_it_gives_way(rivalry) == NEWCOMER


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
            pause = clients[holder].pause_after(now - since, takeover=takeover, chance=chance)
            comes[holder] = now + (pause or chance.uniform(0.01, 0.4))
        holder, since = number, now
    # one change now and then: the one that gave way has to find out whether the other is still there
    assert sum(connects) < 3600 / PAUSE[0] * 2 + 40


CLIENTS, AWAY_S = 1000, 0.3


class Waiting(ReconnectingBus):
    """A client of a broker that takes no connection before a time of the loop."""

    def __init__(self, number: int, until: float) -> None:
        super().__init__(
            f"lc.n{number}", None, where="here", chance=random.Random(number), durable=False, receive_maximum=1
        )
        self.until = until
        self.came_at = 0.0

    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
        now = asyncio.get_running_loop().time()
        if now >= self.until:
            self.came_at = now
            await asyncio.Event().wait()
        raise ConnectionRefusedError("nobody listens")


def pause_range(*events: Callable[[ReconnectBackoff], None]) -> tuple[float, float]:
    """Return the least and the most seconds of the pause after these events."""
    pauses = []
    for chance in (LEAST, MOST):
        back_off = ReconnectBackoff(chance)
        for event in events:
            event(back_off)
        pauses.append(round(back_off.pause(), 3))
    return pauses[0], pauses[1]


def refused(back_off: ReconnectBackoff) -> None:
    back_off.record_failure()


def ended(lasted: float) -> Callable[[ReconnectBackoff], None]:
    return lambda back_off: back_off.record_end(lasted)


def unready(times: int) -> Callable[[ReconnectBackoff], None]:
    return lambda back_off: back_off.record_unready(times)


BRIEF_END, STABLE_END = ended(STABLE_AFTER - 0.01), ended(STABLE_AFTER)


@pytest.mark.parametrize(
    ("events", "least", "most"),
    [
        ([], 0, 0),
        ([STABLE_END], 0, FIRST_BACKOFF),
        ([BRIEF_END], 0, FIRST_BACKOFF),
        ([BRIEF_END] * 2, 0, 0.4),
        ([BRIEF_END] * 5, 0, 3.2),
        ([BRIEF_END] * 6, 0, LAST_BACKOFF),
        ([BRIEF_END] * 10_000, 0, LAST_BACKOFF),
        ([BRIEF_END] * 6 + [STABLE_END], 0, FIRST_BACKOFF),
        ([refused], 0, SPREAD),
        ([refused] * 3, 0, SPREAD),
        ([refused] * 4, 0, 1.6),
        ([refused, BRIEF_END], 0, 0.4),
        ([refused, STABLE_END], 0, FIRST_BACKOFF),
        ([refused] * 6 + [unready(1)], 0.1, 0.2),
        ([unready(6)], 2.5, LAST_BACKOFF),
        ([unready(3), STABLE_END], 0, FIRST_BACKOFF),
        ([unready(3), refused], 0, 1.6),
    ],
)
def test_pauses_widen_and_depend_on_how_connections_ended(
    events: list[Callable[[ReconnectBackoff], None]], least: float, most: float
) -> None:
    assert pause_range(*events) == (least, most)


@pytest.mark.parametrize(
    ("takeover", "ends", "multiples"), [(True, 1, (1, 2, 4, 4)), (False, RETURNED, (1, 2, 2, 2))], ids=["proof", "none"]
)
def test_a_client_that_gives_way_again_pauses_longer_up_to_a_bound(
    takeover: bool, ends: int, multiples: tuple[int, ...]
) -> None:
    for chance, seconds in ((LEAST, PAUSE[0]), (MOST, PAUSE[1])):
        rivalry, pauses = ClientIdConflict(), list[float]()
        for _ in range(20):
            pauses.append(rivalry.pause_after(SHORT, takeover=takeover, chance=chance))
        assert [pause for pause in pauses if pause][:4] == [multiple * seconds for multiple in multiples]
        assert pauses[-ends:].count(0) == ends - 1
        assert rivalry.suspected
        assert rivalry.pause_after(SETTLED, takeover=takeover, chance=chance) == 0
        for _ in range(INCUMBENT - 1 - takeover):
            assert rivalry.pause_after(SHORT, takeover=takeover, chance=chance) == 0
        assert rivalry.pause_after(SHORT, takeover=takeover, chance=chance) == seconds


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


async def test_one_that_lost_its_connection_alone_is_back_at_once() -> None:
    async with connected(MemoryBus("edge", MemoryBroker())) as bus:
        for connects in range(2, 12):
            await asyncio.sleep(60)
            bus.renew()
            await eventually(lambda count=connects: bus.stats.connects == count, FIRST_BACKOFF + 0.05)  # type: ignore[misc]


#: the least reason code of a refusal
DENIED = 0x80


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
        back_off.record_failure()
    pauses = []
    for times in range(1, MOST_UNREADY + 1):
        back_off.record_unready(times)
        pauses.append(back_off.pause())
    assert pauses[0] <= FIRST_BACKOFF
    assert sum(pauses[:-1]) > 3.0
    assert sum(pauses) > 5.0
