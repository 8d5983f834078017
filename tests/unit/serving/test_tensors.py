"""Element types and sizes, as JSON and as bytes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from halimede.inference.tensor_model import as_float
from halimede.serving.errors import ServeError
from halimede.serving.tensors import DTYPES, Tensor, bits_of, from_bytes, from_values, to_bytes, to_values

KINDS = [name for name in DTYPES if name != "BF16"]
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@given(st.data(), st.sampled_from(KINDS), shapes)
def test_numbers_come_back_as_they_went(data, kind, shape):
    array = data.draw(npst.arrays(DTYPES[kind], shape, elements={"allow_nan": False} if kind[:2] == "FP" else None))
    again = from_bytes("x", kind, shape, to_bytes(Tensor("x", kind, array)))
    assert (again.array.dtype, again.array.shape) == (array.dtype, shape)
    assert np.array_equal(again.array, array)
    if np.isfinite(array).all():
        values = from_values("x", kind, shape, to_values(Tensor("x", kind, array)))
        assert values.array.dtype == array.dtype
        assert np.array_equal(values.array, array)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_come_back_as_they_went(items):
    tensor = Tensor("x", "BYTES", np.array([*items, None], object)[:-1])
    assert list(from_bytes("x", "BYTES", [len(items)], to_bytes(tensor)).array) == items


@given(st.lists(st.text(max_size=20), max_size=8))
def test_text_comes_back_as_it_went(items):
    found = from_values("x", "BYTES", [len(items)], items)
    assert to_values(found) == items
    assert [item.decode() for item in from_bytes("x", "BYTES", [len(items)], to_bytes(found)).array] == items


@given(npst.arrays(np.float32, 5))
def test_bfloat16_is_the_nearest_that_there_is(array):
    found = as_float(bits_of(array))
    assert np.array_equal(np.isnan(found), np.isnan(array))
    finite = np.isfinite(array) & np.isfinite(found)
    assert (np.abs(found[finite] - array[finite]) <= np.abs(array[finite]) / 256 + 1e-38).all()
    assert np.array_equal(bits_of(as_float(bits_of(array))), bits_of(array))


@pytest.mark.parametrize(
    ("kind", "shape", "values", "what"),
    [
        ("FP32", [2], [1.0], "has 2 elements, and data has 1"),
        ("FP32", [1], ["1.0"], "has elements that are not FP32"),
        ("FP32", [1], [None], "has elements that are not FP32"),
        ("FP32", [1], "1", "give a list"),
        ("INT8", [1], [128], "holds -128 to 127"),
        ("UINT8", [1], [-1], "holds 0 to 255"),
        ("INT32", [1], [1.5], "has elements that are not INT32"),
        ("INT64", [1], [2**64], "has elements that are not INT64"),
        ("UINT64", [1], [2**64], "has elements that are not UINT64"),
        ("BOOL", [1], [2], "has elements that are not BOOL"),
        ("BYTES", [1], [1], "give strings"),
        ("FP8", [1], [1], "datatype 'FP8' is unknown"),
        ("FP32", [-1], [1], "shape [-1] is invalid"),
        ("FP32", [1] * 17, [1], "up to 16 sizes"),
        ("UINT64", [2], [0, 2**64], "has elements that are not UINT64"),
        ("UINT64", [2], [-1, 2**63], "UINT64"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(kind, shape, values, what):
    with pytest.raises(ServeError, match=re.escape(what)):
        from_values("x", kind, shape, values)


@pytest.mark.parametrize(
    ("kind", "shape", "data", "what"),
    [
        ("FP32", [2], b"1234", "takes 8 bytes, and there are 4"),
        ("BYTES", [2], b"\x01\0\0\0a", "do not hold 2 elements"),
        ("BYTES", [1], b"\x05\0\0\0a", "ends inside an element"),
        ("BYTES", [1], b"\x01\0\0\0ab", "1 bytes too many"),
        ("BYTES", [1000], b"\xff\xff\xff\xff", "do not hold 1000 elements"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(kind, shape, data, what):
    with pytest.raises(ServeError, match=what):
        from_bytes("x", kind, shape, data)


def test_any_byte_but_zero_is_true():
    assert from_bytes("x", "BOOL", [3], b"\0\x01\x02").array.tolist() == [False, True, True]


def test_one_long_text_among_many_takes_no_more_than_its_own_length():
    values = ["x" * 1_000_000, *[""] * 100_000]
    with pytest.raises(ServeError, match="are not FP32"):
        from_values("x", "FP32", [100_001], values)


def test_whole_numbers_on_both_sides_of_two_to_the_63rd_stay_whole():
    assert from_values("x", "UINT64", [2], [0, 2**63]).array.tolist() == [0, 2**63]
