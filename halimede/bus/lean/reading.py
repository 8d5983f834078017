"""MQTT v5 control packets from bytes: those that a broker sends (MQTT v5, chapter 3).

The only failure is ``MalformedError``, with the reason code that goes back to the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from halimede.bus.beside import NOTHING, Beside, text, varint
from halimede.bus.beside import read as read_beside
from halimede.bus.message import Grants
from halimede.errors import HalimedeError

CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xB0, 0xD0, 0xE0
#: reason codes of ours
MALFORMED, PROTOCOL_ERROR, TOO_LARGE = 0x81, 0x82, 0x95
RECEIVE_MAXIMUM, MAXIMUM_QOS, RETAIN, MAXIMUM_PACKET, REASON, USER = 0x21, 0x24, 0x25, 0x27, 0x1F, 0x26
WILDCARDS, SHARED, KEEPALIVE = 0x28, 0x2A, 0x13
#: what a broker that knows no v5 answers, and what v5 calls that
OLDER_PROTOCOL, UNSUPPORTED = 0x01, 0x84
#: widths of all properties of fixed length that a broker may send beside a PUBLISH
FIXED = {0x11: 4, KEEPALIVE: 2, RECEIVE_MAXIMUM: 2, 0x22: 2, MAXIMUM_QOS: 1, RETAIN: 1, MAXIMUM_PACKET: 4}
FIXED |= {WILDCARDS: 1, 0x29: 1, SHARED: 1}
#: text and bytes
LONG = frozenset({0x12, 0x15, 0x16, 0x1A, 0x1C, REASON})


#: of one packet; more would only take time
MOST_PROPERTIES = 1_000

#: what holds of a broker that says nothing of it
_UNSAID = Grants()


class MalformedError(HalimedeError):
    """The broker sent what MQTT v5 does not allow. ``code`` is the reason to give it."""

    def __init__(self, message: str, code: int = MALFORMED) -> None:
        super().__init__(message)
        self.code = code


class ConnAck(NamedTuple):
    """The broker's word on a connection. ``keepalive_s``: what it wants instead of what it was told."""

    resumed: bool
    reason: int
    grants: Grants
    keepalive_s: int | None
    said: str


class Publish(NamedTuple):
    """A message. ``identifier`` is 0 at QoS 0; ``payload`` is a view of the buffer that it came in."""

    topic: str
    qos: int
    retain: bool
    duplicate: bool
    identifier: int
    beside: Beside
    payload: memoryview


class Acknowledged(NamedTuple):
    """The broker's word on a publish, a subscription or the end of one."""

    identifier: int
    reason: int


class Disconnect(NamedTuple):
    """The broker ends the connection."""

    reason: int
    said: str


class Pong(NamedTuple):
    """The broker's answer to a ping."""


Incoming = ConnAck | Publish | Acknowledged | Disconnect | Pong


def read(first: int, body: memoryview) -> Incoming:
    """Read a packet by its first byte and all that follows its length. Raises MalformedError."""
    if first & 0xF0 == PUBLISH:
        reader: Callable[[int, memoryview], Incoming] | None = _publish
    elif first & 0x0F:
        raise MalformedError(f"a packet that begins with {first:#04x}")
    else:
        reader = _READERS.get(first)
    if reader is None:
        raise MalformedError(f"a packet of type {first >> 4}, which nobody asked for", PROTOCOL_ERROR)
    try:
        return reader(first, body)
    except (IndexError, ValueError) as error:
        raise MalformedError(str(error) or "a packet that ends too early") from error


def _publish(first: int, body: memoryview) -> Publish:
    qos = first >> 1 & 3
    if qos > 1:
        raise MalformedError(f"a message at QoS {qos}, which was not granted", PROTOCOL_ERROR)
    size = len(body)
    at = 2 + int.from_bytes(body[:2])
    if at + 2 * qos >= size:  # a byte of the properties' length is always there
        raise IndexError
    topic = str(body[2:at], "utf-8", "replace")
    identifier = 0
    if qos:
        identifier = int.from_bytes(body[at : at + 2])
        at += 2
        if not identifier:
            raise ValueError("a message without an identifier")
    length, at = varint(body, at)
    beside = NOTHING
    if length:
        if at + length > size:
            raise IndexError
        beside = read_beside(bytes(body[at : at + length]))
        at += length
    return Publish(topic, qos, bool(first & 1), bool(first & 8), identifier, beside, body[at:])


