"""Nesting of 10^5 levels and huge declared lengths end in one clean error, whatever topic they come on."""

from __future__ import annotations

import pytest

from halimede import codec, topics
from halimede.errors import DecodeError
from tests.traced_memory import memory_below

DEPTH = 100_000
HUGE = b"\xff\xff\xff\xff"
PAYLOADS = {
    "nested arrays": b"\x81\xaaprediction\x81\xa5value" + b"\x91" * DEPTH + b"\x01",
    "nested maps": b"\x81\xaaprediction\x81\xa5value" + b"\x81\xa1a" * DEPTH + b"\x01",
    "nested unknown field": b"\x81\xa7unknown" + b"\x91" * DEPTH + b"\x01",
    "bytes of 4 GiB": b"\x81\xa2id\xc6" + HUGE,
    "text of 4 GiB": b"\x81\xa6worker\xdb" + HUGE,
    "array of 4 G entries": b"\x81\xaaprediction\x81\xa5boxes\xdd" + HUGE,
    "map of 4 G entries": b"\xdf" + HUGE,
    "extension of 4 GiB": b"\x81\xaaprediction\x81\xa5value\xc9" + HUGE + b"\x01",
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_attack_07_the_error_is_clean_and_no_memory_is_taken_on_its_word(payload: bytes) -> None:
    with memory_below(8 * 1024 * 1024), pytest.raises(DecodeError):
        codec.decode(topics.REPLY, payload)
