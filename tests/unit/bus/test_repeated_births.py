"""Births that are published once more some seconds after each connection: not by all clients at the same time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Presence
from tests.contract.test_unready_broker import Repeated
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
REPEAT_BIRTH_S, REPEAT_SHARES = 20.0, (0.5, 1.5)


async def test_clients_of_a_restarted_broker_repeat_their_births_late_and_spread() -> None:
    broker, loop, names = MemoryBroker(), asyncio.get_running_loop(), [f"n{number}" for number in range(30)]
    births_s: dict[str, list[float]] = {name: [] for name in names}

    async def on_presence(delivery: Delivery[Presence]) -> None:
        if delivery.body.online:
            births_s[delivery.body.node].append(loop.time())

    async with MemoryBus("gm", broker) as gm, AsyncExitStack() as stack:
        await gm.subscribe(topics.PRESENCE.filter(), on_presence)
        for name in names:
            await stack.enter_async_context(MemoryBus(name, broker, Repeated(name)))
        within_s = REPEAT_BIRTH_S * REPEAT_SHARES[1] + 1
        await eventually(lambda: all(len(times) == 2 for times in births_s.values()), within_s)
    pauses_s = sorted(second - first for first, second in births_s.values())
    assert pauses_s[0] >= REPEAT_BIRTH_S * REPEAT_SHARES[0]
    assert pauses_s[-1] - pauses_s[0] > REPEAT_BIRTH_S / 2
