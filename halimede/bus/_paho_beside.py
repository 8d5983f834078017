"""Reads what lies beside the body of a message that arrives, in place of paho.

Anybody who may publish chooses it, and paho's reader takes quadratic time over it (half a minute of a core for 10^5
user properties, which fit into one small packet) and ends the connection at U+FEFF, which brokers let through: a
retained message could keep a client off the broker for ever. This one takes time in proportion to what it may take at
all, and leaves to the port what to do about more (``check_properties``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode

from halimede.bus.port import MAX_PROPERTIES

EXPIRY, RESPONSE_TOPIC, CORRELATION, USER = 0x02, 0x08, 0x09, 0x26
#: the widths of those of fixed length that a PUBLISH may carry: payload format, expiry, topic alias
WIDTHS = {0x01: 1, EXPIRY: 4, 0x23: 2}
#: text and bytes, with two bytes of length before them: content type, response topic, correlation data
LONG = frozenset({0x03, RESPONSE_TOPIC, CORRELATION})
SUBSCRIPTION = 0x0B


@dataclass(frozen=True, slots=True)
class Beside:
    """What v5 carries beside a body. Of too many user properties those that come first, one more than may be."""

    response_topic: str = ""
    correlation: bytes = b""
    expiry_s: int | None = None
    properties: tuple[tuple[str, str], ...] = ()


class ReadingClient(Client):
    """paho's client, except that ``beside`` and ``payload`` are read here: those of the message of ``on_message``.

    It also sends large packets without copying what is left of them at each step.
    """

    beside = Beside()
    payload = b""

    def _packet_queue(self, command: int, packet: Any, mid: int, qos: int, info: Any = None) -> MQTTErrorCode:
        # paho sends ``packet[done:]`` as often as the socket takes a part: of a view that is no copy
        return super()._packet_queue(command, memoryview(packet), mid, qos, info)  # type: ignore[arg-type]  # it only slices

    def _handle_publish(self) -> MQTTErrorCode:
        # paho gives no other way in; should it ever call this no more, its own reader works as before
        packet: Any = self._in_packet["packet"]
        start = _start(packet, qos=self._in_packet["command"] >> 1 & 3)
        length, first = _varint(packet, start)
        body = first + length
        self.beside = read(bytes(packet[first:body])) if length else Beside()
        with memoryview(packet) as view:
            self.payload = bytes(view[body:])
        packet[start:] = b"\0"  # nothing is left for paho, which would copy it three times
        return super()._handle_publish()


def read(section: bytes) -> Beside:
    """Read the properties of a PUBLISH, without their length. Raises ValueError of what no broker sends."""
    found: dict[int, Any] = {}
    users: list[tuple[str, str]] = []
    try:
        for kind, value in _each(section):
            if kind != USER:
                found[kind] = value
                continue
            users.append(value)
            if len(users) > MAX_PROPERTIES:
                break
    except IndexError as error:
        raise ValueError("the properties of a message end too early") from error
    return Beside(
        response_topic=_text(found.get(RESPONSE_TOPIC, b"")),
        correlation=found.get(CORRELATION, b""),
        expiry_s=found.get(EXPIRY),
        properties=tuple(users),
    )


def _each(section: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(section):
        kind, at = section[at], at + 1
        value: Any
        if kind == USER:
            name, at = _long(section, at)
            content, at = _long(section, at)
            value = (_text(name), _text(content))
        elif kind in LONG:
            value, at = _long(section, at)
        elif kind in WIDTHS:
            value, at = int.from_bytes(section[at : at + WIDTHS[kind]]), at + WIDTHS[kind]
        elif kind == SUBSCRIPTION:
            value, at = _varint(section, at)
        else:
            raise ValueError(f"a message has no property {kind:#x}")
        yield kind, value


def _start(packet: Any, *, qos: int) -> int:
    """Return where the length of the properties stands: behind topic and packet identifier."""
    return 2 + int.from_bytes(packet[:2]) + (2 if qos else 0)


def _long(section: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(section[at : at + 2])
    if end > len(section):
        raise IndexError
    return section[at + 2 : end], end


def _varint(section: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while section[at] & 0x80:
        value |= (section[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return value | section[at] << shift, at + 1


def _text(raw: bytes) -> str:
    # what no broker should let through shows as U+FFFD, and ends no connection
    return raw.decode(errors="replace")
