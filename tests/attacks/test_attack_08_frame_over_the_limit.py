"""A frame over the limit is refused here, before it is published: the broker would break the connection."""

from __future__ import annotations

import pytest

from halimede import messages as m
from halimede import topics
from halimede.codec import MAX_BYTES
from halimede.errors import TooLargeError
from tests.inbox import Inbox
from tests.worlds import World


def frame(size: int) -> m.Frame:
    return m.Frame(id=bytes(16), encoding="jpeg", data=memoryview(bytes(size)))


async def test_attack_08_a_frame_over_the_limit_is_refused_before_publish(world: World, unique: str) -> None:
    bus, inbox = await world.connect(unique), Inbox[m.Frame]()
    await bus.subscribe(topics.REQUEST.filter(service=unique), inbox)
    at = topics.REQUEST.at(ns="default", service=unique)
    with pytest.raises(TooLargeError, match="over the limit"):
        await bus.publish(at, frame(MAX_BYTES))
    # the largest body that the codec takes fits through the broker with room for topic and properties
    assert await bus.publish(at, frame(MAX_BYTES - 1000), properties={"epoch": "1"}, correlation=bytes(16))
    await inbox.has(1)
    assert bus.stats.connects == 1
