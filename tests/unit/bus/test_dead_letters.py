"""Dead letters: a few a second say what is wrong, and none of them is larger than its topic may carry."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from halimede import codec, topics
from halimede.bus import Packet
from halimede.bus.message import BusStats
from halimede.bus.port import DeadLetterWriter, receiver_now
from halimede.messages import Sync

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
DEAD_LETTERS_PER_SECOND, HEAD_BYTES = 10, 32


async def test_a_flood_of_bad_messages_makes_a_few_letters_a_second_and_goes_on_doing_so() -> None:
    writer, bad = DeadLetterWriter("edge"), Packet("a/b", b"nonsense")
    for _ in range(3):
        written = [writer.write(bad, "no frame") for _ in range(100)]
        assert sum(dead_letter is not None for dead_letter in written) == DEAD_LETTERS_PER_SECOND
        await asyncio.sleep(1)


async def test_of_what_is_far_too_long_a_letter_says_as_much_as_it_may() -> None:
    payload = bytes(range(256)) * 4096
    with capture_logs() as logs:
        dead_letter = DeadLetterWriter("c" * 9999).write(Packet("t" * 65_535, memoryview(payload)), "r" * 99_999)
    assert [(len(entry["topic"]), len(entry["reason"])) for entry in logs] == [(256, 4096)]
    assert dead_letter
    assert (dead_letter.size, bytes.fromhex(dead_letter.head)) == (len(payload), payload[:HEAD_BYTES])
    assert (len(dead_letter.client), len(dead_letter.topic), len(dead_letter.reason)) == (256, 4096, 4096)
    assert codec.decode(topics.DEAD_LETTER, codec.encode(topics.DEAD_LETTER, dead_letter)) == dead_letter


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ((("n", "v"),) * 64, ""),
        ((("n", "v"),) * 65, "more than 64 user properties"),
        ((("é" * 4096, "é" * 4096),), ""),
        ((("n" * 8193, "v"),), "a user property of more than 8192 bytes"),
        ((("n", "é" * 4097),), "a user property of more than 8192 bytes"),
    ],
)
def test_a_message_with_too_many_or_too_long_properties_is_unreadable(
    properties: tuple[tuple[str, str], ...], reason: str
) -> None:
    stats, bodies, reasons = BusStats(), list[object](), list[str]()
    receive = receiver_now(
        topics.SYNC, lambda delivery: bodies.append(delivery.body), stats, lambda _, text: reasons.append(text)
    )
    receive(Packet("node/n/sedna/upstream/sync", b'{"epoch":1}', properties=properties))
    assert (bodies == [Sync(epoch=1)], reasons, stats.rejected) == (
        not reason,
        [reason] if reason else [],
        bool(reason),
    )


@pytest.mark.parametrize(("topic", "payload"), [("node/UPPER/sedna/upstream/sync", b'{"epoch":1}'), ("t", b"1")])
def test_a_plain_handler_gets_no_unreadable_message_and_its_own_failure_is_counted_apart(
    topic: str, payload: bytes
) -> None:
    stats, reasons = BusStats(), list[str]()

    def fail(_: object) -> None:
        raise ValueError("secret")

    receive = receiver_now(topics.SYNC, fail, stats, lambda _, text: reasons.append(text))
    receive(Packet(topic, payload))
    assert (stats.rejected, stats.failed_handlers) == (1, 0)
    receive(Packet("node/n/sedna/upstream/sync", b'{"epoch":1}'))
    assert (stats.rejected, stats.failed_handlers, reasons[1:]) == (1, 1, ["the receiver failed: ValueError"])
