"""Truncated msgpack, wrong types and NaN boxes are refused; tests/contract shows what becomes of such a message."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from halimede import codec, topics
from halimede import messages as m
from halimede.errors import DecodeError

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
    "NaN box": reply(prediction={"boxes": [[math.nan, 0.0, 1.0, 1.0, 0.5, 0]]}),
    "infinite box": reply(prediction={"boxes": [[0.0, 0.0, math.inf, 1.0, 0.5, 0]]}),
    "NaN score": reply(prediction={"score": math.nan}),
    "NaN probability": reply(prediction={"probabilities": [math.nan]}),
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED)
def test_attack_06_each_is_refused_and_so_are_numbers_that_are_none(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode(topics.REPLY, payload)
