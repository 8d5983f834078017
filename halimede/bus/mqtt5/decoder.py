"""Decodes MQTT v5 control packets that a broker sends (MQTT v5, chapter 3).

``publish`` and ``read`` raise only ``MalformedError``, with the reason code for the broker. The paho client decodes the
properties of a message with ``properties`` as well: any publisher chooses them, so the time for them is bounded. The
port limits them further (``check_properties``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from halimede.bus.message import MAX_PROPERTIES, Grants, Packet
from halimede.errors import HalimedeError

#: first bytes of packets: their types
CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xB0, 0xD0, 0xE0
#: reason codes that this client sends
MALFORMED, PROTOCOL_ERROR, TOO_LARGE = 0x81, 0x82, 0x95
#: identifiers of properties (MQTT v5, 2.2.2.2)
RECEIVE_MAXIMUM, MAXIMUM_QOS, RETAIN, MAXIMUM_PACKET, REASON, USER = 0x21, 0x24, 0x25, 0x27, 0x1F, 0x26
WILDCARDS, SHARED, KEEPALIVE = 0x28, 0x2A, 0x13
#: answer of a broker without v5, and its name in v5
OLDER_PROTOCOL, UNSUPPORTED = 0x01, 0x84
#: widths of all fixed-length properties that a broker may send in packets other than PUBLISH
FIXED = {0x11: 4, KEEPALIVE: 2, RECEIVE_MAXIMUM: 2, 0x22: 2, MAXIMUM_QOS: 1, RETAIN: 1, MAXIMUM_PACKET: 4}
FIXED |= {WILDCARDS: 1, 0x29: 1, SHARED: 1}
#: properties with text or bytes, after two bytes of length
LONG = frozenset({0x12, 0x15, 0x16, 0x1A, 0x1C, REASON})


#: most properties of one packet; more would only take time
MOST_PROPERTIES = 1_000

#: properties of a message
EXPIRY, RESPONSE_TOPIC, CORRELATION, SUBSCRIPTION = 0x02, 0x08, 0x09, 0x0B
#: widths of the fixed-length properties of a message: payload format, expiry, topic alias
MESSAGE_FIXED = {0x01: 1, EXPIRY: 4, 0x23: 2}
#: text and bytes after two bytes of length: content type, response topic, correlation data
MESSAGE_LONG = frozenset({0x03, RESPONSE_TOPIC, CORRELATION})
#: most other properties of a message besides user properties, because none may be repeated
KINDS = len(MESSAGE_FIXED) + len(MESSAGE_LONG) + len({SUBSCRIPTION})
#: most bytes of a variable byte integer (MQTT v5, 1.5.5)
VARINT_BYTES = 4

#: response topic, correlation data, expiry in seconds (None: never), user properties
Properties = tuple[str, bytes, int | None, tuple[tuple[str, str], ...]]
NO_PROPERTIES: Properties = ("", b"", None, ())

#: limits of a broker that announces none
_DEFAULTS = Grants()


class MalformedError(HalimedeError):
    """The broker sent bytes that MQTT v5 does not allow. ``code`` is the reason code to send."""

    def __init__(self, message: str, code: int = MALFORMED) -> None:
        super().__init__(message)
        self.code = code


class ConnAck(NamedTuple):
    """A CONNACK. ``resumed``: the broker has continued a session. ``reason``: 0x80 or more refuses the client.

    ``grants``: the broker's limits. ``keepalive_s``: seconds that the broker sets instead of the client's keepalive;
    None: the client's counts. ``reason_string``: the broker's text, which may be empty.
    """

    resumed: bool
    reason: int
    grants: Grants
    keepalive_s: int | None
    reason_string: str


class Acknowledged(NamedTuple):
    """A PUBACK, SUBACK or UNSUBACK: the packet identifier that it answers, and the reason code."""

    identifier: int
    reason: int


class Disconnect(NamedTuple):
    """A DISCONNECT from the broker: reason code, and the broker's text (``reason_string``), which may be empty."""

    reason: int
    reason_string: str


class Pong(NamedTuple):
    """A PINGRESP, the answer to a ping."""


