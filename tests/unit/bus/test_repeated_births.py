"""Births that are published once more some seconds after each connection: not by all clients at the same time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.connection import REPEAT_BIRTH_S, REPEAT_SHARES
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Presence
from tests.contract.test_unready_broker import Repeated
from tests.simulated import eventually, simulated

CLIENTS = 30


@simulated
async def test_clients_of_a_restarted_broker_repeat_their_births_late_and_spread() -> None:
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    births_s: defaultdict[str, list[float]] = defaultdict(list)

    async def on_presence(delivery: Delivery[Presence]) -> None:
        if delivery.body.online:
            births_s[delivery.body.node].append(loop.time())

    async with MemoryBus("gm", broker) as gm, AsyncExitStack() as stack:
        await gm.subscribe(topics.PRESENCE.filter(), on_presence)
        for number in range(CLIENTS):
            await stack.enter_async_context(MemoryBus(f"n{number}", broker, Repeated(f"n{number}")))
        within_s = REPEAT_BIRTH_S * REPEAT_SHARES[1] + 1
        await eventually(lambda: len(births_s) == CLIENTS and all(len(t) == 2 for t in births_s.values()), within_s)
    pauses_s = sorted(second - first for first, second in births_s.values())
    assert pauses_s[0] >= REPEAT_BIRTH_S * REPEAT_SHARES[0]
    assert pauses_s[-1] - pauses_s[0] > REPEAT_BIRTH_S / 2
