"""Dead letters: a few a second say what is wrong, and none of them is larger than its topic may carry."""

from __future__ import annotations

import asyncio

from halimede import codec
from halimede.bus.message import Packet
from halimede.bus.port import DEAD_LETTERS_PER_SECOND, HEAD_BYTES, DeadLetterPublisher
from halimede.topics import DEAD_LETTER
from tests.simulated import simulated


@simulated
async def test_a_flood_of_bad_messages_makes_a_few_letters_a_second_and_goes_on_doing_so() -> None:
    letters, bad = DeadLetterPublisher("edge"), Packet("a/b", b"nonsense")
    for _ in range(3):
        written = [letters.write(bad, "no frame") for _ in range(100)]
        assert sum(letter is not None for letter in written) == DEAD_LETTERS_PER_SECOND
        await asyncio.sleep(1)


@simulated
async def test_of_what_is_far_too_long_a_letter_says_as_much_as_it_may() -> None:
    payload = bytes(range(256)) * 4096
    letter = DeadLetterPublisher("c" * 9999).write(Packet("t" * 65_535, memoryview(payload)), "r" * 99_999)
    assert letter
    assert (letter.size, bytes.fromhex(letter.head)) == (len(payload), payload[:HEAD_BYTES])
    assert codec.decode(DEAD_LETTER, codec.encode(DEAD_LETTER, letter)) == letter
