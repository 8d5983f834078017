"""The reader of ONNX files against the onnx package's own, and against bytes that are no ONNX file."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from halimede.system import onnx_file
from halimede.system.onnx_file import MalformedProtobufError, MessageType, fields, records
from tests.hostile_models import adding, in_attribute, in_function, in_sparse, in_subgraph, outside


def nodes_of(model: onnx.ModelProto) -> Counter[tuple[str, str]]:
    """Return all operators of a model, those of branches and functions included."""
    found: Counter[tuple[str, str]] = Counter()

    def walk(nodes) -> None:
        for node in nodes:
            found[node.domain, node.op_type] += 1
            for attribute in node.attribute:
                for graph in [attribute.g, *attribute.graphs]:
                    walk(graph.node)

    walk(model.graph.node)
    for function in model.functions:
        walk(function.node)
    return found


def read(content: bytes) -> Counter[tuple[str, str]]:
    found = [record for record in records(content) if record.kind is MessageType.NODE]
    return Counter((record.texts.get("domain", ""), record.texts.get("name", "")) for record in found)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


@pytest.mark.parametrize("put", [adding, in_attribute, in_subgraph, in_function, in_sparse])
def test_every_operator_and_every_file_is_found_wherever_it_is(put, tmp_path):
    path = put(tmp_path / "m.onnx", outside("w.bin", offset="4"))
    content = path.read_bytes()
    assert read(content) == nodes_of(onnx.load(path, load_external_data=False))
    found = [record for record in records(content) if record.entries]
    assert {tuple(record.entries) for record in found} == {(("location", "w.bin"), ("offset", "4"))}
    assert {record.texts["name"] for record in found} == {"w"}


def test_an_exported_classifier_is_read_as_it_is(digits):
    assert read(digits.path.read_bytes()) == nodes_of(onnx.load(digits.path))


@pytest.mark.slow
def test_long_lists_of_numbers_cost_nothing():
    """Written one by one, as proto2 does: two million fields, of which none is looked at."""
    numbers = {"floats": [0.5] * 1_000_000, "ints": [300] * 1_000_000}
    node = helper.make_node("Trees", ["x"], ["y"], domain="ai.onnx.ml", **numbers)
    graph = helper.make_graph([node], "g", [], [], [numpy_helper.from_array(np.zeros(100_000), "w")])
    content = helper.make_model(graph).SerializeToString()
    seen = []
    left, onnx_file.MAX_FIELDS = onnx_file.MAX_FIELDS, 100
    try:
        seen = list(records(content))
    finally:
        onnx_file.MAX_FIELDS = left
    assert [record.texts.get("name") for record in seen] == ["Trees", "w"]


def test_a_field_that_comes_twice_is_read_twice():
    """Protobuf joins the two; whatever is in either is found."""
    tensor = outside("w.bin").SerializeToString()
    graph = field(5, tensor)
    found = [record.entries for record in records(field(7, graph) + field(7, graph))]
    assert found == [[("location", "w.bin")]] * 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x0a", "truncated"),
        (b"\x3a\x05\x0a", "exceeds its end"),
        (b"\x0d\x00", "exceeds its end"),
        (b"\x3b\x3c", "wire type 3"),
        (b"\x02\x00", "no field 0"),
        (b"\xba\x80\x80\x80\x80\x01\x00", "no field"),
        (b"\xff" * 11, "truncated"),
        (field(7, field(1, field(4, b"\xff"))), "not UTF-8"),
        (field(7, field(1, field(7, b"a" * 70_000))), "70000 bytes"),
    ],
)
def test_what_cannot_be_followed_is_refused(content, says):
    with pytest.raises(MalformedProtobufError, match=says):
        list(records(content))


def test_nesting_has_an_end():
    def nested(levels: int) -> bytes:
        content = b""
        for _ in range(levels):
            content = field(1, field(5, field(6, content)))  # node, attribute, graph
        return field(7, content)

    assert len(list(records(nested(30)))) == 30
    with pytest.raises(MalformedProtobufError, match="nested"):
        list(records(nested(40)))


def test_the_number_of_fields_has_an_end(monkeypatch):
    monkeypatch.setattr(onnx_file, "MAX_FIELDS", 10)
    with pytest.raises(MalformedProtobufError, match="more than 10 fields"):
        list(records(field(2, b"") * 11))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content):
    try:
        list(records(content))
    except MalformedProtobufError:
        return


@given(st.binary(max_size=60), st.data())
def test_whatever_protobuf_reads_of_a_changed_file_is_read_here_too(noise, data):
    """It may be refused here; but a reference that ONNX Runtime would follow is never missed."""
    whole = bytearray(field(7, field(5, outside("../secret", "w").SerializeToString())))
    at = data.draw(st.integers(0, len(whole)))
    whole[at : at + data.draw(st.integers(0, 3))] = noise
    model = onnx.ModelProto()
    try:
        model.ParseFromString(bytes(whole))
    except DecodeError:
        return
    told = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.value}
    try:
        found = {value for record in records(bytes(whole)) for _, value in record.entries}
    except MalformedProtobufError:
        return
    assert told <= found


def test_numbers_and_texts_are_told_apart():
    content = b"\x08\x01" + field(2, b"text") + b"\x31" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa0\x06\x96\x01"
    assert [(number, content[start:end]) for number, start, end in fields(content, 0, len(content))] == [(2, b"text")]
