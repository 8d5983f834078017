"""Drawn answers: boxes, labels and classes stand on the picture, within all bounds, and equally each time."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor, ImageDraw

from halimede.errors import InvalidFieldError
from halimede.frames.drawing import (
    EDGE_COLOUR,
    FINAL_COLOUR,
    MAX_BOXES,
    MAX_SIDE,
    MIN_SIDE,
    Layer,
    draw,
    draw_jpeg,
    drawn_parts,
    result_layers,
    truth_layer,
)
from halimede.messages import Box, PicturePoint, Prediction, TextLine

FACE = Prediction(boxes=[Box(100, 150, 300, 350, 0.93, "face")])


def plain(level: int, height: int = 400, width: int = 400) -> Any:
    return np.full((height, width, 3), level, np.uint8)


def changed(pixels: Any, answer: Prediction, **options: Any) -> Any:
    """Return which pixels the drawing changes."""
    drawn, bare = (np.asarray(draw(pixels, [Layer(shown, **options)])).astype(int) for shown in (answer, Prediction()))
    return np.abs(drawn - bare).max(axis=2) > 16


@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_box_and_its_label_can_be_read_on_light_and_dark_pictures(level: int) -> None:
    drawn = np.asarray(draw(plain(level), [Layer(FACE)])).astype(int)
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

    assert height(400) < height(1000) < height(2000)


def test_equal_input_gives_equal_bytes_and_a_label_has_one_colour() -> None:
    assert draw_jpeg(plain(90), [Layer(FACE)]) == draw_jpeg(plain(90), [Layer(FACE)])
    small, large = (np.asarray(draw(plain(0, side, side), [Layer(FACE)])) for side in (400, 500))
    assert (small[250, 100] == large[250, 100]).all()
    assert small[250, 100].max() > 60


def test_a_tiny_picture_is_enlarged_and_a_large_one_is_not_drawn_larger() -> None:
    assert max(draw(np.zeros((8, 8), np.uint8), [Layer(Prediction(label="7"))]).size) == MIN_SIDE
    assert draw(plain(0, 10, 3000), [Layer(FACE)]).size[0] == MAX_SIDE
    assert draw(plain(0, 1, 3000), [Layer(FACE)], side=320).size == (320, 1)
    assert max(draw(plain(0), [Layer(FACE)], side=160).size) == 160


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
    assert draw(plain(0), [truth_layer([box]), Layer(Prediction(boxes=[box]))]).size == (400, 400)


def test_of_ten_thousand_boxes_the_surest_are_drawn_and_counted() -> None:
    boxes = [Box(350, 350, 360, 360, 0.1, "no") for _ in range(10_000)]
    boxes[5000:5000] = [Box(50, 100, 80, 130, 0.9, "yes")] * MAX_BOXES
    marks = changed(plain(200), Prediction(boxes=boxes))
    assert marks[100:130, 50:80].any()
    assert not marks[340:370, 340:370].any()
    assert marks[:20, :100].any(), "the count stands at the top"


def test_the_truth_is_dashed() -> None:
    drawn = np.asarray(draw(plain(128), [truth_layer([Box(50, 50, 350, 350, 1.0, "face")])]))
    upper = drawn[50, 60:340].max(axis=1)
    assert (upper > 250).any()
    assert (upper == 128).any(), "gaps show what is below"


def test_a_jpeg_stays_below_its_limit() -> None:
    noise = np.random.default_rng(1).integers(0, 255, (300, 300, 3), np.uint8)
    best = draw_jpeg(noise, [Layer(FACE)], side=320)
    assert len(best) > 60_000
    for limit in (60_000, 20_000):
        data = draw_jpeg(noise, [Layer(FACE)], side=320, max_bytes=limit)
        assert len(data) <= limit
        assert Image.open(io.BytesIO(data)).format == "JPEG"


@pytest.mark.parametrize(
    "array", [np.zeros(64, np.float32), np.zeros((8, 8), np.float32), np.zeros((2, 2, 4), np.uint8)]
)
def test_an_array_that_is_no_picture_is_refused(array: Any) -> None:
    with pytest.raises(InvalidFieldError, match="give uint8, height x width"):
        draw(array, [Layer(FACE)])


def test_the_text_of_a_reader_does_not_cover_the_line_that_it_reads() -> None:
    pixels = plain(255, 48, 260)
    pixels[2:46, 5:120:4] = 0
    marks = changed(pixels, Prediction(lines=[TextLine(text="EXIT", score=0.9)]))
    assert marks.any()
    assert not marks[:, : marks.shape[1] // 2].any()


class Plates:
    """The texts of a drawing, and where their plates are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[float, float, float, float]] = []
        self.texts: list[str] = []
        rectangle, text = ImageDraw.ImageDraw.rectangle, ImageDraw.ImageDraw.text

        def draw_plate(pen: ImageDraw.ImageDraw, place: Any, **options: Any) -> None:
            self.places.append(place)
            rectangle(pen, place, **options)

        def draw_text(pen: ImageDraw.ImageDraw, corner: Any, words: str, *options: Any, **more: Any) -> None:
            self.texts.append(" ".join(words.split()))
            text(pen, corner, words, *options, **more)

        monkeypatch.setattr(ImageDraw.ImageDraw, "rectangle", draw_plate)
        monkeypatch.setattr(ImageDraw.ImageDraw, "text", draw_text)