ControlPacket = ConnAck | Acknowledged | Disconnect | Pong


def publish(first: int, body: bytes | memoryview) -> tuple[Packet, int]:
    """Decode a PUBLISH from its first byte and all that follows its length. Raises MalformedError.

    Returns the message and its packet identifier, 0 at QoS 0. The payload is a view if ``body`` is one.
    """
    qos = first >> 1 & 3
    if qos > 1:
        raise MalformedError(f"a message at QoS {qos}, which was not granted", PROTOCOL_ERROR)
    try:
        at = 2 + (body[0] << 8 | body[1])
        topic = str(body[2:at], "utf-8", "replace")
        identifier = 0
        if qos:
            identifier = body[at] << 8 | body[at + 1]
            at += 2
            if not identifier:
                raise MalformedError("a message without an identifier")
        length = body[at]
        at += 1
        if length >= 0x80:
            length, at = varint(body, at - 1)
        end = at + length
        if end > len(body):
            raise IndexError
        response, correlation, expiry, users = properties(bytes(body[at:end])) if length else NO_PROPERTIES
    except IndexError as error:
        raise MalformedError("a packet that ends too early") from error
    except ValueError as error:
        raise MalformedError(str(error)) from error
    duplicate = bool(first & 8)
    packet = Packet(topic, body[end:], qos, bool(first & 1), response, correlation, expiry, users, duplicate)
    return packet, identifier


def properties(section: bytes) -> Properties:
    """Decode the properties of a message from all bytes after their length. Raises ValueError for invalid ones.

    Reading stops after one user property more than allowed, so that ``check_properties`` refuses the message, and after
    as many properties as a valid message can have.
    """
    response = correlation = b""
    expiry: int | None = None
    users: list[tuple[str, str]] = []
    at, size, remaining = 0, len(section), MAX_PROPERTIES + 1 + KINDS
    try:
        while at < size and len(users) <= MAX_PROPERTIES and remaining:
            remaining -= 1
            kind, at = section[at], at + 1
            if kind in MESSAGE_LONG:
                begin = at + 2
                at = begin + (section[at] << 8 | section[at + 1])
                if kind == RESPONSE_TOPIC:
                    response = section[begin:at]
                elif kind == CORRELATION:
                    correlation = section[begin:at]
            elif kind == USER:
                name, at = _text(section, at)
                value, at = _text(section, at)
                users.append((name, value))
            elif width := MESSAGE_FIXED.get(kind):
                if kind == EXPIRY:
                    expiry = int.from_bytes(section[at : at + width])
                at += width
            elif kind == SUBSCRIPTION:
                _, at = varint(section, at)
            else:
                raise ValueError(f"a message has no property {kind:#x}")
        if at > size:
            raise IndexError
    except IndexError as error:
        raise ValueError("the properties of a message end too early") from error
    return str(response, "utf-8", "replace"), correlation, expiry, tuple(users)


