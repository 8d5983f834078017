"""A thumbnail is a small picture of whatever a frame holds, or nothing: never an error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from halimede.frames import new_frame, new_id
from halimede.frames.encodings import DTYPES
from halimede.messages import Frame
from halimede.worker.preview_publisher import BYTES, SIDE, thumbnail


def opened(data: bytes | None) -> Image.Image:
    assert data is not None
    assert len(data) <= BYTES
    return Image.open(io.BytesIO(data))


def test_a_small_picture_keeps_its_pixels() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    picture = opened(thumbnail(new_frame(pixels, encoding="png")))
    assert picture.format == "PNG"
    assert np.array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "png"])
def test_a_large_picture_becomes_a_small_one_of_the_same_form(encoding: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3)).astype(np.uint8)
    picture = opened(thumbnail(new_frame(noise, encoding=encoding)))  # type: ignore[arg-type]
    assert picture.format == "JPEG"
    assert picture.size[0] == SIDE
    assert abs(picture.size[1] - SIDE * 3 / 4) <= 1


def test_what_is_no_picture_or_too_large_has_none() -> None:
    assert thumbnail(new_frame(np.zeros(16, np.float32))) is None
    assert thumbnail(new_frame(np.zeros((2, 2, 4), np.uint8))) is None
    assert thumbnail(Frame(id=new_id(), encoding="png", data=memoryview(b"no picture"))) is None
    assert thumbnail(new_frame(np.zeros((6000, 6000), np.uint8))) is None


def test_the_range_of_other_numbers_is_stretched() -> None:
    picture = opened(thumbnail(new_frame(np.array([[-1.0, 0.0], [0.5, 1.0]], np.float32))))
    assert np.asarray(picture).tolist() == [[0, 127], [191, 255]]


@given(
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    )
)
def test_any_array_has_a_thumbnail_or_none(array: np.ndarray) -> None:
    data = thumbnail(new_frame(array))
    if data is not None:
        opened(data).load()
