"""What a script gives comes out at the other end as it was, and what makes no sense is refused with one sentence."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halimede.codec import decode, encode
from halimede.compat.sedna.call_codec import CALL_KEY, read_answer, read_call, write_answer, write_call
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames.payloads import new_frame
from halimede.inference.model import SampleError
from halimede.messages import Box, Frame, Prediction
from halimede.topics import REQUEST

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()
dtypes = st.sampled_from(["<f4", "<f8", "|u1", "<i8", "|b1", "<u2", "<c16", "<f2"])
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3))
data = st.recursive(plain | arrays, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner))


def travelled(frame: Frame) -> Frame:
    return decode(REQUEST, encode(REQUEST, frame))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)


@given(data)
def test_any_plain_data_and_arrays_travel_as_they_are(value: Any) -> None:
    read = read_call(travelled(write_call(value, {})))
    assert same(value, read[0])


def test_arrays_of_numbers_are_raw_frames_that_any_cloud_worker_reads() -> None:
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    frame = write_call(picture, {"threshold": 0.5}, "boxes")
    assert (frame.encoding, frame.dtype, frame.shape) == ("raw", "uint8", [4, 4, 3])
    read = read_call(travelled(frame))
    assert read is not None
    given_, call = read
    given_[0] = 7  # scripts write into what Sedna gives them
    assert (call.arguments, call.post_process) == ({"threshold": 0.5}, "boxes")


def test_a_frame_that_no_script_sent_is_no_call() -> None:
    frame = new_frame(np.zeros((2, 2), np.uint8))
    assert read_call(frame) is None
    frame.edge = Prediction(label="3", value={"seen": 1})
    assert read_call(frame) is None


@pytest.mark.parametrize("value", [object(), [np.array([object()])], {"when": {1: {object()}}}, lambda: 0])
def test_what_cannot_travel_is_refused_by_its_field(value: Any) -> None:
    with pytest.raises(InvalidFieldError, match=r"^data: .*give an array of numbers"):
        write_call(value, {})


def test_arguments_are_plain_values() -> None:
    frame = write_call([1], {"size": np.int64(3), "names": ["a"]})
    read = read_call(travelled(frame))
    assert read[1].arguments == {"size": 3, "names": ["a"]}
    with pytest.raises(InvalidFieldError, match="arguments"):
        write_call([1], {"mask": np.zeros(3)})


def ext(content: bytes, code: int = 1) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, content))


def array(dtype: str, shape: list[int], content: bytes = b"1") -> bytes:
    return ext(msgspec.msgpack.encode((dtype, shape, content)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x93\x01", {}),  # ends early
        (b"\x01", {"size": 5000}),
        (b"\x01", {"size": -1}),
        (b"\x01", {"size": "many"}),
        (b"\x01", {"size": 1, "run": "me"}),
        (b"\x01", {"size": 1, "arguments": [1]}),
        (ext(b"x", 7), {}),
        (ext(b"nonsense"), {}),
        (array("|O8", [1], b"12345678"), {}),
        (array("V8", [1], b"12345678"), {}),
        (array("no type", [1]), {}),
        (array("|u1", [-1]), {}),
        (array("|u1", [1000, 1000, 1000]), {}),
        (ext(b"\x93"), {}),
    ],
)
def test_a_forged_call_is_refused(content: bytes, said: dict[str, Any]) -> None:
    frame = new_frame(np.frombuffer(content.ljust(4096, b"\0"), np.uint8))
    frame.edge = Prediction(value={CALL_KEY: {"size": len(content), **said}})
    with pytest.raises(DecodeError):
        read_call(travelled(frame))


@pytest.mark.parametrize("answer", [None, [], [0.1, 0.9], [[1, 2, 3, 4, 0.5]], {"label": "3"}, "three", 3, [None, "a"]])
def test_a_scripts_answer_comes_back_as_it_was_and_not_as_what_it_might_mean(answer: Any) -> None:
    assert read_answer(write_answer(answer)) == answer


def test_arrays_in_answers_become_lists() -> None:
    assert read_answer(write_answer({"scores": np.array([1, 2]), 5: np.float64(0.5)})) == {"scores": [1, 2], "5": 0.5}
    with pytest.raises(SampleError, match="JSON"):
        write_answer(object())


@pytest.mark.parametrize(
    ("prediction", "answer"),
    [
        (Prediction(label="3", score=0.9, probabilities=[0.1, 0.9]), [0.1, 0.9]),
        (Prediction(boxes=[Box(1, 2, 3, 4, 0.5, "dog")]), [[1, 2, 3, 4, 0.5, "dog"]]),
        (Prediction(boxes=[]), []),
        (Prediction(label="3"), "3"),
        (Prediction(label="3", value=[7]), [7]),
        (Prediction(value={"a": 1}), {"a": 1}),
    ],
)
def test_the_answer_of_halimedes_own_worker_is_a_python_value(prediction: Prediction, answer: Any) -> None:
    assert read_answer(prediction) == answer