def scattered(count: int, height: int, width: int) -> list[Box]:
    """Return boxes around the middle of a picture, most of which overlap others or its edges."""
    draws = np.random.default_rng(count)
    rows = draws.normal((0.5, 0.5), 0.25, (count, 2)), draws.uniform(0.03, 0.15, count), draws.uniform(0.2, 1, count)
    return [
        Box(*np.multiply((x - half, y - half, x + half, y + half), (width, height) * 2), score, "helmet of a worker")  # type: ignore[call-arg]
        for (x, y), half, score in zip(*(row.tolist() for row in rows), strict=True)
    ]


@pytest.mark.parametrize("size", [(240, 320), (427, 640), (2160, 3840), (1920, 480)])
@pytest.mark.parametrize("count", [1, 5, 30, 100])
def test_no_label_covers_another_one_and_all_can_be_read(
    size: tuple[int, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plates = Plates(monkeypatch)
    final, edge = scattered(count, *size), scattered(count + 1, *size)
    layers = result_layers(Prediction(boxes=final), "cloud", Prediction(boxes=edge))
    width, height = draw(plain(128, *size), layers).size
    for number, (left, top, right, bottom) in enumerate(plates.places):
        assert 0 <= left < right < width
        assert 0 <= top < bottom < height
        assert bottom - top >= max(12, min(width, height) / 64)
        for other in plates.places[:number]:
            assert min(right, other[2]) <= max(left, other[0]) or min(bottom, other[3]) <= max(top, other[1])
    assert len(plates.places) >= min(count, 5) + 2, "labels of the first boxes, and the legend"


def test_a_label_goes_where_it_covers_no_box() -> None:
    # the label of each of the lower boxes would lie on the one above it
    boxes = [Box(150, 20 + 40 * i, 220, 50 + 40 * i, 0.5 + i / 100, "person") for i in range(9)]
    lines = changed(plain(200), Prediction(boxes=boxes), has_labels=False)
    bare, labelled = (
        np.asarray(draw(plain(200), [Layer(Prediction(boxes=boxes), has_labels=labels)])) for labels in (False, True)
    )
    assert lines.any()
    assert (bare[lines] == labelled[lines]).all(), "all lines are as they are without labels"
    assert (labelled[20:370, 152:219] == bare[20:370, 152:219]).all()


def test_a_label_without_room_is_shortened_and_then_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plates = Plates(monkeypatch)
    box = Box(150, 150, 250, 250, 0.9, "helmet of a worker")
    draw(plain(200), [Layer(Prediction(boxes=[box] * 40))])
    assert plates.texts[0] == "helmet of a worker 0.90"
    assert {"helmet.. 0.90", "0.90"} & set(plates.texts)
    assert len(plates.texts) < 40


def test_both_models_have_their_colour_and_a_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    plates = Plates(monkeypatch)
    box = Box(100, 150, 300, 350, 0.93, "face")
    drawn = draw(plain(128), result_layers(Prediction(boxes=[box]), "cloud", Prediction(boxes=[box, box])))
    assert plates.texts[:2] == ["cloud 1 box", "edge 2 boxes"]
    shown = {pixel for row in (np.asarray(drawn)[150, 110:290],) for pixel in map(tuple, row.tolist())}
    assert {ImageColor.getrgb(EDGE_COLOUR), ImageColor.getrgb(FINAL_COLOUR)} <= shown, (
        "both of two equal boxes are seen"
    )
    plates.texts.clear()
    draw(plain(128), result_layers(Prediction(label="cat", score=0.97), "edge", None))
    assert plates.texts == ["edge cat 0.97"]


def test_landmarks_are_dots_of_their_own_boxes() -> None:
    boxes = [Box(10, 300, 60, 390, 0.1 + number / 1000, "face") for number in range(MAX_BOXES + 1)]
    points = [[PicturePoint(200 + number, 100)] for number in range(MAX_BOXES + 1)]
    answer = Prediction(boxes=boxes, landmarks=points)
    marks = changed(plain(200), answer)[95:106]
    assert marks[:, 215:295].any()
    assert not marks[:, 180:196].any(), "the point of the weakest box, which is not drawn"
    assert drawn_parts(answer).landmarks == points[:0:-1]
    assert changed(plain(200), Prediction(landmarks=[[PicturePoint(200, 100), PicturePoint(1e9, -1e9)]]))[100, 200]
    assert draw(plain(0), [Layer(Prediction(boxes=boxes[:1], landmarks=[]))]).size == (400, 400)


def test_lines_of_text_stand_in_their_corners_or_in_a_list() -> None:
    corners = [PicturePoint(100, 200), PicturePoint(300, 240), PicturePoint(295, 280), PicturePoint(95, 240)]
    slanted = changed(plain(200), Prediction(lines=[TextLine(text="EXIT", score=0.9, corners=corners)]))
    assert slanted[220, 196:204].any()
    assert not slanted[250:390, 310:].any()
    listed = changed(plain(200), Prediction(lines=[TextLine(text="EXIT"), TextLine(text="7")]))
    assert listed[:30, :60].any(), "texts without a place are rows in a corner"
    assert not listed[60:].any()
    hostile = Prediction(lines=[TextLine(text="<b>\x00\n" + "x" * 4000, corners=[PicturePoint(-1e9, 1e9)] * 4)] * 1000)
    assert draw(plain(0), [Layer(hostile)]).size == (400, 400)
    assert draw(plain(0), [Layer(Prediction(lines=[TextLine(text="x")] * 1000))]).size == (400, 400)