def _answer(_: int, body: memoryview) -> Acknowledged:
    """Read a PUBACK: identifier, then a reason unless all is well, then what else may be said."""
    if len(body) == 2:
        return Acknowledged(int.from_bytes(body), 0)
    if len(body) > 3:
        _properties(body, 3)
    return Acknowledged(body[0] << 8 | body[1], body[2])


def _answers(__: int, body: memoryview) -> Acknowledged:
    """Read a SUBACK or UNSUBACK: we ask for one filter at a time, so one reason comes back."""
    identifier = body[0] << 8 | body[1]
    _, at = _properties(body, 2)
    if at != len(body) - 1:
        raise ValueError("an answer to one filter has one reason")
    return Acknowledged(identifier, body[at])


def _connack(_: int, body: memoryview) -> ConnAck:
    flags, reason = body[0], body[1]
    if flags > 1:
        raise ValueError("a CONNACK with unknown flags")
    said: dict[int, Any] = {}
    at = 2
    if len(body) > 2:
        said, at = _properties(body, 2)
    elif reason == OLDER_PROTOCOL:
        reason = UNSUPPORTED
    if at != len(body):
        raise ValueError("a CONNACK with something behind it")
    grants = Grants(
        receive_maximum=said.get(RECEIVE_MAXIMUM, _UNSAID.receive_maximum),
        max_packet=said.get(MAXIMUM_PACKET, _UNSAID.max_packet),
        max_qos=said.get(MAXIMUM_QOS, _UNSAID.max_qos),
        retain=bool(said.get(RETAIN, 1)),
        wildcards=bool(said.get(WILDCARDS, 1)),
        shared=bool(said.get(SHARED, 1)),
    )
    if not grants.receive_maximum or said.get(MAXIMUM_PACKET) == 0:
        raise MalformedError("a limit of 0", PROTOCOL_ERROR)
    return ConnAck(bool(flags), reason, grants, said.get(KEEPALIVE), said.get(REASON, ""))


def _disconnect(_: int, body: memoryview) -> Disconnect:
    said = _properties(body, 1)[0] if len(body) > 1 else {}
    return Disconnect(body[0] if len(body) else 0, said.get(REASON, ""))


def _pong(_: int, body: memoryview) -> Pong:
    if len(body):
        raise ValueError("a PINGRESP with something in it")
    return Pong()


_READERS: dict[int, Callable[[int, memoryview], Incoming]] = {
    CONNACK: _connack,
    PUBACK: _answer,
    SUBACK: _answers,
    UNSUBACK: _answers,
    PINGRESP: _pong,
    DISCONNECT: _disconnect,
}


def _properties(body: memoryview, at: int) -> tuple[dict[int, Any], int]:
    """Read the properties that begin at ``at`` with their length; return those that matter, and where they end."""
    length, at = varint(body, at)
    end = at + length
    if end > len(body):
        raise IndexError
    found: dict[int, Any] = {}
    left = MOST_PROPERTIES
    while at < end:
        if not left:
            raise ValueError(f"more than {MOST_PROPERTIES} properties")
        left -= 1
        kind, at = body[at], at + 1
        if width := FIXED.get(kind):
            found[kind] = int.from_bytes(body[at : at + width])
            at += width
        elif kind in LONG:
            at, value = _skip(body, at, end)
            if kind == REASON:
                found[kind] = text(bytes(value))
        elif kind == USER:
            at, _ = _skip(body, at, end)
            at, _ = _skip(body, at, end)
        else:
            raise ValueError(f"no such property: {kind:#x}")
    if at != end:
        raise IndexError
    return found, end


def _skip(body: memoryview, at: int, end: int) -> tuple[int, memoryview]:
    """Return where text or bytes end, and them."""
    first = at + 2
    after = first + (body[at] << 8 | body[at + 1])
    if after > end:
        raise IndexError
    return after, body[first:after]
