"""Common rules of all adapters: which topics a filter matches, the prefix of topics, and the size of a packet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from halimede.bus.message import Packet
from halimede.errors import TooLargeError

#: begin of the filter of a shared subscription
SHARE = "$share/"
#: a packet with at most ``FEW`` user properties has at most ``OVERHEAD`` bytes besides its body: nothing is counted if
#: the limit leaves so much room
FEW, OVERHEAD = 3, 9 * 65_536 + 64


def split_shared(filter_: str) -> tuple[str, str]:
    """Return group and filter of ``$share/<group>/<filter>``; a plain filter has the group ``""``."""
    if not filter_.startswith(SHARE):
        return "", filter_
    _, group, plain = filter_.split("/", 2)
    return group, plain


def matches(levels: Sequence[str], topic: Sequence[str]) -> bool:
    """Whether the levels of a filter (without ``$share``) match the levels of a topic (MQTT v5, 4.7)."""
    if topic[0].startswith("$") and levels[0] in {"+", "#"}:
        return False
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(topic) or (level != "+" and level != topic[index]):
            return False
    return len(levels) == len(topic)


def has_overlap(levels: Sequence[str], other_levels: Sequence[str]) -> bool:
    """Whether a topic can match both filters, given as their levels (without ``$share``)."""
    if {"+", "#"} & {levels[0], other_levels[0]} and (levels[0].startswith("$") or other_levels[0].startswith("$")):
        return False
    for first, second in zip_longest(levels, other_levels):
        if "#" in {first, second}:  # "#" also matches no level
            return True
        if first != second and (None in {first, second} or "+" not in {first, second}):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of all topics on a broker that several systems share. ``text`` is empty, or ends in ``/``."""

    text: str = ""

    def add_to(self, packet: Packet) -> Packet:
        """Return a packet with the prefix before its topic and response topic."""
        if not self.text:
            return packet
        response = self.text + packet.response_topic if packet.response_topic else ""
        return replace(packet, topic=self.text + packet.topic, response_topic=response)

    def remove_from(self, packet: Packet) -> Packet:
        """Return a packet without the prefix. A topic outside the prefix becomes empty."""
        if not self.text:
            return packet
        return replace(packet, topic=self._inner(packet.topic), response_topic=self._inner(packet.response_topic))

    def filter(self, filter_: str) -> str:
        """Return a filter with the prefix before its topic; ``$share/<group>/`` stays in front."""
        group, plain = split_shared(filter_)
        return f"{SHARE}{group}/{self.text}{plain}" if group else self.text + plain

    def _inner(self, topic: str) -> str:
        """Return a topic without the prefix, empty for a topic outside of it."""
        return topic.removeprefix(self.text) if topic.startswith(self.text) else ""


def packet_size(packet: Packet) -> int:
    """Return the bytes of the PUBLISH of a packet, header included: brokers compare it with their limit."""
    properties = sum(1 + _text(key) + _text(value) for key, value in packet.properties)
    properties += 1 + _text(packet.response_topic) if packet.response_topic else 0
    properties += 3 + len(packet.correlation) if packet.correlation else 0
    properties += 5 if packet.expiry_s is not None else 0
    length = _text(packet.topic) + (2 if packet.qos else 0) + _varint(properties) + properties
    length += len(packet.payload) + len(packet.tail)
    return 1 + _varint(length) + length


def check_size(packet: Packet, most: int) -> int:
    """Return the bytes of a packet, or of its body alone if that is far below ``most``.

    Raises TooLargeError if the packet has more than ``most`` bytes.
    """
    size = len(packet.payload) + len(packet.tail)
    if size + OVERHEAD > most or len(packet.properties) > FEW:
        size = packet_size(packet)
        if size > most:
            raise TooLargeError(f"{packet.topic}: {size} bytes are over the broker's limit of {most}")
    return size


def _text(text: str) -> int:
    """Return the number of bytes of an encoded text, with its two bytes of length."""
    return 2 + len(text.encode())


def _varint(value: int) -> int:
    """Return the number of bytes of a length, encoded as a variable byte integer (MQTT v5, 1.5.5)."""
    return 1 if value < 0x80 else 2 if value < 0x4000 else 3 if value < 0x200000 else 4
