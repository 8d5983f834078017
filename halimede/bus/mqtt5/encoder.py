"""Encodes MQTT v5 control packets that a client sends (MQTT v5, chapter 3). Each function returns a packet's bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from halimede.bus.credentials import Login
from halimede.bus.message import Packet
from halimede.bus.mqtt5.decoder import CORRELATION, EXPIRY, RESPONSE_TOPIC, USER

#: first bytes: the packet type, with its fixed flags
CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT = 0x10, 0x30, 0x82, 0xA2, 0xE0
#: a ping, a whole packet
PINGREQ = b"\xc0\x00"
#: the acknowledgement of a message, up to its packet identifier
PUBACK = b"\x40\x02"
#: bytes of a payload from which it is passed separately from its head, without a copy
JOINED = 4096
#: name and version of the protocol in a CONNECT
PROTOCOL = b"\x00\x04MQTT\x05"
#: flags of a CONNECT
USERNAME, PASSWORD, WILL_RETAIN, WILL, CLEAN = 0x80, 0x40, 0x20, 0x04, 0x02
#: identifiers of properties (MQTT v5, 2.2.2.2)
SESSION_EXPIRY, RECEIVE_MAXIMUM, MAXIMUM_PACKET = 0x11, 0x21, 0x27
_EXPIRY, _RESPONSE_TOPIC, _CORRELATION, _USER = (bytes((kind,)) for kind in (EXPIRY, RESPONSE_TOPIC, CORRELATION, USER))
#: most encoded topics and lengths that are cached
TOPICS, LENGTHS = 1024, 1024
#: most bytes of one text or of binary data
MOST_BYTES = 0xFFFF


def connect(
    client_id: str,
    *,
    keepalive_s: int,
    session_s: int,
    receive_maximum: int,
    max_packet: int,
    login: Login = (None, None),
    will: Packet | None = None,
) -> bytes:
    """Encode a CONNECT. With ``session_s`` (seconds) the session is resumed and kept, else it is clean.

    ``keepalive_s``: seconds after which a silent client counts as dead. ``receive_maximum``: most unacknowledged
    messages; ``max_packet``: most bytes of a packet, both from the broker. ``login``: user name and password, None for
    a missing one. ``will``: the message that the broker publishes when the connection breaks. Raises ValueError for a
    text that is too long.
    """
    user, password = login
    flags = 0 if session_s else CLEAN
    flags |= (USERNAME if user is not None else 0) | (PASSWORD if password is not None else 0)
    if will:
        flags |= WILL | will.qos << 3 | (WILL_RETAIN if will.retain else 0)
    properties = bytes((SESSION_EXPIRY,)) + session_s.to_bytes(4)
    properties += bytes((RECEIVE_MAXIMUM,)) + receive_maximum.to_bytes(2)
    properties += bytes((MAXIMUM_PACKET,)) + max_packet.to_bytes(4)
    parts = [PROTOCOL, bytes((flags,)), keepalive_s.to_bytes(2), varint(len(properties)), properties, long(client_id)]
    if will:
        properties = packet_properties(will)
        parts += [varint(len(properties)), properties, long(will.topic), long(bytes(will.payload))]
    parts += [long(text) for text in login if text is not None]
    return _packet(CONNECT, parts)


def publish(packet: Packet, identifier: int, size: int) -> bytes:
    """Encode a PUBLISH up to its payload of ``size`` bytes, which follows. ``identifier`` is not used at QoS 0."""
    first = PUBLISH | packet.qos << 1 | packet.retain
    properties = packet_properties(packet)
    head = _topic(packet.topic) + (identifier.to_bytes(2) if packet.qos else b"") + varint(len(properties))
    return first.to_bytes(1) + varint(len(head) + len(properties) + size) + head + properties


def subscribe(identifier: int, filter_: str, qos: int, *, retained: bool) -> bytes:
    """Encode a SUBSCRIBE to one filter. ``retained``: request retained messages, also if the subscription exists."""
    options = qos | (0 if retained else 2 << 4)
    return _packet(SUBSCRIBE, [identifier.to_bytes(2), b"\0", long(filter_), bytes((options,))])


def unsubscribe(identifier: int, filter_: str) -> bytes:
    """Encode an UNSUBSCRIBE from one filter."""
    return _packet(UNSUBSCRIBE, [identifier.to_bytes(2), b"\0", long(filter_)])


def disconnect(reason: int, *, end_session: bool = False) -> bytes:
    """Encode a DISCONNECT. ``end_session``: the broker deletes the session, whatever the CONNECT requested."""
    properties = bytes((SESSION_EXPIRY,)) + b"\0\0\0\0" if end_session else b""
    return _packet(DISCONNECT, [bytes((reason,)), varint(len(properties)), properties])


@lru_cache(maxsize=LENGTHS)
def varint(value: int) -> bytes:
    """Encode a number as a variable byte integer (MQTT v5, 1.5.5): one to four bytes."""
    if value < 0x80:
        return bytes((value,))
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def long(value: str | bytes) -> bytes:
    """Encode text or bytes after two bytes of length. Raises ValueError if they are too long."""
    raw = value.encode() if isinstance(value, str) else value
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{len(raw)} bytes where MQTT allows {MOST_BYTES}")
    return len(raw).to_bytes(2) + raw


def packet_properties(packet: Packet) -> bytes:
    """Encode the properties of a PUBLISH or of a will, without their length.

    Raises ValueError for a text that is too long.
    """
    written = b""
    if packet.expiry_s is not None:
        written = _EXPIRY + packet.expiry_s.to_bytes(4)
    if packet.response_topic:
        written += _RESPONSE_TOPIC + _topic(packet.response_topic)
    if packet.correlation:
        written += _CORRELATION + len(packet.correlation).to_bytes(2) + packet.correlation
    for name, value in packet.properties:
        written += _USER + long(name) + long(value)
    return written


@lru_cache(maxsize=TOPICS)
def _topic(topic: str) -> bytes:
    """Encode a topic, cached: clients use the same few topics."""
    return long(topic)


def _packet(first: int, parts: Iterable[bytes]) -> bytes:
    """Return a packet: its first byte, the length of all parts, and the parts."""
    body = b"".join(parts)
    return bytes((first,)) + varint(len(body)) + body
