"""What the lean client writes is what paho writes, and what our own reader reads back."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from halimede.bus.message import Packet
from halimede.bus.mqtt5 import decoder, encoder
from halimede.bus.paho.connection import no_properties
from halimede.bus.topic_filter import packet_size
from tests.fuzz import targets
from tests.paho_properties import v5_properties

text = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff", exclude_categories=["Cs", "Cc"]), max_size=9)
names = st.text("abc/é", min_size=1, max_size=9)
packets = st.builds(
    Packet,
    names,
    st.binary(max_size=300),
    st.integers(0, 1),
    st.booleans(),
    names | st.just(""),
    st.binary(max_size=9),
    st.none() | st.integers(0, 2**32 - 1),
    st.lists(st.tuples(text, text), max_size=4).map(tuple),
)


class Recording(Client):
    """paho, which keeps what it would send."""

    def __init__(self, client_id: str = "me") -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        self.written = b""
        self._sock = socket.socket()  # it asks for one before it writes anything

    def _packet_queue(self, command: int, packet: Any, mid: int, qos: int, info: Any = None) -> MQTTErrorCode:
        self.written = bytes(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def section(data: bytes, at: int, kind: int) -> tuple[bytes, Any, bytes]:
    """Return what stands before properties, them as paho reads them, and what stands behind."""
    properties = Properties(kind)  # type: ignore[no-untyped-call]
    _, length = properties.unpack(data[at:])  # type: ignore[no-untyped-call]
    return data[:at], properties.json(), data[at + length :]  # type: ignore[no-untyped-call]


@given(packets, st.integers(1, 65_535))
@example(Packet("t" * 300, b"x", 1, False, "r" * 400, b"c" * 500, 1 << 24, (("n" * 600, "v" * 700), ("", ""))), 0x1234)
def test_a_message_is_written_as_paho_writes_it_and_read_back(packet: Packet, identifier: int) -> None:
    ours = encoder.publish(packet, identifier, len(packet.payload)) + packet.payload
    assert len(ours) == packet_size(packet)
    paho = Recording()
    paho._send_publish(
        identifier,
        packet.topic.encode(),
        bytes(packet.payload),
        packet.qos,
        packet.retain,
        properties=v5_properties(packet, PacketTypes.PUBLISH),
    )
    at = len(encoder.varint(decoder.varint(ours, 1)[0])) + 3 + len(packet.topic.encode()) + 2 * packet.qos
    assert section(ours, at, PacketTypes.PUBLISH) == section(paho.written, at, PacketTypes.PUBLISH)
    assert targets.packets_of_any_size(ours) == [targets.Message(packet, identifier if packet.qos else 0)]


@pytest.mark.parametrize(
    "will",
    [None, Packet("a/b", b"gone", 1, retain=True, expiry_s=7, properties=(("epoch", "1"),)), Packet("a/b", b"gone", 0)],
)
@pytest.mark.parametrize("login", [(None, None), ("someone", None), ("someone", "s3cret"), ("", "")])
@pytest.mark.parametrize("session_s", [0, 60])
def test_a_connect_is_written_as_paho_writes_it(will: Packet | None, login: tuple[Any, Any], session_s: int) -> None:
    paho = Recording()
    properties: Any = no_properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval, properties.ReceiveMaximum, properties.MaximumPacketSize = session_s, 9, 70_000
    if login[0] is not None:
        paho.username_pw_set(*login)
    if will:
        paho.will_set(will.topic, will.payload, will.qos, will.retain, v5_properties(will, PacketTypes.WILLMESSAGE))
    paho._connect_properties = properties
    paho._clean_start = not session_s
    paho._send_connect(15)
    ours = encoder.connect(
        "me", keepalive_s=15, session_s=session_s, receive_maximum=9, max_packet=70_000, login=login, will=will
    )
    assert section(ours, 12, PacketTypes.CONNECT) == section(paho.written, 12, PacketTypes.CONNECT)


@pytest.mark.parametrize("filter_", ["a/+/b", "$share/g/a/#"])
@pytest.mark.parametrize("qos", [0, 1])
def test_subscribing_and_its_end_are_written_as_paho_writes_them(filter_: str, qos: int) -> None:
    paho = Recording()
    retained = not filter_.startswith("$share")
    options = SubscribeOptions(qos=qos, retainHandling=0 if retained else SubscribeOptions.RETAIN_DO_NOT_SEND)
    paho._send_subscribe(False, [(filter_.encode(), options)])  # type: ignore[list-item]
    assert encoder.subscribe(1, filter_, qos, retained=retained) == paho.written
    paho._send_unsubscribe(False, [filter_.encode()])
    assert encoder.unsubscribe(2, filter_) == paho.written


@pytest.mark.parametrize("end_session", [False, True])
def test_the_short_ones_are_written_as_paho_writes_them(end_session: bool) -> None:
    paho = Recording()
    paho._send_puback(513)
    assert encoder.PUBACK + (513).to_bytes(2) == paho.written
    paho._send_pingreq()
    assert paho.written == encoder.PINGREQ
    properties: Any = no_properties(PacketTypes.DISCONNECT)
    if end_session:
        properties.SessionExpiryInterval = 0
    paho._send_disconnect(ReasonCode(PacketTypes.DISCONNECT, identifier=4), properties)
    assert encoder.disconnect(4, end_session=end_session) == paho.written


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_lengths_are_written_in_as_few_bytes_as_they_take_and_read_back(value: int) -> None:
    written = encoder.varint(value)
    assert decoder.varint(written, 0) == (value, len(written))
    assert len(written) == (1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4)


@pytest.mark.parametrize("cached", [encoder.varint, encoder._topic])
def test_what_is_cached_is_bounded(cached: Any) -> None:
    assert cached.cache_info().maxsize == 1024


def test_text_that_has_no_room_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="65536 bytes where MQTT allows 65535"):
        encoder.long("x" * 65_536)
