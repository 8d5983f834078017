"""Tensors survive their file form, and nothing that a stranger writes into one is allocated or believed."""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halimede.messages import Compression, TensorSpec
from halimede.training.error_feedback import ErrorFeedback
from halimede.training.tensor_file import decode, encode, encode_update, size_limit, value_count
from halimede.training.weights import DTYPES, Weights, WeightsError, difference, norm, specs_of

types = st.sampled_from(sorted(DTYPES)).map(np.dtype)
tensors = arrays.arrays(types, arrays.array_shapes(min_dims=0, max_dims=3, max_side=5))
names = st.text("abc.0", min_size=1, max_size=8)
weights_of_any_kind = st.dictionaries(names, tensors, min_size=1, max_size=4)
floats = st.floats(-100, 100, width=32)
updates = st.dictionaries(
    names, arrays.arrays(np.float32, arrays.array_shapes(max_dims=2, max_side=6), elements=floats), min_size=1
)
compressions = st.builds(Compression, dtype=st.sampled_from(["float32", "float16"]), top_k=st.floats(0.01, 1))


def same(left: Weights, right: Weights) -> bool:
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and left[name].tobytes() == right[name].tobytes() for name in left
    )


@given(weights_of_any_kind)
def test_weights_come_back_bit_for_bit(weights: Weights) -> None:
    content = encode(weights)
    assert same(decode(content, specs_of(weights)), weights)
    assert len(content) <= size_limit(specs_of(weights))


@given(updates, compressions)
def test_a_compressed_update_has_the_largest_values_and_zeros(delta: Weights, compression: Compression) -> None:
    content = encode_update(delta, compression)
    assert len(content) <= size_limit(specs_of(delta))
    found = decode(content, specs_of(delta))
    for name, tensor in delta.items():
        count = value_count(tensor.size, compression)
        assert np.count_nonzero(found[name]) <= count
        sent = found[name] != 0
        assert np.allclose(found[name][sent], tensor[sent], rtol=1e-3, atol=1e-6)
        if sent.any() and (~sent).any():
            # float16 makes numbers below its range 0
            assert np.abs(tensor[sent]).min() >= np.sort(np.abs(tensor), axis=None)[-count] or count == tensor.size


@given(st.lists(updates, min_size=1, max_size=1), compressions, st.integers(1, 4))
def test_error_feedback_loses_nothing(deltas: list[Weights], compression: Compression, rounds: int) -> None:
    feedback, received = ErrorFeedback(compression), {n: np.zeros_like(t) for n, t in deltas[0].items()}
    for _ in range(rounds):
        content, residual = feedback.compress(deltas[0])
        assert feedback.compress(deltas[0])[0] == content, "an update that is made again is the same"
        feedback.residual = residual
        for name, tensor in decode(content, specs_of(deltas[0])).items():
            received[name] += tensor
    for name, tensor in deltas[0].items():
        assert np.allclose(received[name] + feedback.residual[name], tensor * rounds, rtol=1e-3, atol=1e-3)


def test_what_float16_cannot_hold_follows_in_later_rounds() -> None:
    feedback, total = ErrorFeedback(Compression(dtype="float16")), np.zeros(1)
    delta = {"w": np.array([150_000], np.float32)}
    for _ in range(3):
        content, feedback.residual = feedback.compress(delta)
        delta = {"w": np.zeros(1, np.float32)}
        total += decode(content, specs_of(delta))["w"]
    assert total == pytest.approx(150_000, rel=1e-3)


@pytest.mark.parametrize(("share", "times"), [(1 / 4, 6), (1 / 8, 10), (1 / 64, 40)])
def test_float16_and_a_share_of_the_values_save_bytes(share: float, times: float) -> None:
    delta = {"w": np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)}
    whole = len(encode_update(delta, Compression()))
    assert whole / len(encode_update(delta, Compression(dtype="float16", top_k=share))) > times


@pytest.mark.parametrize(("top_k", "form"), [(1.0, b"all"), (0.25, b"mask"), (0.04, b"mask"), (0.01, b"top")])
def test_the_positions_of_values_have_the_smaller_form(top_k: float, form: bytes) -> None:
    delta = {"w": np.random.default_rng(0).normal(size=1001).astype(np.float32)}
    content = encode_update(delta, Compression(top_k=top_k))
    assert form in content[:40]
    found = decode(content, specs_of(delta))["w"]
    assert np.array_equal(found[found != 0], delta["w"][found != 0])
    assert np.count_nonzero(found) == value_count(1001, Compression(top_k=top_k))


