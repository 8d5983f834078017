"""Regions of a map of probabilities become boxes of text, as DB's authors read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halimede.api.base import convert
from halimede.api.processing import Boxes, Fit, Nms, Postprocess, check_postprocess
from halimede.errors import InvalidFieldError
from halimede.inference import SampleError
from halimede.inference.detection import BoxReader
from halimede.inference.geometry import follow


def reader(labels: tuple[str, ...] = (), nms: Nms | None = None, activation: str = "none", **boxes: Any) -> BoxReader:
    postprocess = Postprocess(task="detection", activation=activation, boxes=Boxes(decode="db", **boxes), nms=nms)
    return BoxReader(["map"], postprocess, labels)


def two_words() -> np.ndarray:
    """Return a map with a word of 30 x 10 pixels, and one of 10 x 6 above it."""
    values = np.zeros((1, 60, 100), np.float32)
    values[0, 40:50, 20:50], values[0, 10:16, 60:70] = 0.9, 0.6
    return values


def corners(prediction: Any) -> list[list[float]]:
    return [[box.x1, box.y1, box.x2, box.y2] for box in prediction.boxes]


def test_a_region_grows_by_its_area_and_perimeter_and_scores_the_mean_of_its_cells():
    answer = reader(("text",), unclip=2.0).read((two_words(),))
    assert [(box.label, round(box.score, 4)) for box in answer.boxes] == [("text", 0.6), ("text", 0.9)]
    # 300 pixels times 2, by a perimeter of 80, are 7.5; 60 pixels times 2, by 32, are 3.75
    assert corners(answer) == [[56.25, 6.25, 73.75, 19.75], [12.5, 32.5, 57.5, 57.5]]
    assert corners(reader(unclip=0.0).read((two_words(),)))[1] == [20, 40, 50, 50]


def test_words_are_listed_from_top_to_bottom_and_a_threshold_selects_pixels():
    assert [box.score for box in reader(threshold=0.7).read((two_words(),)).boxes] == [pytest.approx(0.9)]
    assert len(reader(nms=Nms(score=0.5)).read((two_words(),)).boxes) == 2
    assert len(reader(nms=Nms(score=0.7)).read((two_words(),)).boxes) == 1


def test_logits_are_activated_before_they_are_compared():
    values = np.where(two_words() > 0, 5.0, -5.0)
    assert len(reader(activation="sigmoid").read((values,)).boxes) == 2
    with pytest.raises(SampleError, match=r"set spec\.postprocess\.activation to sigmoid"):
        reader().read((values,))


def test_an_empty_page_has_no_boxes_and_specks_are_no_text():
    assert reader().read((np.zeros((1, 60, 100)),)).boxes == []
    specks = np.zeros((1, 60, 100))
    specks[0, ::3, ::3] = 1.0
    assert reader().read((specks,)).boxes == []


def test_boxes_are_in_pixels_of_the_frame_and_a_page_that_is_all_text_is_one_within_it():
    geometry = follow([Fit(longest=100)], (120, 200, 3))
    assert corners(reader(unclip=0.0).read((two_words(),), geometry))[1] == [40, 80, 100, 100]
    assert corners(reader().read((np.ones((1, 60, 100)),), geometry)) == [[0, 0, 200, 120]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 60, 100)), r"\[2, 60, 100\] .* which is no map of probabilities"),
        (np.zeros((1, 0, 100)), r"\[1, 0, 100\] .* which is no map"),
        (np.zeros((1, 15, 25)), r"a map of \[15, 25\] for an input of \[60, 100\]"),
        (np.full((1, 60, 100), np.nan), "output map has nan"),
    ],
    ids=["two channels", "empty", "smaller", "nan"],
)
def test_a_map_of_another_form_is_the_samples_error(values, message):
    with pytest.raises(SampleError, match=message):
        reader().read((values,), follow([Fit(longest=100)], (120, 200, 3)))


def test_more_regions_than_a_message_holds_are_an_error_that_names_the_remedy():
    values = np.zeros((1, 500, 500))
    for row, column in ((row, column) for row in range(3) for column in range(3)):
        values[0, row::4, column::4] = 1.0
    with pytest.raises(SampleError, match=r"15625 boxes, more than 10000: set spec\.postprocess\.nms"):
        reader().read((values,))
    assert len(reader(nms=Nms(max=7)).read((values,)).boxes) == 7


@pytest.mark.parametrize(
    ("boxes", "field"),
    [
        ({"decode": "db", "output": "boxes"}, "boxes.decode"),
        ({"decode": "db", "form": "cxcywh"}, "boxes.form"),
        ({"decode": "db", "normalized": True}, "boxes.normalized"),
        ({"decode": "db", "offsets": "o"}, "boxes.offsets"),
        ({"threshold": 0.3}, "boxes.threshold"),
        ({"decode": "yolo", "unclip": 1.5}, "boxes.unclip"),
    ],
)
def test_fields_that_do_not_fit_the_map_are_refused(boxes, field):
    postprocess = convert({"task": "detection", "boxes": boxes}, Postprocess, "spec.postprocess")
    with pytest.raises(InvalidFieldError) as caught:
        check_postprocess(postprocess)
    assert caught.value.field == f"spec.postprocess.{field}"


@pytest.mark.parametrize("boxes", [Boxes(decode="db"), Boxes(decode="centernet", output="sizes", offsets="offsets")])
def test_a_softmax_over_a_map_is_refused(boxes):
    with pytest.raises(InvalidFieldError, match="use sigmoid or none"):
        check_postprocess(Postprocess(task="detection", activation="softmax", boxes=boxes))
