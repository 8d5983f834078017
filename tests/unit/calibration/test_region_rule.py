"""Which regions are uploaded follows from pictures on which both models are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from halimede.calibration.blocks import Indices
from halimede.calibration.calibrate import subset
from halimede.calibration.region_rule import MIN_RECALL, FittedRegions, RegionFit, missed_cells, size_of
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.region_uploads import RegionUploads, answer_uploads, objects_in
from halimede.frames import new_frame
from halimede.frames.transcode_policy import UploadFormat
from halimede.inference import Array
from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import GRID, CalibrationFile, RegionRule, read_artefact
from tests.unit.calibration.samples import samples_of, saved

WIDTH, HEIGHT, SIDE = 160, 128, 16
Seeing = Callable[[Array], list[Box]]


def scene(chance: np.random.Generator, columns: Sequence[int]) -> tuple[Array, list[Box]]:
    """Return a noisy picture with bright squares in some columns of it."""
    pixels = chance.integers(40, 90, (HEIGHT, WIDTH)).astype(np.uint8)
    boxes = []
    for column in columns:
        x, y = column * 32 + 8, int(chance.integers(0, 4)) * 32 + 8
        pixels[y : y + SIDE, x : x + SIDE] = 230
        boxes.append(Box(x, y, x + SIDE, y + SIDE, 0.9, "square"))
    return pixels, boxes


def bright(pixels: Array) -> list[Box]:
    """Find the bright squares of a picture of any size, each of at least 12 pixels a side."""
    numbered, _ = ndimage.label(pixels > 160)
    spans = [(rows.start, rows.stop, columns.start, columns.stop) for rows, columns in ndimage.find_objects(numbered)]
    return [Box(x1, y1, x2, y2, 0.9, "square") for y1, y2, x1, x2 in spans if x2 - x1 >= 12 and y2 - y1 >= 12]


def only_in_frames(pixels: Array) -> list[Box]:
    """Find nothing in a picture of which a fifth has one colour."""
    return bright(pixels) if np.bincount(pixels.ravel()).max() < pixels.size / 5 else []


def fitted(see: Seeing, edge_of: Callable[[list[Box]], list[Box]], encoding: str = "png") -> FittedRegions:
    chance = np.random.default_rng(5)
    scenes = [scene(chance, sorted(chance.choice(5, 2, replace=False).tolist())) for _ in range(80)]
    frames = [new_frame(pixels, encoding=encoding) for pixels, _ in scenes]  # type: ignore[arg-type]
    data = replace(samples_of(len(frames)), images=frames, sizes=[frame.data.nbytes for frame in frames])
    cloud = [Prediction(boxes=boxes) for _, boxes in scenes]
    edge = [Prediction(boxes=edge_of(boxes)) for _, boxes in scenes]

    def answer(pictures: LabelledSamples) -> list[Prediction]:
        return [Prediction(boxes=see(pictures.image(i))) for i in range(len(pictures))]

    def upload(rule: RegionRule, indices: Indices) -> RegionUploads:
        low_part, high_part = [edge[i] for i in indices], [cloud[i] for i in indices]
        return answer_uploads(
            subset(data, indices), low_part, high_part, rule=rule, upload_format=UploadFormat(), answer=answer
        )

    return RegionFit(data.images, edge, cloud, upload).fit()


def unsure(boxes: list[Box]) -> list[Box]:
    return [Box(box.x1 + 2, box.y1, box.x2 + 2, box.y2, 0.5, box.label) for box in boxes]


def test_regions_have_the_objects_for_fewer_bytes() -> None:
    fit = fitted(bright, unsure)
    assert fit.rule
    assert fit.notes == []
    assert fit.measures["region_objects"] >= MIN_RECALL
    assert fit.measures["region_bytes"] < 0.4 * fit.measures["frame_bytes"]


@pytest.mark.parametrize(
    ("see", "edge_of", "why"),
    [
        (only_in_frames, unsure, "frames are uploaded (upload: frame)"),
        (bright, lambda _: [Box(0, 0, WIDTH, HEIGHT, 0.5, "square")], "of the bytes of frames"),
    ],
    ids=["the big model is worse on regions", "regions are the whole frame"],
)
def test_frames_are_uploaded_where(see: Seeing, edge_of: Callable[[list[Box]], list[Box]], why: str) -> None:
    fit = fitted(see, edge_of)
    assert fit.rule is None
    assert why in fit.notes[0]


def test_objects_that_the_small_model_misses_at_one_place_are_on_the_map() -> None:
    edge = Prediction(boxes=[Box(8, 8, 24, 24, 0.5, "a")])
    cloud = Prediction(boxes=[Box(8, 8, 24, 24, 0.9, "a"), Box(140, 100, 150, 110, 0.9, "a")])
    assert missed_cells([(edge, cloud, WIDTH, HEIGHT)] * 10) == [6 * GRID + 7]
    assert missed_cells([(edge, edge, WIDTH, HEIGHT)] * 10) == []
    everywhere = [
        (edge, Prediction(boxes=[Box(x, y, x + 2, y + 2, 0.9, "a")]), WIDTH, HEIGHT)
        for x in range(40, WIDTH, 20) for y in range(40, HEIGHT, 16)
    ]  # fmt: skip
    assert missed_cells(everywhere) == []


def test_samples_that_are_no_pictures_have_no_regions() -> None:
    assert size_of(np.zeros((HEIGHT, WIDTH), np.uint8)) == (WIDTH, HEIGHT)
    for sample in (np.zeros(7, np.float32), np.zeros((8, 8), np.float32)):
        with pytest.raises(InvalidFieldError, match="regions are parts of pictures"):
            size_of(sample)


def test_an_object_counts_by_a_box_of_its_class_that_overlaps_it_by_half() -> None:
    whole = Prediction(boxes=[Box(0, 0, 10, 10, 0.9, "a"), Box(20, 0, 30, 10, 0.9, "b"), Box(50, 0, 60, 10, 0.4, "a")])
    answer = Prediction(boxes=[Box(0, 0, 10, 6, 0.3, "a"), Box(20, 0, 30, 10, 0.9, "a")])
    objects, matched = objects_in([whole], [answer])
    assert (objects.tolist(), matched.tolist()) == ([2], [1])


def test_a_rule_is_in_the_calibration_and_is_bounded(tmp_path) -> None:
    rule = RegionRule(sure=0.6, cells=[63])
    assert read_artefact(saved(CalibrationFile(service="s", regions=rule), tmp_path)).regions == rule
    for text in ('"sure": 1.1', '"padding": 5', '"cells": [64]', '"scale": 0', '"canvas": 0.1'):
        broken = tmp_path / f"{hash(text)}.calibration"
        broken.write_text('{"service": "s", "regions": {' + text + "}}")
        with pytest.raises(Exception, match=r"regions\." + text.split('"')[1]):
            read_artefact(broken)
