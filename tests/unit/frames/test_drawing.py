"""Drawn answers: boxes, labels and classes stand on the picture, within all bounds, and equally each time."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halimede.errors import InvalidFieldError
from halimede.frames.drawing import MAX_BOXES, MAX_SIDE, MIN_SIDE, draw, draw_jpeg, drawn_parts
from halimede.messages import Box, PicturePoint, Prediction, TextLine

FACE = Prediction(boxes=[Box(100, 150, 300, 350, 0.93, "face")])


def plain(level: int, height: int = 400, width: int = 400) -> Any:
    return np.full((height, width, 3), level, np.uint8)


def changed(pixels: Any, answer: Prediction, **options: Any) -> Any:
    """Return which pixels the drawing changes."""
    drawn = np.asarray(draw(pixels, answer, **options)).astype(int)
    return np.abs(drawn - pixels.astype(int)).max(axis=2) > 16


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_box_and_its_label_can_be_read_on_light_and_dark_pictures(level: int) -> None:
    drawn = np.asarray(draw(plain(level), FACE)).astype(int)
    grey = drawn.mean(axis=2)
    edges = [grey[145:156, 200], grey[345:356, 200], grey[250, 95:106], grey[250, 295:306]]
    assert all(np.ptp(edge) > 80 for edge in edges), "a line contrasts with its border or the picture"
    assert np.ptp(grey[125:148, 104:160]) > 120, "the text contrasts with its background"
    assert (drawn[200:300, 150:250] == level).all(), "the inside of the box is unchanged"


def test_a_class_stands_at_the_top() -> None:
    rows = np.flatnonzero(changed(plain(200), Prediction(label="cat", score=0.7)).any(axis=1))
    assert rows.min() == 0
    assert rows.max() < 40


def test_lines_and_letters_grow_with_the_picture() -> None:
    def height(side: int) -> int:
        rows = changed(plain(200, side, side), Prediction(label="cat", score=0.7)).any(axis=1)
        return int(rows.sum())

    assert height(400) < height(800) < height(1600)


def test_equal_input_gives_equal_bytes_and_a_label_has_one_colour() -> None:
    assert draw_jpeg(plain(90), FACE) == draw_jpeg(plain(90), FACE)
    small, large = (np.asarray(draw(plain(0, side, side), FACE)) for side in (400, 500))
    assert (small[250, 100] == large[250, 100]).all()
    assert small[250, 100].max() > 60


def test_a_tiny_picture_is_enlarged_and_a_large_one_is_not_drawn_larger() -> None:
    assert max(draw(np.zeros((8, 8), np.uint8), Prediction(label="7")).size) == MIN_SIDE
    assert draw(plain(0, 10, 3000), FACE).size[0] == MAX_SIDE
    assert draw(plain(0, 1, 3000), FACE, side=320).size == (320, 1)
    assert max(draw(plain(0), FACE, side=160).size) == 160


@pytest.mark.parametrize(
    "box",
    [
        Box(-1e9, -1e9, 1e9, 1e9, 1e300, "x" * 5000),
        Box(300, 300, 100, 100, -1e300, "\x1b[31m\n\n\u202e\ud800"),
        Box(900, 900, 1000, 1000, 0.5, 2**62),
        Box(5, 5, 5, 5, 0.0, ""),
        Box(0, 0, 40, 40, 0.5, "日本語 مرحبا"),
    ],
)
def test_hostile_boxes_are_drawn_within_the_picture(box: Box) -> None:
    assert draw(plain(0), Prediction(boxes=[box]), [box]).size == (400, 400)


def test_of_ten_thousand_boxes_the_surest_are_drawn_and_counted() -> None:
    boxes = [Box(350, 350, 360, 360, 0.1, "no") for _ in range(10_000)]
    boxes[5000:5000] = [Box(50, 100, 80, 130, 0.9, "yes")] * MAX_BOXES
    marks = changed(plain(200), Prediction(boxes=boxes))
    assert marks[100:130, 50:80].any()
    assert not marks[340:370, 340:370].any()
    assert marks[:20, :100].any(), "the count stands at the top"


def test_the_truth_is_dashed() -> None:
    drawn = np.asarray(draw(plain(128), Prediction(boxes=[]), [Box(50, 50, 350, 350, 1.0, "face")]))
    upper = drawn[50, 60:340].max(axis=1)
    assert (upper > 250).any()
    assert (upper < 20).any()


def test_a_jpeg_stays_below_its_limit() -> None:
    noise = np.random.default_rng(1).integers(0, 255, (300, 300, 3), np.uint8)
    best = draw_jpeg(noise, FACE, side=320)
    assert len(best) > 60_000
    for limit in (60_000, 20_000):
        data = draw_jpeg(noise, FACE, side=320, max_bytes=limit)
        assert len(data) <= limit
        assert Image.open(io.BytesIO(data)).format == "JPEG"


@pytest.mark.parametrize(
    "array", [np.zeros(64, np.float32), np.zeros((8, 8), np.float32), np.zeros((2, 2, 4), np.uint8)]
)
def test_an_array_that_is_no_picture_is_refused(array: Any) -> None:
    with pytest.raises(InvalidFieldError, match="give uint8, height x width"):
        draw(array, FACE)


def test_landmarks_are_dots_of_their_own_boxes() -> None:
    boxes = [Box(10, 300, 60, 390, 0.1 + number / 1000, "face") for number in range(MAX_BOXES + 1)]
    points = [[PicturePoint(200 + number, 100)] for number in range(MAX_BOXES + 1)]
    answer = Prediction(boxes=boxes, landmarks=points)
    marks = changed(plain(200), answer)[95:106]
    assert marks[:, 215:295].any()
    assert not marks[:, 180:196].any(), "the point of the weakest box, which is not drawn"
    assert drawn_parts(answer).landmarks == points[:0:-1]
    assert changed(plain(200), Prediction(landmarks=[[PicturePoint(200, 100), PicturePoint(1e9, -1e9)]]))[100, 200]
    assert draw(plain(0), Prediction(boxes=boxes[:1], landmarks=[])).size == (400, 400)


def test_lines_of_text_stand_in_their_corners_or_in_a_list() -> None:
    corners = [PicturePoint(100, 200), PicturePoint(300, 240), PicturePoint(295, 280), PicturePoint(95, 240)]
    slanted = changed(plain(200), Prediction(lines=[TextLine(text="EXIT", score=0.9, corners=corners)]))
    assert slanted[220, 196:204].any()
    assert not slanted[250:390, 310:].any()
    listed = changed(plain(200), Prediction(lines=[TextLine(text="EXIT"), TextLine(text="7")]))
    heights = np.flatnonzero(listed.any(axis=1))
    assert heights.min() > 5
    hostile = Prediction(lines=[TextLine(text="<b>\x00\n" + "x" * 4000, corners=[PicturePoint(-1e9, 1e9)] * 4)] * 1000)
    assert draw(plain(0), hostile).size == (400, 400)
    assert draw(plain(0), Prediction(lines=[TextLine(text="x")] * 1000)).size == (400, 400)
