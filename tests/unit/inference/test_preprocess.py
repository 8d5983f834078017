from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from halimede.api.processing import Cast, Channels, Grayscale, Layout, Normalize, ProcessingStep, Resize, Scale
from halimede.inference import SampleError
from halimede.inference.preprocess import apply, run

frames = npst.arrays(
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.float32, np.float64]),
    shape=st.one_of(
        st.tuples(st.integers(1, 12), st.integers(1, 12)),
        st.tuples(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3, 4])),
    ),
    elements={"min_value": 0, "max_value": 255},
)


@given(frames, st.integers(1, 9), st.integers(1, 9))
def test_any_picture_becomes_the_declared_input_and_resizing_keeps_type_axes_and_range(frame, width, height):
    resize = Resize(width=width, height=height)
    result = apply([Grayscale(), resize, Scale(factor=1 / 255), Layout(order="chw")], frame)
    assert result.shape == (1, height, width)
    assert result.flags.c_contiguous
    assert result.min() >= 0
    assert result.max() <= 1 + 1e-6
    resized = apply([resize], frame)
    assert (resized.dtype, resized.shape) == (frame.dtype, (height, width, *frame.shape[2:]))
    # single precision may round over the edge of what double holds
    assert resized.min() >= frame.min() - 1e-4
    assert resized.max() <= frame.max() + 1e-4


@given(npst.arrays(np.uint8, (5, 7, 3)))
def test_gray_is_what_pillow_makes(frame):
    expected = np.asarray(Image.fromarray(frame).convert("L"))
    np.testing.assert_array_equal(apply([Grayscale()], frame)[..., 0], expected)
    in_floats = apply([Grayscale()], frame.astype(np.float32))[..., 0]
    np.testing.assert_allclose(in_floats, expected, atol=1)


def test_gray_leaves_alpha_out_and_a_fourth_channel_is_resized_like_the_others():
    frame = np.dstack([np.full((4, 4, 3), 90, np.uint8), np.zeros((4, 4), np.uint8)])
    assert apply([Grayscale()], frame).tolist() == np.full((4, 4, 1), 90).tolist()
    assert (apply([Resize(width=2, height=2)], frame)[..., :3] == 90).all()


def test_scaling_multiplies_then_takes_the_mean_off_then_divides():
    frame = np.full((1, 2, 3), 10, np.uint8)
    result = apply([Scale(factor=0.5, mean=[1, 2, 3], std=[2, 3, 4])], frame)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result[0, 0], [2, 1, 0.5])
    np.testing.assert_allclose(apply([Scale(mean=[4], std=[2])], frame), np.full((1, 2, 3), 3))


@given(npst.arrays(np.uint8, (3, 2, 3)))
def test_channels_of_a_picture_are_turned_to_bgr_as_opencv_has_them(frame):
    turned = apply([Channels(format="bgr")], frame)
    np.testing.assert_array_equal(turned[..., 0], frame[..., 2])
    np.testing.assert_array_equal(turned[..., 2], frame[..., 0])
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(apply([Channels(format="bgr")], turned), frame)
    np.testing.assert_array_equal(apply([Channels(format="rgb")], frame), frame)


@pytest.mark.parametrize("order", ["bgr", "rgb"])
def test_three_channels_are_made_of_gray_and_alpha_is_left_out(order):
    gray = np.array([[1, 2]], np.uint8)
    assert apply([Channels(format=order)], gray).tolist() == [[[1, 1, 1], [2, 2, 2]]]
    assert apply([Channels(format=order)], gray[..., np.newaxis]).tolist() == [[[1, 1, 1], [2, 2, 2]]]
    with_alpha = np.array([[[10, 20, 30, 255]]], np.uint8)
    expected = [10, 20, 30] if order == "rgb" else [30, 20, 10]
    assert apply([Channels(format=order)], with_alpha).tolist() == [[expected]]


@given(frames, st.sampled_from([0.0, 0.5, 127.5]), st.sampled_from([0.25, 1.0, 127.5]))
def test_one_number_is_the_mean_or_divisor_of_all_channels(frame, mean, std):
    count = frame.shape[2] if frame.ndim == 3 else 1
    for step in (Scale, Normalize):
        listed = apply([step(mean=[mean] * count, std=[std] * count)], frame)
        np.testing.assert_array_equal(apply([step(mean=mean, std=std)], frame), listed)