def decoded(form: str, count: int, content: bytes) -> np.ndarray:
    """Read an update of four values of which some were sent in a form."""
    header = msgspec.msgpack.encode([("w", form, "float32", count)])
    whole = b"HALTENS1" + len(header).to_bytes(4) + header + content
    return decode(whole, specs_of({"w": np.zeros(4, np.float32)}))["w"]


def of_positions(*positions: int) -> bytes:
    return np.array(positions, "<u4").tobytes() + np.array([5, 7], "<f4").tobytes()


def test_indices_of_an_earlier_version_are_read_whatever_their_number() -> None:
    assert decoded("top", 2, of_positions(1, 3)).tolist() == [0, 5, 0, 7]


@pytest.mark.parametrize("positions", [[1, 1], [3, 1], [1, 4], [4, 1], [2, 4294967295]])
def test_positions_that_repeat_fall_or_lie_outside_are_refused(positions: list[int]) -> None:
    with pytest.raises(WeightsError, match="has values outside of it, or not in order"):
        decoded("top", 2, of_positions(*positions))


@pytest.mark.parametrize(
    ("count", "mask", "text"),
    [
        (2, [0b0001], "mask of 1 values, not 2"),
        (1, [0b0011], "mask of 2 values, not 1"),
        (2, [0b1000_0001], "outside of it"),
        (5, [0b1_1111], "has 5 values, not 4"),
        (1, [], "ends within tensor 'w'"),
    ],
    ids=["too-few", "too-many", "outside", "more-than-the-tensor", "none"],
)
def test_a_wrong_mask_is_refused(count: int, mask: list[int], text: str) -> None:
    with pytest.raises(WeightsError, match=text):
        decoded("mask", count, bytes(mask) + bytes(4 * count if mask else 0))


damageable = weights_of_any_kind.map(lambda weights: (weights, encode(weights))) | st.builds(
    lambda delta, compression: (delta, encode_update(delta, compression)), updates, compressions
)


@given(damageable, st.data())
def test_a_damaged_file_is_refused_or_has_the_expected_tensors(
    file: tuple[Weights, bytes], data: st.DataObject
) -> None:
    weights, content = file[0], bytearray(file[1])
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(WeightsError):
        assert specs_of(decode(bytes(content), specs_of(weights))) == specs_of(weights)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(WeightsError):
        decode(b"HALTENS1" + content, specs_of({"w": np.zeros(1000, np.float32)}))


WEIGHTS = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}


@pytest.mark.parametrize(
    ("content", "reason", "text"),
    [
        (encode({"w": WEIGHTS["w"]}), "Shape", "other tensors"),
        (encode({"b": WEIGHTS["b"], "w": WEIGHTS["w"]}), "Shape", "other tensors"),
        (encode({**WEIGHTS, "w": np.ones((2, 4), np.float32)}), "Shape", "has 8 values, not 6"),
        (encode({**WEIGHTS, "w": np.ones((2, 3), np.float64)}), "Shape", "holds float64, not float32"),
        (encode({**WEIGHTS, "w": np.ones((2, 3), np.int32)}), "Shape", "holds int32, not float32"),
        (encode(WEIGHTS) + b"x", "Unreadable", "1 bytes more"),
        (encode(WEIGHTS)[:-1], "Unreadable", "ends within tensor 'b'"),
    ],
    ids=["missing", "order", "shape", "wider", "integers", "too-long", "too-short"],
)
def test_other_tensors_or_bytes_than_expected_are_refused(content: bytes, reason: str, text: str) -> None:
    with pytest.raises(WeightsError, match=text) as caught:
        decode(content, specs_of(WEIGHTS))
    assert caught.value.reason == reason


def test_a_claim_of_a_huge_tensor_is_refused_before_it_is_allocated() -> None:
    huge = [TensorSpec(name="w", dtype="float32", shape=[2**31])]
    with pytest.raises(WeightsError, match="more than") as caught:
        decode(b"", huge)
    assert caught.value.reason == "TooLarge"


@pytest.mark.parametrize(
    "tensor",
    [np.array([None]), np.array(["a"]), np.zeros(1, np.complex64), [1.0]],
    ids=["objects", "text", "complex", "list"],
)
def test_only_arrays_of_plain_numbers_are_sent(tensor: object) -> None:
    with pytest.raises(WeightsError, match="tensor 'w'") as caught:
        encode({"w": tensor})
    assert caught.value.reason == "Shape"


def test_the_norm_is_that_of_the_floats_alone() -> None:
    assert norm({"w": np.array([3.0, 4.0], np.float32), "steps": np.array(10**6, np.int64)}) == 5.0


def test_weights_of_other_shapes_have_no_difference() -> None:
    with pytest.raises(WeightsError, match="other names, types or shapes"):
        difference({"w": np.zeros(3)}, {"w": np.zeros(2)})