def varint(section: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Decode a variable byte integer (MQTT v5, 1.5.5) at a position; return it and its end.

    Raises IndexError if it ends too early, ValueError if it is too long.
    """
    value = 0
    for number in range(VARINT_BYTES):
        byte = section[at]
        at += 1
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, at
    raise ValueError("a length of more than four bytes")


def _text(section: bytes, at: int) -> tuple[str, int]:
    """Decode text; return it and its end. Invalid UTF-8 becomes U+FFFD, and does not end the connection."""
    begin = at + 2
    end = begin + (section[at] << 8 | section[at + 1])
    return str(section[begin:end], "utf-8", "replace"), end


def read(first: int, body: bytes | memoryview) -> ControlPacket:
    """Decode a packet other than a PUBLISH from its first byte and all that follows its length.

    Raises MalformedError.
    """
    if first & 0x0F:
        raise MalformedError(f"a packet that begins with {first:#04x}")
    reader = _READERS.get(first)
    if reader is None:
        raise MalformedError(f"a packet of type {first >> 4}, which was not requested", PROTOCOL_ERROR)
    try:
        return reader(body)
    except IndexError as error:
        raise MalformedError("a packet that ends too early") from error
    except ValueError as error:
        raise MalformedError(str(error)) from error


def _puback(body: bytes | memoryview) -> Acknowledged:
    """Decode a PUBACK: the identifier, then a reason unless it is success, then properties."""
    if len(body) == 2:
        return Acknowledged(int.from_bytes(body), 0)
    if len(body) > 3:
        _properties(body, 3)
    return Acknowledged(body[0] << 8 | body[1], body[2])


def _answer(body: bytes | memoryview) -> Acknowledged:
    """Decode a SUBACK or UNSUBACK: requests have one filter each, so it has one reason."""
    identifier = body[0] << 8 | body[1]
    _, at = _properties(body, 2)
    if at != len(body) - 1:
        raise ValueError("an answer to one filter has one reason")
    return Acknowledged(identifier, body[at])


def _connack(body: bytes | memoryview) -> ConnAck:
    """Decode a CONNACK: flags, reason, properties."""
    flags, reason = body[0], body[1]
    if flags > 1:
        raise ValueError("a CONNACK with unknown flags")
    values: dict[int, Any] = {}
    at = 2
    if len(body) > 2:
        values, at = _properties(body, 2)
    elif reason == OLDER_PROTOCOL:
        reason = UNSUPPORTED
    if at != len(body):
        raise ValueError("a CONNACK with extra bytes")
    grants = Grants(
        receive_maximum=values.get(RECEIVE_MAXIMUM, _DEFAULTS.receive_maximum),
        max_packet=values.get(MAXIMUM_PACKET, _DEFAULTS.max_packet),
        max_qos=values.get(MAXIMUM_QOS, _DEFAULTS.max_qos),
        retain=bool(values.get(RETAIN, True)),
        wildcards=bool(values.get(WILDCARDS, True)),
        shared=bool(values.get(SHARED, True)),
    )
    if not grants.receive_maximum or values.get(MAXIMUM_PACKET) == 0:
        raise MalformedError("a limit of 0", PROTOCOL_ERROR)
    return ConnAck(bool(flags), reason, grants, values.get(KEEPALIVE), values.get(REASON, ""))


def _disconnect(body: bytes | memoryview) -> Disconnect:
    """Decode a DISCONNECT: a reason unless it is 0, then properties."""
    values = _properties(body, 1)[0] if len(body) > 1 else {}
    return Disconnect(body[0] if len(body) else 0, values.get(REASON, ""))


def _pong(body: bytes | memoryview) -> Pong:
    """Decode a PINGRESP."""
    if len(body):
        raise ValueError("a PINGRESP with content")
    return Pong()


_READERS: dict[int, Callable[[bytes | memoryview], ControlPacket]] = {
    CONNACK: _connack,
    PUBACK: _puback,
    SUBACK: _answer,
    UNSUBACK: _answer,
    PINGRESP: _pong,
    DISCONNECT: _disconnect,
}


def _properties(body: bytes | memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Decode the properties from ``at``, where their length is; return the relevant ones, and their end."""
    length, at = varint(body, at)
    end = at + length
    if end > len(body):
        raise IndexError
    values: dict[int, Any] = {}
    remaining = MOST_PROPERTIES
    while at < end:
        if not remaining:
            raise ValueError(f"more than {MOST_PROPERTIES} properties")
        remaining -= 1
        kind, at = body[at], at + 1
        if width := FIXED.get(kind):
            values[kind] = int.from_bytes(body[at : at + width])
            at += width
        elif kind in LONG:
            begin, at = _long(body, at, end)
            if kind == REASON:
                values[kind] = str(body[begin:at], "utf-8", "replace")
        elif kind == USER:
            _, at = _long(body, at, end)
            _, at = _long(body, at, end)
        else:
            raise ValueError(f"no such property: {kind:#x}")
    if at != end:
        raise IndexError
    return values, end


def _long(body: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the begin and end of the content of text or bytes at a position. Raises IndexError."""
    begin = at + 2
    after = begin + (body[at] << 8 | body[at + 1])
    if after > end:
        raise IndexError
    return begin, after
