"""A preview is a small picture of whatever a frame holds, or nothing: never an error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from halimede.frames import decode, new_frame, new_id
from halimede.frames.encodings import DTYPES, Scaling
from halimede.messages import Box, Frame, Prediction, TextLine
from halimede.worker import preview_publisher
from halimede.worker.preview_publisher import (
    MAX_BOXES,
    MAX_BYTES,
    MAX_SIDE,
    Preview,
    best_boxes,
    make_preview,
    shown_text,
)


def opened(preview: Preview | None) -> Image.Image:
    assert len(preview.data) <= MAX_BYTES
    return Image.open(io.BytesIO(preview.data))


def test_a_small_picture_keeps_its_pixels() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    picture = opened(make_preview(new_frame(pixels, encoding="png")))
    assert picture.format == "PNG"
    assert np.array_equal(np.asarray(picture), pixels)


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "png"])
def test_a_large_picture_becomes_one_of_640_pixels_of_the_same_form(encoding: str) -> None:
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    large = np.asarray(Image.fromarray(smooth).resize((1600, 1200)))
    preview = make_preview(new_frame(large, encoding=encoding))  # type: ignore[arg-type]
    picture = opened(preview)
    assert picture.format == "JPEG"
    assert picture.size == (MAX_SIDE, MAX_SIDE * 3 // 4)
    assert (preview.width, preview.height) == (1600, 1200)


@pytest.mark.parametrize("width", [1283, 1921, 2567])
def test_a_jpeg_is_decoded_no_larger_than_its_preview_needs(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    frame = new_frame(np.asarray(Image.fromarray(smooth).resize((width, width * 3 // 4))), encoding="jpeg")
    whole = opened(make_preview(new_frame(decode(frame))))
    shapes = list[tuple[int, ...]]()

    def decode_and_record(frame: Frame, scaling: Scaling | None = None) -> np.ndarray:
        pixels = decode(frame, scaling)
        shapes.append(pixels.shape)
        return pixels

    monkeypatch.setattr(preview_publisher, "decode", decode_and_record)
    preview = make_preview(frame)
    picture = opened(preview)
    assert picture.size == whole.size
    assert all(MAX_SIDE <= shape[1] < 2 * MAX_SIDE for shape in shapes)
    assert (preview.width, preview.height) == (width, width * 3 // 4), "boxes are shares of the frame"
    assert np.abs(np.asarray(picture).astype(int) - np.asarray(whole)).mean() < 3


def test_a_picture_that_does_not_compress_becomes_smaller_until_it_fits() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3)).astype(np.uint8)
    picture = opened(make_preview(new_frame(noise)))
    assert max(picture.size) < MAX_SIDE


def test_the_best_boxes_are_shares_of_the_frame_and_never_outside_of_it() -> None:
    frame = Preview(b"", 200, 100)
    inside, over, outside = (
        Box(20, 10, 60, 50, 0.5, 7),
        Box(-50, -5, 1e9, 50, 0.25, "x" * 1000),
        Box(300, 0, 400, 9, 0.9),
    )
    assert best_boxes([inside, over, outside], frame) == [
        Box(0.1, 0.1, 0.3, 0.5, 0.5, "7"), Box(0, 0, 1, 0.5, 0.25, "x" * 64),
    ]  # fmt: skip
    many = [Box(0, 0, 10, 10, score / 10_000, "face") for score in range(10_000)]
    best = best_boxes(many, frame)
    assert len(best) == MAX_BOXES
    assert best[0].score == 0.9999
    assert best_boxes([], frame) == []


def test_lines_of_text_are_shown_where_there_is_no_label() -> None:
    lines = [TextLine(text="EXIT"), TextLine(text="<b>2</b>")]
    assert shown_text(Prediction(lines=lines)) == "EXIT / <b>2</b>"
    assert shown_text(Prediction(label="sign", lines=lines)) == "sign"
    assert len(shown_text(Prediction(lines=[TextLine(text="<b>" * 1000)] * 1000))) == 1024
    assert shown_text(Prediction()) == ""


def test_what_is_no_picture_or_too_large_has_none() -> None:
    assert make_preview(new_frame(np.zeros(16, np.float32))) is None
    assert make_preview(new_frame(np.zeros((2, 2, 4), np.uint8))) is None
    assert make_preview(Frame(id=new_id(), encoding="png", data=memoryview(b"no picture"))) is None
    assert make_preview(new_frame(np.zeros((6000, 6000), np.uint8))) is None


def test_the_range_of_other_numbers_is_stretched() -> None:
    picture = opened(make_preview(new_frame(np.array([[-1.0, 0.0], [0.5, 1.0]], np.float32))))
    assert np.asarray(picture).tolist() == [[0, 127], [191, 255]]


@pytest.mark.parametrize("high", [5e-324, 1e-307, 1e308])
def test_the_range_of_tiny_and_huge_numbers_is_stretched_without_an_overflow(high: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        picture = opened(make_preview(new_frame(np.array([[-high, 0.0], [high / 2, high]]))))
    assert np.asarray(picture)[0, 0] == 0


@given(
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    )
)
def test_any_array_has_a_preview_or_none(array: np.ndarray) -> None:
    preview = make_preview(new_frame(array))
    if preview is not None:
        opened(preview).load()
