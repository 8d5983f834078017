"""When clients come back: one that lost its connection alone soon, those of a broker that was away not all at once."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect

from halimede.bus.backoff import FIRST_BACKOFF, LAST_BACKOFF, SPREAD, STABLE_AFTER, Backoff
from halimede.bus.connection import ReconnectingBus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Packet
from halimede.bus.transport import Deliver, Transport
from tests.simulated import eventually, simulated

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


def widest(back_off: Backoff) -> float:
    return max(back_off.pause() for _ in range(1000))


def test_pauses_widen_to_a_limit_and_start_small_again_after_a_connection_that_held() -> None:
    back_off, seen = Backoff(random.Random(1)), []
    for _ in range(10_000):
        back_off.ended(STABLE_AFTER / 2)
        if len(seen) < 8:
            seen.append(widest(back_off))
    expected = [min(LAST_BACKOFF, FIRST_BACKOFF * 2**number) for number in range(1, 9)]
    assert all(0.95 * most < found <= most for most, found in zip(expected, seen, strict=True))
    assert widest(back_off) <= LAST_BACKOFF
    back_off.ended(STABLE_AFTER)
    assert widest(back_off) <= 2 * FIRST_BACKOFF


def test_a_broker_that_takes_no_connection_is_given_a_second_at_least_and_one_that_did_is_not() -> None:
    back_off = Backoff(random.Random(1))
    back_off.refused()
    assert 0.95 * SPREAD < widest(back_off) <= SPREAD
    back_off.ended(STABLE_AFTER)
    assert widest(back_off) <= 2 * FIRST_BACKOFF


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
            await eventually(lambda before=round_: bus.stats.connects == before + 2, 2 * FIRST_BACKOFF + 0.05)  # type: ignore[misc]