def test_layouts_order_the_axes():
    frame = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert apply([Layout(order="chw")], frame).shape == (3, 2, 4)
    assert apply([Layout(order="chw")], frame)[1, 0, 2] == frame[0, 2, 1]
    assert apply([Layout(order="hwc")], frame[..., 0]).shape == (2, 4, 1)
    assert apply([Layout(order="flat")], frame).tolist() == list(range(24))


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        ("uint8", [-1.0, 0.9, 255.0, 300.0], [0, 0, 255, 255]),
        ("int32", [-3e9, 2147483647.0, 3e9], [-(2**31), 2**31 - 1, 2**31 - 1]),
        ("float16", [0.5, 2.0], [0.5, 2.0]),
        ("int64", [1e30, -1e30], [2**63 - 1024, -(2**63)]),
        ("int64", np.array([2**64 - 1], np.uint64), [2**63 - 1]),
    ],
)
def test_casting_stays_within_the_range_of_the_type(dtype, given, expected):
    result = apply([Cast(dtype=dtype)], np.array(given))
    assert (result.dtype, result.tolist()) == (np.dtype(dtype), expected)


def test_without_steps_the_frame_is_not_copied():
    frame = np.frombuffer(bytes(12), np.uint8).reshape(2, 2, 3)
    assert np.shares_memory(apply([], frame), frame)


@given(frames)
def test_the_frame_itself_is_never_changed(frame):
    before = frame.copy()
    frame.flags.writeable = False
    apply([Scale(factor=2, mean=[1], std=[3]), Resize(width=3, height=3), Cast(dtype="float64")], frame)
    np.testing.assert_array_equal(frame, before)


@pytest.mark.parametrize(
    ("step", "frame", "says"),
    [
        (Grayscale(), np.zeros((4, 4, 2), np.uint8), r"grayscale wants .*\[4, 4, 2\]"),
        (Grayscale(), np.zeros(16, np.uint8), "grayscale wants"),
        (Resize(width=2, height=2), np.zeros((1, 2, 3, 4), np.uint8), "resize wants"),
        (Channels(format="bgr"), np.zeros((4, 4, 2), np.uint8), "channels wants a picture of 1, 3 or 4 channels, last"),
        (Layout(order="chw"), np.zeros(3, np.uint8), "layout chw wants"),
        (Scale(mean=[1, 2, 3]), np.zeros((3, 4, 4), np.uint8), "put scale before layout"),
        (Scale(std=[1, 2]), np.zeros((4, 4), np.uint8), "as many as std has"),
        (Cast(dtype="uint8"), np.array([np.nan]), "NaN"),
        (Grayscale(), np.array([["a", "b"]]), "numbers"),
        (Grayscale(), np.array([[object()]]), "numbers"),
        (Grayscale(), np.zeros((0, 4, 3), np.uint8), "empty"),
    ],
)
def test_a_frame_that_a_step_cannot_take_is_refused_with_a_reason(step, frame, says):
    with pytest.raises(SampleError, match=says):
        apply([step], frame)


def test_a_new_step_is_one_class_and_one_function():
    class Negate(ProcessingStep, kw_only=True):
        pass

    run.register(Negate, lambda _, image: 255 - image)
    assert apply([Negate()], np.array([[5]], np.uint8)).tolist() == [[250]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("steps", [[], [Layout(order="flat")], [Scale(factor=0.5)]])
def test_a_frame_with_one_value_that_is_no_number_is_refused_whatever_the_steps_are(value, dtype, steps):
    """Other servers answer such a request with meaningless probabilities, or with JSON that nobody can read."""
    frame = np.ones((4, 5), dtype)
    apply(steps, frame)
    frame[2, 3] = value
    with pytest.raises(SampleError, match=r"holds NaN or infinity 1 times, first at \[2, 3\]: repair its source"):
        apply(steps, frame)


def test_the_largest_numbers_are_numbers():
    for dtype in (np.float16, np.float32, np.float64):
        frame = np.full((64, 64), np.finfo(dtype).max, dtype)
        np.testing.assert_array_equal(apply([], frame), frame)
