"""Whether a message without a subscriber is sent again: for whom, from when, and until when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.bus.subscriber_return import FRAME_RETURN_S, SubscriberReturn

pytestmark = pytest.mark.simulated

WAIT_S = 10.0


@pytest.mark.parametrize(
    ("only_after_reconnect", "messages"),
    [
        # seconds, number of the connection, whether there was a subscriber; whether to send again
        (False, [(0, 1, False, False), (1, 1, False, False)]),
        (False, [(0, 1, True, False), (1, 1, False, True), (10.9, 2, False, True), (11, 2, False, False)]),
        (False, [(0, 1, True, False), (1, 1, False, True), (11, 1, False, False), (12, 1, False, False)]),
        (False, [(0, 1, True, False), (1, 1, False, True), (2, 1, True, False), (3, 1, False, True)]),
        (False, [(0, 1, True, False), (5, 1, True, False), (6, 1, False, True), (15.9, 1, False, True)]),
        (True, [(0, 1, True, False), (1, 1, False, False), (2, 2, False, True), (11.9, 3, False, True)]),
        (True, [(0, 1, True, False), (2, 2, False, True), (12, 3, False, False), (13, 4, False, False)]),
        (True, [(0, 1, True, False), (1, 2, False, True), (2, 2, True, False), (3, 2, False, False)]),
        (True, [(0, 1, False, False), (1, 2, False, False)]),
    ],
)
async def test_a_message_waits_for_subscribers_that_were_there(
    only_after_reconnect: bool, messages: list[tuple[float, int, bool, bool]]
) -> None:
    bus: Any = SimpleNamespace(stats=SimpleNamespace(connects=0))
    subscribers, loop = (
        SubscriberReturn(bus, WAIT_S, only_after_reconnect=only_after_reconnect),
        asyncio.get_running_loop(),
    )
    began = loop.time()
    for at, bus.stats.connects, has_subscriber, again in messages:
        await asyncio.sleep(began + at - loop.time())
        assert subscribers.must_resend(has_subscriber=has_subscriber) is again


async def test_subscribers_that_are_forgotten_are_not_waited_for() -> None:
    bus: Any = SimpleNamespace(stats=SimpleNamespace(connects=1))
    subscribers = SubscriberReturn(bus, WAIT_S, only_after_reconnect=False)
    subscribers.must_resend(has_subscriber=True)
    assert subscribers.must_resend(has_subscriber=False)
    subscribers.forget()
    assert not subscribers.must_resend(has_subscriber=False)
    assert FRAME_RETURN_S == 30
