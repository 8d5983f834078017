"""What MQTT v5 carries beside a body, read from the bytes of a PUBLISH's properties.

Anybody who may publish chooses them. This takes time in proportion to what it may take at all, and leaves to the port
what to do about more (``check_properties``).
"""

from __future__ import annotations

from typing import NamedTuple

from halimede.bus.message import MAX_PROPERTIES

EXPIRY, RESPONSE_TOPIC, CORRELATION, USER = 0x02, 0x08, 0x09, 0x26
#: the widths of those of fixed length that a PUBLISH may carry: payload format, expiry, topic alias
WIDTHS = {0x01: 1, EXPIRY: 4, 0x23: 2}
#: text and bytes, with two bytes of length before them: content type, response topic, correlation data
LONG = frozenset({0x03, RESPONSE_TOPIC, CORRELATION})
SUBSCRIPTION = 0x0B
#: so many others may be beside user properties, since none comes twice
KINDS = 8
#: a variable byte integer takes so many bytes at most (MQTT v5, 1.5.5)
VARINT_BYTES = 4


class Beside(NamedTuple):
    """What v5 carries beside a body. Of too many user properties those that come first, one more than may be."""

    response_topic: str = ""
    correlation: bytes = b""
    expiry_s: int | None = None
    properties: tuple[tuple[str, str], ...] = ()


NOTHING = Beside()


def read(section: bytes) -> Beside:
    """Read the properties of a PUBLISH, without their length. Raises ValueError of what no broker sends."""
    response = correlation = b""
    expiry: int | None = None
    users: list[tuple[str, str]] = []
    at, size, left = 0, len(section), MAX_PROPERTIES + KINDS
    try:
        while at < size and len(users) <= MAX_PROPERTIES and left:
            left -= 1
            kind, at = section[at], at + 1
            if kind in LONG:
                value, at = _long(section, at)
                if kind == RESPONSE_TOPIC:
                    response = value
                elif kind == CORRELATION:
                    correlation = value
            elif kind == USER:
                name, at = _long(section, at)
                content, at = _long(section, at)
                users.append((text(name), text(content)))
            elif width := WIDTHS.get(kind):
                if at + width > size:
                    raise IndexError
                if kind == EXPIRY:
                    expiry = int.from_bytes(section[at : at + width])
                at += width
            elif kind == SUBSCRIPTION:
                _, at = varint(section, at)
            else:
                raise ValueError(f"a message has no property {kind:#x}")
    except IndexError as error:
        raise ValueError("the properties of a message end too early") from error
    return Beside(text(response), correlation, expiry, tuple(users))


def varint(section: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Read a variable byte integer; return it and where it ends. Raises IndexError or ValueError."""
    value = shift = 0
    for shift in range(0, 7 * VARINT_BYTES, 7):
        byte = section[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a length of more than four bytes")


def text(raw: bytes) -> str:
    """Read text: what no broker should let through shows as U+FFFD, and ends no connection."""
    return raw.decode(errors="replace")


def _long(section: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + int.from_bytes(section[at : at + 2])
    if end > len(section):
        raise IndexError
    return section[at + 2 : end], end
