"""Truncated msgpack, wrong types and NaN boxes are refused, counted, acknowledged and dead-lettered."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from halimede import codec, topics
from halimede import messages as m
from halimede.bus import Packet
from halimede.errors import DecodeError
from tests.inbox import Inbox
from tests.worlds import World

GOOD = {"v": 1, "id": b"i" * 16, "worker": "cloud0-w1"}


def reply(**fields: Any) -> bytes:
    return msgpack.packb({**GOOD, **fields})


MALFORMED = {
    "nothing": b"",
    "truncated": codec.encode(topics.REPLY, m.Reply(id=b"i" * 16, worker="w"))[:-3],
    "not a map": msgpack.packb([1, 2]),
    "json": b'{"v": 1}',
    "unknown version": reply(v=2),
    "short id": reply(id=b"i"),
    "id as text": reply(id="i" * 16),
    "hostile worker": reply(worker="a/b"),
    "a number where text belongs": reply(error=7),
    "negative time": reply(queueMs=-1.0),
    "NaN time": reply(queueMs=math.nan),
    "score as text": reply(prediction={"score": "high"}),
    "short box": reply(prediction={"boxes": [[0, 0, 1]]}),
}
NOT_FINITE = {
    "NaN box": reply(prediction={"boxes": [[math.nan, 0.0, 1.0, 1.0, 0.5, 0]]}),
    "infinite box": reply(prediction={"boxes": [[0.0, 0.0, math.inf, 1.0, 0.5, 0]]}),
    "NaN score": reply(prediction={"score": math.nan}),
    "NaN probability": reply(prediction={"probabilities": [math.nan]}),
}


async def test_attack_06_malformed_bodies_are_counted_acknowledged_and_dead_lettered(world: World, unique: str) -> None:
    # one message at a time: any that is not acknowledged would keep the next one away
    bus, inbox, letters = await world.connect(unique, receive_maximum=1), Inbox[m.Reply](), Inbox[m.DeadLetter]()
    sender = await world.connect(f"{unique}-s")
    await sender.subscribe(topics.DEAD_LETTER.filter(client=unique), letters)
    at = topics.REPLY.at(ns="default", service=unique, worker="edge0-w1")
    await bus.subscribe(topics.REPLY.filter(service=unique), inbox)
    for payload in MALFORMED.values():
        await sender.send(Packet(at.text, payload))
    await sender.publish(at, m.Reply(id=b"i" * 16, worker="cloud0-w1"))
    await inbox.has(1)
    assert bus.stats.rejected == len(MALFORMED)
    # of a flood, ten a second are shown
    await letters.has(min(10, len(MALFORMED)))
    assert {letter.body.topic for letter in letters.deliveries} == {at.text}


@pytest.mark.parametrize("payload", (MALFORMED | NOT_FINITE).values(), ids=MALFORMED | NOT_FINITE)
def test_attack_06_each_is_refused_and_so_are_numbers_that_are_none(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode(topics.REPLY, payload)
