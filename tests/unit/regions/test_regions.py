"""Regions of a frame: where they are, how they are one picture, and how the answer returns to the frame."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.messages import Box, PicturePoint, Prediction, TextLine
from halimede.mining.calibration_file import GRID, RegionRule
from halimede.regions import (
    BLOCK,
    MAX_REGIONS,
    FrameRegion,
    RegionLayout,
    RegionPlacement,
    SentRegions,
    find_regions,
    lay_out,
)
from halimede.regions.layout import GUTTER, pack_rows

WIDTH, HEIGHT = 320, 240
RULE = RegionRule(padding=0.0)


def box(x: float, y: float, side: float = 16, score: float = 0.4, label: str = "a") -> Box:
    return Box(x, y, x + side, y + side, score, label)


def found(boxes: list[Box], rule: RegionRule = RULE, width: int = WIDTH, height: int = HEIGHT) -> list[FrameRegion]:
    regions = find_regions(boxes, width, height, rule)
    assert regions is not None
    return regions


coordinates = st.floats(-1e308, 1e308) | st.floats(-50, 400)
boxes = st.lists(
    st.builds(Box, coordinates, coordinates, coordinates, coordinates, st.floats(0, 1), st.sampled_from(["a", 3])),
    max_size=30,
)
sides = st.integers(1, 400)
regions_of_a_frame = st.lists(
    st.builds(
        lambda x, y, w, h: FrameRegion(x * BLOCK, y * BLOCK, min(WIDTH, (x + w) * BLOCK), min(HEIGHT, (y + h) * BLOCK)),
        st.integers(0, 39), st.integers(0, 29), st.integers(1, 12), st.integers(1, 12),
    ),
    min_size=1, max_size=20, unique=True,
)  # fmt: skip


# --- selection ----------------------------------------------------------------------------------------------------


@given(boxes, sides, sides, st.floats(0, 4), st.lists(st.integers(0, GRID * GRID - 1), max_size=4))
def test_regions_of_any_boxes_are_blocks_of_the_frame(
    boxes: list[Box], width: int, height: int, padding: float, cells: list[int]
) -> None:
    regions = find_regions(boxes, width, height, RegionRule(padding=padding, cells=cells))
    if regions is None:
        return
    assert 1 <= len(regions) <= MAX_REGIONS
    for region in regions:
        assert 0 <= region.x1 < region.x2 <= width
        assert 0 <= region.y1 < region.y2 <= height
        assert region.x1 % BLOCK == region.y1 % BLOCK == 0
        assert region.x2 % BLOCK == 0 or region.x2 == width
        assert region.y2 % BLOCK == 0 or region.y2 == height


def test_only_uncertain_boxes_have_a_region_with_padding() -> None:
    boxes = [box(64, 64, score=0.4), box(160, 160, score=0.9)]
    assert found(boxes) == [FrameRegion(64, 64, 80, 80)]
    assert found(boxes, RegionRule(padding=0.5)) == [FrameRegion(56, 56, 88, 88)]
    assert len(found(boxes, RegionRule(sure=1.0))) == 2


def test_regions_merge_if_that_costs_no_pixels() -> None:
    assert found([box(64, 64), box(80, 64)]) == [FrameRegion(64, 64, 96, 80)]
    assert found([box(64, 64, 32), box(72, 72, 8)]) == [FrameRegion(64, 64, 96, 96)]
    assert len(found([box(64, 64), box(80, 80)])) == 2


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [box(64, 64, score=0.9)],
        [Box(50, 50, 50, 90, 0.4)],
        [box(-90, -90), box(1e300, 20), box(20, 241)],
        [Box(0, 0, WIDTH, HEIGHT, 0.4)],
        [Box(-1e308, -1e308, 1e308, 1e308, 0.4)],
        [box(x * 5 % WIDTH, x * 7 % HEIGHT, 2) for x in range(10_000)],
    ],
    ids=["none", "sure ones", "no area", "outside", "all of it", "far over all edges", "ten thousand"],
)
def test_a_frame_is_whole_without_regions_and_with_too_many(boxes: list[Box]) -> None:
    assert find_regions(boxes, WIDTH, HEIGHT, RULE) is None


def test_a_thousand_small_regions_of_a_large_frame_are_too_many() -> None:
    scattered = [box(40 * column, 40 * row, 2) for column in range(50) for row in range(20)]
    assert find_regions(scattered, 4000, 2000, RULE) is None
    assert len(found(scattered[:MAX_REGIONS], width=4000, height=2000)) == MAX_REGIONS


def test_cells_of_the_map_are_regions_of_each_frame() -> None:
    assert found([], RegionRule(cells=[0])) == [FrameRegion(0, 0, 40, 32)]
    assert found([], RegionRule(cells=[GRID * GRID - 1])) == [FrameRegion(280, 208, 320, 240)]


# --- layout -------------------------------------------------------------------------------------------------------


@given(regions_of_a_frame, st.integers(8, 400), st.integers(8, 400))
def test_packed_regions_are_inside_and_have_gutters(regions: list[FrameRegion], width: int, height: int) -> None:
    placements = pack_rows(regions, width, height)
    if placements is None:
        return
    assert sorted(placement.region for placement in placements) == sorted(regions)
    for region, x, y in placements:
        assert 0 <= x <= width - region.width
        assert 0 <= y <= height - region.height
        assert x % BLOCK == y % BLOCK == 0
    for (one, x, y), (other, u, v) in combinations(placements, 2):
        is_beside = x + one.width + GUTTER <= u or u + other.width + GUTTER <= x
        assert is_beside or y + one.height + GUTTER <= v or v + other.height + GUTTER <= y


def test_the_smallest_picture_that_has_them_is_used_and_not_below_the_least() -> None:
    small = [FrameRegion(64, 64, 96, 96), FrameRegion(160, 160, 192, 192)]
    assert lay_out(small, WIDTH, HEIGHT, 0.25).width == 80
    assert lay_out(small, WIDTH, HEIGHT, 0.5).width == 160
    in_place = lay_out(small, WIDTH, HEIGHT, 1.0)
    assert (in_place.in_place, in_place.width, in_place.height) == (True, WIDTH, HEIGHT)
    assert lay_out([FrameRegion(0, 0, 312, 16)], WIDTH, HEIGHT, 0.25).in_place


@pytest.mark.parametrize("shape", [(HEIGHT, WIDTH), (HEIGHT, WIDTH, 3)])
@pytest.mark.parametrize("least", [0.25, 1.0])
def test_the_picture_has_the_pixels_of_the_regions_and_else_one_colour(shape: tuple[int, ...], least: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    layout = lay_out([FrameRegion(8, 16, 40, 48), FrameRegion(304, 208, 320, 240)], WIDTH, HEIGHT, least)
    picture = layout.paint(pixels)
    assert picture.shape == (layout.height, layout.width, *shape[2:])
    outside = np.ones(picture.shape[:2], bool)
    for region, x, y in layout.placements:
        own = picture[y : y + region.height, x : x + region.width]
        assert np.array_equal(own, pixels[region.y1 : region.y2, region.x1 : region.x2])
        outside[y : y + region.height, x : x + region.width] = False
    assert len(np.unique(picture[outside], axis=0)) == 1


# --- answers ------------------------------------------------------------------------------------------------------


@given(regions_of_a_frame, st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([1.0, 2.0, 8.0]), st.data())
def test_what_goes_up_comes_back_at_its_place(
    regions: list[FrameRegion], least: float, factor: float, data: st.DataObject
) -> None:
    layout = lay_out(regions, WIDTH, HEIGHT, least)
    objects = []
    for region in data.draw(st.lists(st.sampled_from(regions), unique=True)):
        x = data.draw(st.integers(region.x1, region.x2 - 4))
        y = data.draw(st.integers(region.y1, region.y2 - 4))
        objects.append(Box(x * factor, y * factor, (x + 4) * factor, (y + 4) * factor, 0.5, "a"))
    sent = SentRegions(layout, (factor, factor), Prediction(boxes=objects))
    uploaded = sent.edge_in_layout().boxes
    assert uploaded is not None
    assert len(uploaded) == len(objects)
    for one in uploaded:
        assert 0 <= one.x1 < one.x2 <= layout.width
        assert 0 <= one.y1 < one.y2 <= layout.height
    answer = sent.joint(Prediction(boxes=uploaded))
    corners = sorted((b.x1, b.y1, b.x2, b.y2) for b in answer.boxes or ())
    assert corners == sorted((b.x1, b.y1, b.x2, b.y2) for b in objects)


SQUARE = FrameRegion(80, 80, 112, 112)
PLACED = (RegionPlacement(SQUARE, 0, 0), RegionPlacement(FrameRegion(200, 160, 232, 192), 40, 0))
PACKED = RegionLayout(80, 60, PLACED, in_place=False)
EDGE = Prediction(label="small", boxes=[box(88, 88), box(20, 20, score=0.9), box(204, 164)])


def joint(answer: Prediction, edge: Prediction = EDGE, layout: RegionLayout = PACKED) -> Prediction:
    return SentRegions(layout, (1.0, 1.0), edge).joint(answer)


def test_the_big_model_counts_inside_of_regions_and_the_small_one_outside() -> None:
    answer = joint(Prediction(label="big", boxes=[box(8, 8, score=0.7), box(44, 4, score=0.6)]))
    assert answer.label == "big"
    assert answer.boxes == [box(88, 88, score=0.7), box(204, 164, score=0.6), box(20, 20, score=0.9)]
    assert joint(Prediction(boxes=[])).boxes == [box(20, 20, score=0.9)]


def test_boxes_in_gutters_and_outside_of_regions_are_left_out() -> None:
    gutters = [box(32, 4, 7), box(34, 40, 8), box(300, 4), box(-40, -40), box(1e300, 0)]
    assert joint(Prediction(boxes=gutters)).boxes == [box(20, 20, score=0.9)]


def test_a_box_of_a_packed_region_is_clipped_to_it_and_one_in_place_to_the_frame() -> None:
    (first, *_) = joint(Prediction(boxes=[Box(-5, 4, 40, 20, 0.9)])).boxes or []
    assert (first.x1, first.x2) == (80, 112)
    in_place = lay_out([SQUARE], WIDTH, HEIGHT, 1.0)
    (first, *_) = joint(Prediction(boxes=[Box(70, 84, 120, 100, 0.9)]), layout=in_place).boxes or []
    assert (first.x1, first.x2) == (70, 120)


def test_an_object_at_the_border_of_a_region_is_one_object() -> None:
    layout = lay_out([SQUARE], WIDTH, HEIGHT, 1.0)
    crossing = [Box(98, 84, 128, 104, 0.9, label) for label in "ab"]
    beyond = Prediction(boxes=[*crossing, box(200, 20, score=0.9)])
    answer = joint(Prediction(boxes=[Box(94, 84, 126, 104, 0.7, "a")]), beyond, layout)
    assert [(b.score, b.label) for b in answer.boxes or ()] == [(0.7, "a"), (0.9, "b"), (0.9, "a")]


def test_packed_regions_do_not_overlap() -> None:
    crossing = [FrameRegion(80, 80, 112, 88), FrameRegion(88, 72, 96, 104)]
    placed = lay_out(crossing, WIDTH, HEIGHT, 0.25).placements
    assert [placement.region for placement in placed] == [FrameRegion(80, 72, 112, 104)]
    assert len(lay_out(crossing, WIDTH, HEIGHT, 1.0).placements) == 2


def test_landmarks_stay_with_their_boxes_and_lines_with_their_regions() -> None:
    eye, corners = [PicturePoint(10, 10)], [PicturePoint(x, y) for x, y in ((4, 4), (8, 4), (8, 8), (4, 8))]
    edge = Prediction(boxes=[box(88, 88), box(20, 20)], landmarks=[[PicturePoint(90, 90)], [PicturePoint(22, 22)]])
    read = [TextLine(text="in", corners=corners), TextLine(text="nowhere")]
    landmarks = [[PicturePoint(35, 5)], eye]
    cloud = Prediction(boxes=[box(34, 4, 4), box(8, 8)], landmarks=landmarks, lines=read, embeddings=b"abcd")
    answer = joint(cloud, edge)
    assert answer.boxes == [box(88, 88), box(20, 20)]
    assert answer.landmarks == [[PicturePoint(90, 90)], [PicturePoint(22, 22)]]
    lines = [(line.text, line.corners[0]) for line in answer.lines or () if line.corners]
    assert lines == [("in", PicturePoint(84, 84))]
    assert answer.embeddings is None


@given(boxes, boxes, regions_of_a_frame, st.sampled_from([0.25, 1.0]))
def test_any_two_answers_can_join(edge: list[Box], cloud: list[Box], regions: list[FrameRegion], least: float) -> None:
    sent = SentRegions(lay_out(regions, WIDTH, HEIGHT, least), (2.0, 2.0), Prediction(boxes=edge))
    answer = sent.joint(Prediction(boxes=cloud))
    for one in answer.boxes or ():
        is_inside = 0 <= one.x1 <= 2 * WIDTH and 0 <= one.y1 <= 2 * HEIGHT
        assert is_inside or one in edge


def test_an_answer_never_has_more_boxes_than_a_message_may() -> None:
    crowd = [box(8 + i % 8, 8, 4, 0.5) for i in range(10_000)]
    answer = joint(Prediction(boxes=crowd), Prediction(boxes=[box(20, 20)] * 10_000))
    assert len(answer.boxes or ()) == 10_000
