"""Reads the nodes, functions and tensors of an ONNX file, without a parser of protobuf and without its weights.

It finds out which operators a model uses, and which other files, before a runtime opens the model.

The ``onnx`` package could do so, but it is 31 MB that an edge node needs for nothing else, parses the whole file into
objects (several times its size in memory), and runs a native parser on unchecked bytes. Here the file is mapped,
skipped through and never copied: weights cost nothing, and memory does not grow with the file. This reader is at least
as strict as protobuf's own: it refuses what it cannot follow.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

#: the nesting limit of protobuf's own reader
MAX_DEPTH = 100
#: the most fields with a length, over all levels: half a minute of reading
MAX_FIELDS = 20_000_000
#: the most bytes of a name, a domain or a path
MAX_TEXT = 65_536
#: the most key-value pairs of one tensor; ONNX defines five
MAX_ENTRIES = 64
#: the highest tag of a field: its number and its wire type in one integer
MAX_TAG = 2**32 - 1
#: the most bytes of a varint, protobuf's integer of variable length
MAX_VARINT_BYTES = 10


class MalformedProtobufError(ValueError):
    """The bytes are not a protobuf message, or exceed one of this module's limits."""


class MessageType(Enum):
    """The types of messages in onnx.proto that contain operators and tensors, directly or not."""

    MODEL = auto()
    GRAPH = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    TENSOR = auto()
    SPARSE = auto()
    FUNCTION = auto()
    TRAINING = auto()
    ENTRY = auto()


#: numbers of a message's fields that hold other messages to read, with the type of these
CHILDREN: dict[MessageType, dict[int, MessageType]] = {
    MessageType.MODEL: {7: MessageType.GRAPH, 20: MessageType.TRAINING, 25: MessageType.FUNCTION},
    MessageType.TRAINING: {1: MessageType.GRAPH, 2: MessageType.GRAPH},
    MessageType.FUNCTION: {7: MessageType.NODE, 11: MessageType.ATTRIBUTE},
    MessageType.GRAPH: {1: MessageType.NODE, 5: MessageType.TENSOR, 15: MessageType.SPARSE},
    MessageType.NODE: {5: MessageType.ATTRIBUTE},
    MessageType.ATTRIBUTE: {
        5: MessageType.TENSOR,
        6: MessageType.GRAPH,
        10: MessageType.TENSOR,
        11: MessageType.GRAPH,
        22: MessageType.SPARSE,
        23: MessageType.SPARSE,
    },
    MessageType.SPARSE: {1: MessageType.TENSOR, 2: MessageType.TENSOR},
    MessageType.TENSOR: {13: MessageType.ENTRY},
    MessageType.ENTRY: {},
}
#: numbers of a message's fields that hold text to keep, with the text's key in ``ProtobufRecord.texts``
TEXTS: dict[MessageType, dict[int, str]] = {
    MessageType.NODE: {4: "name", 7: "domain"},
    MessageType.FUNCTION: {1: "name", 10: "domain"},
    MessageType.TENSOR: {8: "name"},
    MessageType.ENTRY: {1: "key", 2: "value"},
}


@dataclass(slots=True)
class ProtobufRecord:
    """A node, function or tensor of a model, as ``kind`` says.

    ``texts``: its ``name`` and ``domain``, as far as the file gives them. ``entries``: the key-value pairs with which a
    tensor refers to a file; otherwise empty.
    """

    kind: MessageType
    texts: dict[str, str] = field(default_factory=dict)
    entries: list[tuple[str, str]] = field(default_factory=list)


def _one_of(wire_type: int) -> bytes:
    """Return a regular expression for the one-byte tags of protobuf's wire type (0 to 5)."""
    return b"[" + b"".join(re.escape(bytes([number << 3 | wire_type])) for number in range(1, 16)) + b"]"


#: consecutive fields of plain numbers: lists of a million floats are often written as a million fields
_numbers = re.compile(
    rb"(?:%b[\x80-\xff]{0,9}[\x00-\x7f]|%b.{4}|%b.{8})++" % (_one_of(0), _one_of(5), _one_of(1)), re.DOTALL
)


def records(content: mmap.mmap | bytes) -> Iterator[ProtobufRecord]:
    """Yield every node, function and tensor of a ModelProto, the content of an ONNX file.

    Raises MalformedProtobufError.
    """
    remaining = MAX_FIELDS
    root = ProtobufRecord(MessageType.MODEL)
    stack: list[tuple[ProtobufRecord, Iterator[tuple[int, int, int]]]] = [(root, fields(content, 0, len(content)))]
    while stack:
        record, record_fields = stack[-1]
        children, texts = CHILDREN[record.kind], TEXTS.get(record.kind, {})
        for number, start, end in record_fields:
            remaining -= 1
            if remaining < 0:
                raise MalformedProtobufError(f"it has more than {MAX_FIELDS} fields")
            if number in children:
                if len(stack) >= MAX_DEPTH:
                    raise MalformedProtobufError(f"it is nested more than {MAX_DEPTH} levels deep")
                stack.append((ProtobufRecord(children[number]), fields(content, start, end)))
                break  # the child first: the further fields of this record are read after it
            if number in texts:
                record.texts[texts[number]] = _text(content, start, end)
        else:  # all fields of the record are read
            stack.pop()
            if record.kind is MessageType.ENTRY:
                entries = stack[-1][0].entries
                if len(entries) >= MAX_ENTRIES:
                    raise MalformedProtobufError(f"a tensor has more than {MAX_ENTRIES} external data entries")
                entries.append((record.texts.get("key", ""), record.texts.get("value", "")))
            elif record.kind in {MessageType.NODE, MessageType.FUNCTION, MessageType.TENSOR}:
                yield record


def fields(content: mmap.mmap | bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, end) of each field with a length between the offsets ``at`` and ``end`` in bytes.

    Raises MalformedProtobufError.
    """
    while at < end:
        if numbers := _numbers.match(content, at, end):
            at = numbers.end()
            continue
        tag, at = _varint(content, at, end)
        number, wire_type = tag >> 3, tag & 7
        if not number or tag > MAX_TAG:
            raise MalformedProtobufError(f"there is no field {number}")
        size = 0
        if wire_type == 0:
            _, at = _varint(content, at, end)
        elif wire_type in {1, 5}:
            size = 8 if wire_type == 1 else 4
        elif wire_type == 2:
            size, at = _varint(content, at, end)
        else:
            raise MalformedProtobufError(f"field {number} is of wire type {wire_type}")
        if at + size > end:
            raise MalformedProtobufError(f"field {number} exceeds its end")
        if wire_type == 2:
            yield number, at, at + size
        at += size


def _varint(content: mmap.mmap | bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at offset ``at``, and the offset after it. Raises MalformedProtobufError."""
    value = 0
    for shift in range(MAX_VARINT_BYTES):
        if at >= end:
            break
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at
    raise MalformedProtobufError("it is truncated")


def _text(content: mmap.mmap | bytes, start: int, end: int) -> str:
    """Return the text between two offsets. Raises MalformedProtobufError if it is too long or not UTF-8."""
    if end - start > MAX_TEXT:
        raise MalformedProtobufError(f"a name of {end - start} bytes")
    try:
        return content[start:end].decode()
    except UnicodeDecodeError as error:
        raise MalformedProtobufError("a name that is not UTF-8") from error
