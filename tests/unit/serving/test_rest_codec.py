"""Bodies to requests, answers to bodies."""

from __future__ import annotations

import contextlib
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.serving import rest_codec
from halimede.serving.errors import ServeError
from halimede.serving.tensors import Tensor


def parse(data: bytes, head: str | None) -> rest_codec.Request:
    return rest_codec.parse(data, rest_codec.json_length(data, head))


X = {"name": "x", "shape": [1, 2], "datatype": "FP32"}


def body(*inputs, tail: bytes = b"", **more) -> tuple[bytes, str]:
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + tail, str(len(head))


def test_a_request_of_json_alone():
    data, _ = body({**X, "data": [1, 2]}, id="7", outputs=[{"name": "y"}], parameters={"timeout": 2_000_000})
    found = parse(data, None)
    assert (found.id, found.outputs, found.binary, found.timeout_s) == ("7", ["y"], False, 2.0)
    assert found.tensors[0].array.tolist() == [[1, 2]]


def test_a_request_with_tensors_as_bytes_in_their_order():
    first, second = np.array([[1, 2]], np.float32), np.array([3], np.int64)
    data, head = body(
        {**X, "parameters": {"binary_data_size": 8}},
        {**X, "name": "z", "data": [[5, 6]]},
        {"name": "n", "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 8}},
        tail=first.tobytes() + second.tobytes(),
        parameters={"binary_data_output": True},
        outputs=[{"name": "y"}, {"name": "j", "parameters": {"binary_data": False}}],
    )
    found = parse(data, head)
    assert [t.array.tolist() for t in found.tensors] == [[[1, 2]], [[5, 6]], [3]]
    assert (found.binary, found.binary_of) == (True, {"j": False})


@pytest.mark.parametrize(
    ("data", "head", "what"),
    [
        (b"", None, "no inference request"),
        (b"{}", None, "no inference request"),
        (b"[" * 100_000, None, "no inference request"),
        (b"\xff\xfe", None, "no inference request"),
        (body({**X, "data": [1, 2]})[0], "x", "give the JSON part's bytes"),
        (body({**X, "data": [1, 2]})[0], "-1", "give the JSON part's bytes"),
        (body({**X, "data": [1, 2]})[0], "9999", "and the body has"),
        (body(X)[0], None, "neither data nor"),
        (*body({**X, "data": [1, 2], "parameters": {"binary_data_size": 8}}, tail=b"8" * 8), "both data and"),
        (*body({**X, "parameters": {"binary_data_size": 9}}, tail=b"8" * 8), "goes beyond"),
        (*body({**X, "parameters": {"binary_data_size": -1}}, tail=b"8" * 8), "goes beyond"),
        (*body({**X, "parameters": {"binary_data_size": True}}, tail=b"8" * 8), "goes beyond"),
        (*body({**X, "data": [1, 2]}, tail=b"rest"), "belong to no tensor"),
        (*body({**X, "data": [1, 2]}, parameters={"timeout": -1}), "give microseconds"),
        (*body(*[{**X, "data": [1, 2]}] * 300), "more than 256 tensors"),
    ],
)
def test_what_is_no_request_is_refused_with_what_to_do(data, head, what):
    with pytest.raises(ServeError, match=re.escape(what)):
        parse(data, head)


@given(st.binary(max_size=200), st.none() | st.text(max_size=8))
def test_any_bytes_are_a_request_or_refused(data, head):
    with contextlib.suppress(ServeError):  # any other error is a defect
        parse(data, head)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_any_data_is_a_tensor_or_refused(data):
    with contextlib.suppress(ServeError):  # any other error is a defect
        parse(body({**X, "data": data})[0], None)


def test_an_answer_in_both_forms():
    texts = Tensor("t", "BYTES", np.array(["ü", b"\xff"], object))
    answers = [Tensor("y", "FP32", np.array([[1, 2]], np.float32)), texts]
    asked = rest_codec.Request("7", [], [], False, {"t": True}, float("inf"))
    written, length = rest_codec.write(asked, "m", "4", answers)
    said = json.loads(written[:length])
    assert written[length:] == b"\2\0\0\0\xc3\xbc\1\0\0\0\xff"
    assert said == {
        "model_name": "m", "model_version": "4", "id": "7",
        "outputs": [
            {"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]},
            {"name": "t", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}},
        ],
    }  # fmt: skip


def test_what_json_cannot_say_is_null():
    asked = rest_codec.Request("", [], [], False, {}, float("inf"))
    head, length = rest_codec.write(asked, "m", "", [Tensor("y", "FP32", np.array([np.nan, np.inf], np.float32))])
    assert (json.loads(head)["outputs"][0]["data"], length) == ([None, None], 0)
