"""Where pixels go, and that boxes find their way back: against pictures in which one spot is told from the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halimede.api.processing import Crop, Grayscale, Layout, Letterbox, Normalize, Resize, Scale
from halimede.inference import SampleError
from halimede.inference.geometry import fit_letterbox, follow
from halimede.inference.preprocess import apply, blank

size = st.integers(1, 40)
moving = st.one_of(
    st.builds(Resize, width=size, height=size),
    st.builds(Letterbox, width=size, height=size),
    st.builds(Crop, width=size, height=size),
    st.builds(Crop, width=size, height=size, x=st.integers(0, 5), y=st.integers(0, 5)),
)
still = st.sampled_from([Grayscale(), Scale(factor=0.5), Normalize(), Layout(order="hwc")])


@given(st.lists(st.one_of(moving, still), max_size=4), size, size)
def test_the_size_that_is_foretold_is_the_size_that_comes_out(steps, width, height):
    frame = np.zeros((height, width, 3), np.uint8)
    try:
        result = apply(steps, frame)
    except SampleError:
        with pytest.raises(SampleError, match="crop"):
            follow(steps, frame.shape)
        return
    geometry = follow(steps, frame.shape)
    assert result.shape[:2] == (geometry.y.size, geometry.x.size)
    assert (geometry.x.frame, geometry.y.frame) == (width, height)


@given(st.lists(moving, max_size=4), size, size, st.data())
def test_a_box_that_stays_in_sight_comes_back_where_it_was(steps, width, height, data):
    try:
        geometry = follow(steps, (height, width))
    except SampleError:
        assume(False)
    x = data.draw(st.floats(0, width))
    y = data.draw(st.floats(0, height))
    seen = np.array([[x * geometry.x.scale + geometry.x.offset, y * geometry.y.scale + geometry.y.offset] * 2])
    np.testing.assert_allclose(geometry.back(seen), [[x, y, x, y]], atol=1e-6 * max(width, height))


@given(size, size, size, size)
def test_a_letterbox_holds_the_whole_picture_in_its_middle(width, height, box_width, box_height):
    step = Letterbox(width=box_width, height=box_height, fill=7)
    frame = np.full((height, width), 200, np.uint8)
    result = apply([step], frame)
    rows, columns = np.nonzero(result == 200)
    new_width, new_height, left, top = fit_letterbox(step, width, height)
    assert (columns.min(), columns.max() + 1) == (left, left + new_width)
    assert (rows.min(), rows.max() + 1) == (top, top + new_height)
    assert (result[result != 200] == 7).all()
    # it touches two sides, has the frame's proportions but for rounding, and margins that differ by one at most
    assert new_width == box_width or new_height == box_height
    share = min(box_width / width, box_height / height)
    assert abs(new_width - width * share) <= 1
    assert abs(new_height - height * share) <= 1
    assert 0 <= (box_width - new_width) - 2 * left <= 1
    assert 0 <= (box_height - new_height) - 2 * top <= 1


def test_a_crop_takes_the_middle_or_what_it_is_told():
    frame = np.arange(100, dtype=np.uint8).reshape(10, 10)
    assert apply([Crop(width=4, height=2)], frame).tolist() == frame[4:6, 3:7].tolist()
    assert apply([Crop(width=4, height=2, x=0)], frame).tolist() == frame[4:6, 0:4].tolist()
    assert apply([Crop(width=4, height=2, x=6, y=8)], frame).tolist() == frame[8:, 6:].tolist()


@pytest.mark.parametrize(
    "step", [Crop(width=11, height=1), Crop(width=1, height=1, y=10), Crop(width=4, height=2, x=7)]
)
def test_a_crop_beyond_the_picture_is_refused_with_what_to_do(step):
    with pytest.raises(SampleError, match=r"crop wants .* picture of 10 x 10: put a resize step before it"):
        apply([step], np.zeros((10, 10, 3), np.uint8))


def test_the_fill_stays_within_what_the_element_type_holds():
    step = Letterbox(width=2, height=4, fill=300)
    assert apply([step], np.zeros((2, 2), np.uint8))[0].tolist() == [255, 255]
    assert apply([step], np.zeros((2, 2), np.float32))[0].tolist() == [300, 300]


def test_normalizing_is_what_pytorch_does_to_eight_bits():
    frame = np.array([[[0, 51, 255]]], np.uint8)
    step = Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    expected = (frame / 255 - step.mean) / step.std
    np.testing.assert_allclose(apply([step], frame), expected, rtol=1e-5)
    np.testing.assert_allclose(apply([Normalize()], frame), frame / 255, rtol=1e-6)


def test_what_is_no_picture_has_no_places():
    assert follow([Resize(width=2, height=2)], (3, 4, 5, 6)) is None
    assert follow([], (12,)) is None


@given(st.builds(Crop, width=size, height=size, x=st.integers(0, 5), y=st.integers(0, 5)), moving)
def test_a_blank_frame_is_large_enough_for_a_crop_that_comes_first(crop, then):
    assert apply([crop], blank([Grayscale(), crop, then], 3)).shape == (crop.height, crop.width, 3)
    assert blank([Grayscale()], 3) is None
