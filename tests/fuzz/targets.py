"""What must hold of the lean client's parser whatever bytes come: each target takes any, and fails if it does not hold.

The fuzzer runs them (``python -m tests.fuzz``), and so do the unit tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from halimede.bus import beside
from halimede.bus.lean import inflow, writing
from halimede.bus.lean.inflow import Inflow
from halimede.bus.lean.reading import Disconnect, Incoming, MalformedError, Publish, read
from halimede.bus.message import MAX_PROPERTIES, Packet
from halimede.bus.packets import packet_size

#: the largest packet that may come, in these targets, as a multiple of what is large
LIMIT = 3


def stream(data: bytes) -> None:
    """A stream gives the same packets, and the same failure, however it is cut into pieces."""
    sizes = [1 + byte for byte in data[:4]] or [1]
    data = data[4:]
    whole = packets_of(data, [len(data) or 1])
    assert packets_of(data, sizes) == whole
    assert packets_of(data, [1]) == whole


def packet(data: bytes) -> None:
    """A packet is read, or is malformed; one that is read can be written, and is then read again as the same."""
    if not data:
        return
    try:
        came = read(data[0], memoryview(data)[1:])
    except MalformedError as error:
        _insist(str(error) and 0x80 <= error.code <= 0xFF)
        return
    if isinstance(came, Publish):
        _published(came)
    elif isinstance(came, Disconnect):
        assert len(came.said) <= 0xFFFF


def properties(data: bytes) -> None:
    """What lies beside a body is read, or is a ValueError."""
    try:
        came = beside.read(data)
    except ValueError as error:
        _insist(str(error))
        return
    assert len(came.properties) <= MAX_PROPERTIES + 1
    assert came.expiry_s is None or 0 <= came.expiry_s < 2**32


TARGETS: dict[str, Callable[[bytes], None]] = {"stream": stream, "packet": packet, "properties": properties}


def packets_of(data: bytes, sizes: list[int]) -> list[Incoming | tuple[str, int]]:
    """Return the packets in a stream that comes in pieces of these sizes, in turn; the last may be what is wrong."""
    limit = LIMIT * inflow.LARGE
    came: list[Incoming | tuple[str, int]] = []
    try:
        for first, body, own in _pieces(Inflow(limit), data, sizes):
            assert own == (body.nbytes == len(body.obj))  # a buffer of its own is as long as the packet
            assert len(body) < limit
            came.append(_kept(read(first, body)))
    except MalformedError as error:
        return [*came, (str(error), error.code)]
    return came


def _insist(holds: object) -> None:
    assert holds


def _pieces(into: Inflow, data: bytes, sizes: list[int]) -> Iterator[tuple[int, memoryview, bool]]:
    at = turn = 0
    while at < len(data):
        room = into.room
        assert 0 < len(room) <= max(inflow.ROOM, LIMIT * inflow.LARGE, len(data))
        count = min(sizes[turn % len(sizes)], len(room), len(data) - at)
        room[:count] = data[at : at + count]
        yield from into.filled(count)
        at, turn = at + count, turn + 1


def _kept(came: Incoming) -> Incoming:
    """Return a packet that stands when its buffer is used again."""
    return came._replace(payload=memoryview(bytes(came.payload))) if isinstance(came, Publish) else came


def _published(came: Publish) -> None:
    assert came.qos in {0, 1}
    assert bool(came.identifier) == bool(came.qos)
    topic, qos, retain, _, identifier, said, payload = came
    if (
        max(len(text.encode()) for text in (topic, said.response_topic, *(t for p in said.properties for t in p)))
        > 0xFFFF
    ):
        return  # with U+FFFD for each byte that is no text it has no room any more
    again = Packet(
        topic, bytes(payload), qos, retain, said.response_topic, said.correlation, said.expiry_s, said.properties
    )
    head = writing.publish(again, identifier, len(payload))
    assert packet_size(again) == len(head) + len(payload)
    [twice] = packets_of_any_size(head + payload)
    assert twice == came._replace(duplicate=False)


def packets_of_any_size(data: bytes) -> list[Incoming]:
    """Return the packets in bytes that hold nothing else."""
    return [_kept(read(first, body)) for first, body, _ in _pieces(Inflow(len(data)), data, [len(data)])]
