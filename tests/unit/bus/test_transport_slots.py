"""Slots: never more are taken than there are, who waits gets one in order, and a cancelled wait loses none."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from halimede.bus.message import Packet
from halimede.bus.transport import (
    Ended,
    PendingAck,
    Slots,
    Transport,
)
from halimede.errors import DisconnectedError
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
    steps = (slots.release, first.cancel) if handed_over else (first.cancel, slots.release)
    for step in steps:
        step()
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
    slots, in_use, tasks = Slots(count), 0, set()

    async def hold() -> None:
        nonlocal in_use
        if chance.random() < 0.3:
            if not slots.take():
                return
        else:
            await slots.acquire()
        in_use += 1
        assert in_use <= count
        try:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            in_use -= 1
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


class Sending(Transport):
    """A connection whose publishes fail, or are answered at once or later."""

    def __init__(self, answer: PendingAck | Exception) -> None:
        super().__init__(1000, 1)
        self.answer = answer
        assert self.slots.take()

    def publish(self, packet: Packet) -> PendingAck:
        if isinstance(self.answer, Exception):
            raise self.answer
        self._answers[1] = self.answer
        return self.answer

    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        raise NotImplementedError

    def unsubscribe(self, filter_: str) -> PendingAck:
        raise NotImplementedError

    async def close(self, *, keep: bool = False) -> None: ...

    def abort(self, reason: str) -> None:
        self.end(Ended(reason))


@pytest.mark.parametrize("size", [0, 7])
async def test_a_publish_has_its_slot_and_its_bytes_until_it_is_answered_once(size: int) -> None:
    link = Sending(PendingAck())
    answer = link.publish_in_slot(Packet("t", b""), size)
    assert (link.slots.free, link.owed) == (0, max(size, 1))
    link._answer(1, 0x10)
    link._answer(1, 0)
    assert (await answer, link.slots.free, link.owed) == (0x10, 1, 0)


async def test_a_publish_that_fails_or_is_answered_at_once_has_no_slot() -> None:
    answered = PendingAck()
    answered.set_result(0)
    for outcome in (answered, ValueError("too long")):
        link = Sending(outcome)
        with contextlib.suppress(ValueError):
            link.publish_in_slot(Packet("t", b""), 7)
        assert (link.slots.free, link.owed) == (1, 0)


async def test_the_end_of_a_connection_fails_what_waits_and_what_comes_once() -> None:
    link = Sending(PendingAck())
    answer = link.publish_in_slot(Packet("t", b""), 7)
    link.abort("gone")
    link.abort("again")
    for failed in (answer, link._expect(2)):
        with pytest.raises(DisconnectedError, match="the connection was lost: gone"):
            await failed
    assert (link.ended.result().reason, link.slots.free, link.owed) == ("gone", 1, 0)
