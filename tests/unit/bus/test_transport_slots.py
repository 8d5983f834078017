"""Slots: never more are taken than there are, who waits gets one in order, and a cancelled wait loses none."""

from __future__ import annotations

import asyncio
import random

import pytest

from halimede.bus.transport import Slots
from tests.waiting import patience


async def test_a_slot_that_is_given_back_goes_to_the_first_who_waits_and_to_nobody_else() -> None:
    slots, order = Slots(1), []

    async def wait(name: str) -> None:
        await slots.acquire()
        order.append(name)

    assert slots.take()
    tasks = [asyncio.create_task(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    slots.release()
    assert not slots.take()  # it is a's already
    await asyncio.sleep(0)
    assert order == ["a"]
    slots.release()
    slots.release()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    slots.release()
    assert slots.free == 1


@pytest.mark.parametrize("handed_over", [False, True])
async def test_who_stops_waiting_leaves_the_slot_to_the_next(handed_over: bool) -> None:
    slots = Slots(1)
    assert slots.take()
    first, second = (asyncio.create_task(slots.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    if handed_over:
        slots.release()
    first.cancel()
    if not handed_over:
        slots.release()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(patience(1)):
        await second
    assert not slots.free
    slots.release()
    assert slots.free == 1


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_none_is_lost_and_none_is_made(seed: int) -> None:
    chance, count = random.Random(seed), 3
    slots, held, tasks = Slots(count), 0, set()

    async def hold() -> None:
        nonlocal held
        if chance.random() < 0.3:
            if not slots.take():
                return
        else:
            await slots.acquire()
        held += 1
        assert held <= count
        try:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            held -= 1
            slots.release()

    for _ in range(300):
        task = asyncio.create_task(hold())
        tasks.add(task)
        if chance.random() < 0.4:
            chance.choice(list(tasks)).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    async with asyncio.timeout(patience(5)):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not [task for task in tasks if not task.cancelled() and task.exception()]
    assert slots.free == count
