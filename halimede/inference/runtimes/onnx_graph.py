"""Reads the input of an ONNX file, the operators behind it, and its metadata, without ONNX Runtime and weights.

``graph_input`` and ``file_metadata`` call it. Protobuf fields that are not needed are skipped, and nothing is loaded.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from halimede.inference.file_metadata import MAX_TEXT, MAX_TEXTS, FileMetadata, class_names
from halimede.inference.graph_input import GraphInput, first_operators
from halimede.system.onnx_file import fields

#: numbers of fields in onnx.proto: two lines of ModelProto, then GraphProto, NodeProto, ValueInfoProto with TypeProto,
#: and TensorProto
GRAPH = 7
PRODUCER, DESCRIPTION, METADATA, KEY, VALUE = 2, 6, 14, 1, 2
NODE, INITIALIZER, INPUT = 1, 5, 11
NODE_INPUT, NODE_OUTPUT, OPERATOR = 1, 2, 4
VALUE_NAME, VALUE_TYPE, TENSOR_TYPE = 1, 2, 1
TENSOR_NAME = 8
#: the encoded field ``elem_type`` of float, float16 and double
FLOATS = frozenset({b"\x08\x01", b"\x08\x0a", b"\x08\x0b"})
#: first byte of a message in the file, and the byte after its last
Span = tuple[int, int]


def graph_input(path: Path) -> GraphInput | None:
    """Return the only input of a file; None if there is none or several. Raises OSError, ValueError if malformed."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        (graph,) = _parts(content, (0, len(content)), GRAPH)
        inputs = {_text(content, span, VALUE_NAME): span for span in _parts(content, graph, INPUT)}
        # before ONNX 1.3 weights were listed as inputs, too
        for span in _parts(content, graph, INITIALIZER):
            inputs.pop(_text(content, span, TENSOR_NAME), None)
        if len(inputs) != 1:
            return None
        ((name, declared),) = inputs.items()
        operators = first_operators(_nodes(content, graph), name)
        return GraphInput(name=name, floats=_accepts_floats(content, declared), operators=operators)


def metadata(path: Path) -> FileMetadata:
    """Return the producer, the description, and at most MAX_TEXTS entries of a file, and the labels in ``names``.

    ``names`` is one of these entries. The producer and the description are cut to MAX_TEXT characters; entries over
    MAX_TEXT bytes are left out. Raises OSError, and ValueError for a malformed file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        whole = 0, len(content)
        named = (("producer", PRODUCER), ("description", DESCRIPTION))
        texts = {name: _text(content, whole, field)[:MAX_TEXT] for name, field in named}
        for start, end in _parts(content, whole, METADATA)[:MAX_TEXTS]:
            if end - start <= MAX_TEXT:
                texts[_text(content, (start, end), KEY)] = _text(content, (start, end), VALUE)
        labels = class_names(texts.get("names", ""))
        return FileMetadata(texts={key: text for key, text in texts.items() if text}, labels=labels)


def _nodes(content: mmap.mmap, graph: Span) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield operator, names of inputs and names of outputs of each node, in the order of computation."""
    for span in _parts(content, graph, NODE):
        inputs, outputs = (_texts(content, span, number) for number in (NODE_INPUT, NODE_OUTPUT))
        yield _text(content, span, OPERATOR), inputs, outputs


def _accepts_floats(content: mmap.mmap, declared: Span) -> bool:
    """Whether an input (a ValueInfoProto) is a tensor of floats."""
    return any(
        content[start : start + 2] in FLOATS
        for kind in _parts(content, declared, VALUE_TYPE)
        for start, _ in _parts(content, kind, TENSOR_TYPE)
    )


def _parts(content: mmap.mmap, span: Span, field: int) -> list[Span]:
    """Return where the values of a field are in a message; a repeated field has several."""
    return [(start, end) for number, start, end in fields(content, *span) if number == field]


def _texts(content: mmap.mmap, span: Span, field: int) -> list[str]:
    """Return the texts of a repeated field."""
    return [content[start:end].decode() for start, end in _parts(content, span, field)]


def _text(content: mmap.mmap, span: Span, field: int) -> str:
    """Return the first text of a field; empty if the message does not have it."""
    return next(iter(_texts(content, span, field)), "")
