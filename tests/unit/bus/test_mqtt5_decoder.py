"""The lean client's parser: whatever comes, in whatever pieces, it reads packets or says that they are malformed."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from halimede.bus.message import NAMES, NO_SHARED, NO_WILDCARDS, REASONS, SESSION_TAKEN_OVER, Grants, Packet
from halimede.bus.mqtt5.buffers import ReceiveBuffer
from halimede.bus.mqtt5.decoder import Acknowledged, ConnAck, Disconnect, MalformedError, Pong
from halimede.bus.mqtt5.encoder import varint
from tests.attacks.flooding import publish, user
from tests.fuzz import targets
from tests.fuzz.targets import Message, read
from tests.properties import examples

#: stated here again, so that a change in the product is noticed
MAX_PROPERTIES, LARGE, SHARED_BYTES = 64, 8 * 1024, 16 * 1024

MIB = 1024 * 1024
FIRSTS = st.sampled_from([0x20, 0x30, 0x31, 0x32, 0x33, 0x3A, 0x34, 0x40, 0x90, 0xB0, 0xD0, 0xE0, 0x62, 0xF0, 0x00])
#: bodies that get further than noise does: with lengths, properties and identifiers where the parser looks for them
PIECES = st.sampled_from([
    b"\0", b"\1", b"\0\1", b"\0\1a", b"\0\0", b"\x26\0\1a\0\1b", b"\x1f\0\1r", b"\x21\0\5", b"\x27\0\0\0\0",
    b"\x08\0\1r", b"\x09\0\2\xff\0", b"\x02\0\0\0\5", b"\x0b\x80\1", b"\x13\0\1", b"\xff\xff", b"\x80", b"\7", b"\5",
])  # fmt: skip
BODIES = st.one_of(st.binary(max_size=64), st.lists(PIECES, max_size=12).map(b"".join))


def framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + varint(len(body)) + body


@examples(200)
@given(FIRSTS | st.integers(0, 255), BODIES)
def test_any_packet_is_read_or_malformed_and_what_is_read_can_be_written(first: int, body: bytes) -> None:
    targets.packet(bytes((first,)) + body)


@examples(200)
@given(BODIES)
def test_any_properties_are_read_or_refused(section: bytes) -> None:
    targets.properties(section)


@examples(200)
@given(
    st.binary(min_size=4, max_size=4), st.lists(st.builds(framed, FIRSTS, BODIES), max_size=8), st.binary(max_size=9)
)
def test_a_stream_gives_the_same_packets_however_it_is_cut(cut: bytes, packets: list[bytes], rest: bytes) -> None:
    targets.stream(cut + b"".join(packets) + rest)


sizes = st.integers(0, 40) | st.sampled_from(
    [LARGE - 9, LARGE - 8, LARGE - 1, LARGE, SHARED_BYTES - 9, SHARED_BYTES - 1, SHARED_BYTES, SHARED_BYTES + 1]
)


@examples(60)
@given(st.lists(sizes, min_size=1, max_size=6), st.lists(st.integers(1, 2 * SHARED_BYTES), min_size=1, max_size=5))
@example([LARGE, 0, SHARED_BYTES, 1, LARGE - 8], [SHARED_BYTES])
@example([SHARED_BYTES, SHARED_BYTES], [1 + SHARED_BYTES, 1])
def test_messages_of_all_sizes_come_through_in_pieces_of_all_sizes(messages: list[int], pieces: list[int]) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(messages)]
    data = b"".join(publish("t", payload) for payload in payloads)
    came = targets.packets_of(data, pieces)
    assert [bytes(each.packet.payload) for each in came if isinstance(each, Message)] == payloads


def fill(inflow: ReceiveBuffer, data: bytes) -> list[tuple[int, bytes | memoryview]]:
    inflow.free[: len(data)] = data
    packets, malformed = inflow.take_packets(len(data))
    if malformed:
        raise malformed
    return packets


def test_a_large_message_is_a_view_of_a_buffer_of_its_own_and_a_small_one_is_bytes() -> None:
    inflow = ReceiveBuffer(MIB)
    [(_, small)] = fill(inflow, publish("t", b"x"))
    assert isinstance(small, bytes)
    data = publish("t", bytes(100_000))
    assert fill(inflow, data[:10]) == []
    buffer = inflow.free.obj
    [(first, body)] = fill(inflow, data[10:])
    assert isinstance(body, memoryview)
    assert body.obj is buffer
    message = read(first, body)
    assert isinstance(message, Message)
    assert isinstance(message.packet.payload, memoryview)
    assert message.packet.payload.obj is buffer
    assert len(message.packet.payload) == 100_000
    assert len(inflow.free) == SHARED_BYTES


@pytest.mark.parametrize(("length", "free"), [(LARGE - 1, SHARED_BYTES - 3), (LARGE, LARGE)])
def test_a_large_message_of_which_only_the_head_is_there_has_its_buffer(length: int, free: int) -> None:
    inflow = ReceiveBuffer(MIB)
    assert fill(inflow, b"\x30" + varint(length)) == []
    assert len(inflow.free) == free


def test_what_is_malformed_comes_behind_the_packets_before_it() -> None:
    inflow, data = ReceiveBuffer(MIB), publish("t", b"x") + publish("t", b"y") + b"\x30\xff\xff\xff\xff\x01"
    inflow.free[: len(data)] = data
    packets, malformed = inflow.take_packets(len(data))
    assert len(packets) == 2
    assert "more than four bytes" in str(malformed)


def test_a_packet_of_the_limit_comes_through_and_one_byte_more_does_not() -> None:
    data = publish("t", bytes(1000))
    assert len(targets.packets_of_any_size(data)) == 1
    with pytest.raises(MalformedError, match=f"above the limit of {len(data) - 1}") as caught:
        fill(ReceiveBuffer(len(data) - 1), data)
    assert caught.value.code == 0x95


@pytest.mark.parametrize("length", [b"\xff\xff\xff\x7f", b"\x80\x80\x80\x40", b"\x81\x80\x80\x08"])
def test_an_announced_length_over_the_limit_takes_no_memory(length: bytes) -> None:
    tracemalloc.start()
    try:
        inflow = ReceiveBuffer(16 * MIB)
        with pytest.raises(MalformedError, match="above the limit"):
            fill(inflow, b"\x30" + length)
        assert tracemalloc.get_traced_memory()[1] < 2 * SHARED_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("first", [0x20, 0x40, 0x90, 0xB0, 0xE0])
@pytest.mark.parametrize("each", [user("", ""), b"\x22\0\1", b"\x1f\0\0"], ids=["users", "fixed", "text"])
def test_sixteen_mib_of_properties_take_no_time(first: int, each: bytes) -> None:
    section = each * (16 * MIB // len(each))
    head = {0x20: b"\0\0", 0x40: b"\0\1\0", 0xE0: b"\0"}.get(first, b"\0\1")
    began = time.process_time()
    with pytest.raises(MalformedError, match="more than 1000 properties"):
        read(first, memoryview(head + varint(len(section)) + section))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("each", [user("", ""), b"\x01\0", b"\x0b\1", b"\x03\0\0", b"\x09\0\0"])
def test_sixteen_mib_beside_a_message_take_no_time_and_end_no_connection(each: bytes) -> None:
    data = memoryview(publish("t", b"body", beside=each * (16 * MIB // len(each))))[5:]
    began = time.process_time()
    message = read(0x30, data)
    assert time.process_time() - began < 0.5
    assert isinstance(message, Message)
    assert bytes(message.packet.payload) == b"body"
    assert len(message.packet.properties) <= MAX_PROPERTIES + 1


def packet_beside(section: bytes) -> Packet:
    """Return a message without a payload as it is read with these properties."""
    message = read(0x30, memoryview(b"\0\1t" + varint(len(section)) + section))
    assert isinstance(message, Message)
    return message.packet


#: one property of each kind that a message may have, but users
KINDS = b"\x01\0\x23\0\1\x03\0\1c\x0b\1\x02\0\0\0\7\x08\0\1r\x09\0\1x"


def test_all_kinds_of_properties_beside_a_full_set_of_users_are_read() -> None:
    users = (("a", "b"),) * MAX_PROPERTIES
    assert packet_beside(user("a", "b") * MAX_PROPERTIES + KINDS) == Packet("t", b"", 0, False, "r", b"x", 7, users)


@pytest.mark.parametrize(("before", "expiry_s"), [(MAX_PROPERTIES + 7, 7), (MAX_PROPERTIES + 8, None)])
def test_so_many_properties_of_a_message_are_read(before: int, expiry_s: int | None) -> None:
    assert packet_beside(b"\x01\0" * before + b"\x02\0\0\0\7").expiry_s == expiry_s


@pytest.mark.parametrize("before", [b"", KINDS], ids=["alone", "behind all other kinds"])
@pytest.mark.parametrize(
    ("count", "read_count"), [(MAX_PROPERTIES, 64), (MAX_PROPERTIES + 1, 65), (MAX_PROPERTIES + 2, 65)]
)
def test_one_user_property_more_than_allowed_is_read(before: bytes, count: int, read_count: int) -> None:
    assert len(packet_beside(before + user("", "") * count).properties) == read_count


# --- each kind of packet -------------------------------------------------------------------------------------------

READ = {
    b"\x20\0\0": ConnAck(False, 0, Grants(65_535, 0, 2, True, True, True), None, ""),
    b"\x20\1\0\0": ConnAck(True, 0, Grants(), None, ""),
    b"\x20\0\1": ConnAck(False, 0x84, Grants(), None, ""),  # what a broker of MQTT 3.1.1 says
    b"\x20\0\x87\4\x1f\0\1x": ConnAck(False, 0x87, Grants(), None, "x"),
    b"\x20\0\0\x0f\x21\0\5\x27\0\0\1\0\x24\1\x25\0\x13\0\7": ConnAck(False, 0, Grants(5, 256, 1, False), 7, ""),
    b"\x20\0\0\6\x28\0\x2a\0\x29\0": ConnAck(False, 0, Grants(wildcards=False, shared=False), None, ""),
    b"\x40\1\2": Acknowledged(258, 0),
    b"\x40\1\2\x10": Acknowledged(258, 0x10),
    b"\x40\1\2\x97\7\x26\0\1a\0\1b": Acknowledged(258, 0x97),
    b"\x90\0\1\0\1": Acknowledged(1, 1),
    b"\x90\1\2\4\x1f\0\1x\x87": Acknowledged(258, 0x87),
    b"\xb0\0\1\0\x11": Acknowledged(1, 0x11),
    b"\xd0": Pong(),
    b"\xe0": Disconnect(0, ""),
    b"\xe0\x8e": Disconnect(0x8E, ""),
    b"\xe0\x8b\6\x1f\0\3bye": Disconnect(0x8B, "bye"),
}


@pytest.mark.parametrize("data", READ, ids=bytes.hex)
def test_each_kind_of_packet_is_read(data: bytes) -> None:
    assert read(data[0], memoryview(data)[1:]) == READ[data]


@pytest.mark.parametrize("data", READ, ids=bytes.hex)
def test_no_part_of_a_packet_is_more_than_malformed(data: bytes) -> None:
    for size in range(1, len(data)):
        targets.packet(data[:size])
        targets.packet(data[:size] + b"\xff")


#: properties that a broker may send in a packet other than a message: for paho, which writes them
ALLOWED: dict[int, dict[str, Any]] = {
    PacketTypes.CONNACK: {
        "SessionExpiryInterval": 9,
        "ReceiveMaximum": 9,
        "MaximumQoS": 1,
        "RetainAvailable": 1,
        "MaximumPacketSize": 9,
        "AssignedClientIdentifier": "c",
        "TopicAliasMaximum": 9,
        "WildcardSubscriptionAvailable": 1,
        "SubscriptionIdentifierAvailable": 1,
        "SharedSubscriptionAvailable": 1,
        "ServerKeepAlive": 9,
        "ResponseInformation": "r",
        "ServerReference": "s",
        "AuthenticationMethod": "m",
        "AuthenticationData": b"d",
        "UserProperty": ("n", "v"),
    },
    PacketTypes.DISCONNECT: {"SessionExpiryInterval": 9, "ServerReference": "s", "UserProperty": ("n", "v")},
    PacketTypes.PUBACK: {"UserProperty": ("n", "v")},
    PacketTypes.SUBACK: {"UserProperty": ("n", "v")},
    PacketTypes.UNSUBACK: {"UserProperty": ("n", "v")},
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in ALLOWED.items() for name in names])
def test_each_property_that_a_broker_may_send_is_passed_over_to_the_next(kind: int, name: str) -> None:
    properties: Any = Properties(kind)  # type: ignore[no-untyped-call]
    setattr(properties, name, ALLOWED[kind][name])
    parts = [properties.pack()[1:], b"\x1f\1\x2c" + b"w" * 300]
    head, last = {
        PacketTypes.CONNACK: (b"\0\0", b""),
        PacketTypes.DISCONNECT: (b"\0", b""),
        PacketTypes.PUBACK: (b"\0\1\0", b""),
    }.get(kind, (b"\0\1", b"\0"))
    for section in (b"".join(parts), b"".join(reversed(parts))):
        packet = read(kind << 4, head + varint(len(section)) + section + last)
        assert getattr(packet, "reason_string", "w" * 300) == "w" * 300
        assert getattr(packet, "identifier", 1) == 1


MALFORMED = {
    b"\x36\0\1t\0\1\0": (0x82, "QoS 3"),
    b"\x34\0\1t\0\1\0": (0x82, "QoS 2"),
    b"\x32\0\1t\0\0\0": (0x81, "without an identifier"),
    b"\x30\0\5t": (0x81, "too early"),
    b"\x30\0\1t": (0x81, "too early"),
    b"\x30\0\1t\xff\xff\xff\xff\1": (0x81, "more than four bytes"),
    b"\x30\0\1t\2\x7f\0": (0x81, "no property 0x7f"),
    b"\x20\2\0\0": (0x81, "unknown flags"),
    b"\x20\0\0\3\x21\0\0": (0x82, "a limit of 0"),
    b"\x20\0\0\0x": (0x81, "extra bytes"),
    b"\x20\0\0\2\x01\0": (0x81, "no such property"),
    b"\x90\0\1\0\1\1": (0x81, "one reason"),
    b"\xd0x": (0x81, "with content"),
    b"\x40\1\2\x97\1": (0x81, "too early"),
    b"\x90\0\1\2\x21\0\1": (0x81, "too early"),
    b"\x90\0\1\4\x1f\0\2x\1": (0x81, "too early"),
    b"\x20\0\0\5\x1f\0\1x": (0x81, "too early"),
    b"\x30\0\1t\4\x01\0": (0x81, "too early"),
    b"\x30\0\1t\1\x01": (0x81, "too early"),
    b"\x30\0\1t\4\x08\0\2r": (0x81, "too early"),
    b"\xe0\x8b\1": (0x81, "too early"),
    b"\xd1": (0x81, "0xd1"),
    b"\xf0\0": (0x82, "type 15"),
    b"\x50\0\1": (0x82, "type 5"),
}


@pytest.mark.parametrize("data", MALFORMED, ids=bytes.hex)
def test_what_no_broker_may_send_is_malformed_and_says_what_it_is(data: bytes) -> None:
    code, says = MALFORMED[data]
    with pytest.raises(MalformedError, match=says) as caught:
        read(data[0], memoryview(data)[1:])
    assert caught.value.code == code


text = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff", exclude_categories=["Cs", "Cc"]), max_size=9)


@given(text, text, st.binary(max_size=9), st.integers(0, 2**32 - 1), st.lists(st.tuples(text, text), max_size=4))
def test_properties_that_paho_writes_are_read_as_meant(
    content: str, response: str, correlation: bytes, expiry: int, users: list[tuple[str, str]]
) -> None:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    put = partial(setattr, properties)
    put("ContentType", content)
    put("ResponseTopic", response)
    put("CorrelationData", correlation)
    put("MessageExpiryInterval", expiry)
    put("SubscriptionIdentifier", 300)
    if users:
        put("UserProperty", users)
    message = read(0x33, memoryview(b"\0\1t\xff\xfe" + properties.pack() + b"body"))  # type: ignore[no-untyped-call]
    assert message == Message(Packet("t", b"body", 1, True, response, correlation, expiry, tuple(users)), 0xFFFE)


def test_reasons_have_the_codes_and_the_words_of_the_standard() -> None:
    standard = {
        code: {name.replace("subscription not", "subscriptions not") for name in names}
        for code, names in ReasonCode(PacketTypes.DISCONNECT).names.items()
    }
    assert all(name in standard[code] for code, name in NAMES.items())
    assert NAMES.keys() >= {code for code, names in standard.items() if code >= 0x80} - {0x91, 0x92}
    assert [NAMES[code] for code in (NO_SHARED, NO_WILDCARDS, SESSION_TAKEN_OVER)] == [
        "Shared subscriptions not supported",
        "Wildcard subscriptions not supported",
        "Session taken over",
    ]
    texts = {code: text for code, text in REASONS.items() if code not in {NO_SHARED, NO_WILDCARDS}}
    assert all(text.capitalize().replace("ised", "ized") in standard[code] for code, text in texts.items())
