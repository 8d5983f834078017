"""What must hold of the lean client's parser whatever bytes come: each target takes any, and fails if it does not hold.

The fuzzer runs them (``python -m tests.fuzz``), and so do the unit tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from halimede.bus.message import MAX_PROPERTIES, Packet
from halimede.bus.mqtt5 import buffers, decoder, encoder
from halimede.bus.mqtt5.buffers import ReceiveBuffer
from halimede.bus.mqtt5.decoder import ControlPacket, Disconnect, MalformedError
from halimede.bus.topic_filter import packet_size

#: the largest packet that may come, in these targets, as a multiple of what is large
LIMIT = 3


class Message(NamedTuple):
    """A message and its packet identifier."""

    packet: Packet
    identifier: int


Received = Message | ControlPacket


def stream(data: bytes) -> None:
    """A stream gives the same packets, and the same failure, however it is cut into pieces."""
    sizes = [1 + byte for byte in data[:4]] or [1]
    data = data[4:]
    whole = packets_of(data, [len(data) or 1])
    assert packets_of(data, sizes) == whole
    assert packets_of(data, [1]) == whole


def read(first: int, body: bytes | memoryview) -> Received:
    """Read any packet by its first byte and all that follows its length."""
    return Message(*decoder.publish(first, body)) if first & 0xF0 == decoder.PUBLISH else decoder.read(first, body)


def packet(data: bytes) -> None:
    """A packet is read, or is malformed; one that is read can be written, and is then read again as the same."""
    if not data:
        return
    try:
        came = read(data[0], memoryview(data)[1:])
    except MalformedError as error:
        _insist(str(error) and 0x80 <= error.code <= 0xFF)
        return
    if isinstance(came, Message):
        _published(came.packet, came.identifier)
    elif isinstance(came, Disconnect):
        assert len(came.reason_string) <= 0xFFFF


def properties(data: bytes) -> None:
    """What lies beside a body is read, or is a ValueError."""
    try:
        _, __, expiry_s, users = decoder.properties(data)
    except ValueError as error:
        _insist(str(error))
        return
    assert len(users) <= MAX_PROPERTIES + 1
    assert expiry_s is None or 0 <= expiry_s < 2**32


TARGETS: dict[str, Callable[[bytes], None]] = {"stream": stream, "packet": packet, "properties": properties}


def packets_of(data: bytes, sizes: list[int]) -> list[Received | tuple[str, int]]:
    """Return the packets in a stream that comes in pieces of these sizes, in turn; the last may be what is wrong."""
    limit = LIMIT * buffers.LARGE
    came: list[Received | tuple[str, int]] = []
    try:
        for first, body in _pieces(ReceiveBuffer(limit), data, sizes):
            assert len(body) < limit
            if isinstance(body, memoryview):
                assert body.nbytes == len(body.obj)  # type: ignore[arg-type]  # its buffer is its own
            came.append(read(first, body))
    except MalformedError as error:
        return [*came, (str(error), error.code)]
    return came


def _insist(holds: object) -> None:
    assert holds


def _pieces(into: ReceiveBuffer, data: bytes, sizes: list[int]) -> Iterator[tuple[int, bytes | memoryview]]:
    at = turn = 0
    while at < len(data):
        room = into.free
        assert 0 < len(room) <= max(buffers.SHARED_BYTES, LIMIT * buffers.LARGE, len(data))
        count = min(sizes[turn % len(sizes)], len(room), len(data) - at)
        room[:count] = data[at : at + count]
        packets, malformed = into.take_packets(count)
        yield from packets
        if malformed:
            raise malformed
        at, turn = at + count, turn + 1


def _published(came: Packet, identifier: int) -> None:
    assert came.qos in {0, 1}
    assert bool(identifier) == bool(came.qos)
    texts = (came.topic, came.response_topic, *(text for pair in came.properties for text in pair))
    if max(len(text.encode()) for text in texts) > 0xFFFF:
        return  # with U+FFFD for each byte that is no text it has no room any more
    head = encoder.publish(came, identifier, len(came.payload))
    assert packet_size(came) == len(head) + len(came.payload)
    [twice] = packets_of_any_size(head + came.payload)
    assert twice == (replace(came, duplicate=False), identifier)


def packets_of_any_size(data: bytes) -> list[Received]:
    """Return the packets in bytes that hold nothing else."""
    return [read(first, body) for first, body in _pieces(ReceiveBuffer(len(data)), data, [len(data)])]
