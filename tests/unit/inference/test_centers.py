"""Maps of scores, sizes and offsets become boxes, by the conventions of CenterNet and of CenterFace."""

from __future__ import annotations

import math

import numpy as np
import pytest

from halimede.api.processing import Boxes, Nms, Postprocess
from halimede.inference import SampleError
from halimede.inference.decoders.centers import is_peak
from halimede.inference.detection import BoxReader


def maps(classes: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a middle in row 2 and column 1 of maps of 4 x 5, with a lower score beside it."""
    scores, sizes, offsets = np.zeros((classes, 4, 5)), np.zeros((2, 4, 5)), np.zeros((2, 4, 5))
    scores[-1, 2, 1], scores[-1, 2, 2] = 0.9, 0.8
    return scores, sizes, offsets


def reader(decode: str, landmarks: str = "", **fields: object) -> BoxReader:
    boxes = Boxes(decode=decode, output="sizes", offsets="offsets", landmarks=landmarks)
    names = ["heat", "sizes", "offsets", *([landmarks] if landmarks else [])]
    return BoxReader(names, Postprocess(task="detection", boxes=boxes, nms=Nms(score=0.5), **fields), [])


def test_centernet_has_x_first_and_sizes_in_cells():
    scores, sizes, offsets = maps(classes=2)
    sizes[:, 2, 1], offsets[:, 2, 1] = [3, 2], [0.5, 0.25]
    (box,) = reader("centernet").read((scores, sizes, offsets)).boxes
    # middle (1.5, 2.25) and size (3, 2), in cells of four pixels
    assert [box.x1, box.y1, box.x2, box.y2, box.score, box.label] == [0, 5, 12, 13, 0.9, 1]


def test_centerface_has_y_first_logarithms_and_the_middle_of_the_cell():
    scores, sizes, offsets = maps()
    sizes[:, 2, 1], offsets[:, 2, 1] = [math.log(2), math.log(3)], [0.25, 0]
    points = np.zeros((4, 4, 5))
    points[:, 2, 1] = [0.5, 0.25, 1, 0]
    answer = reader("centerface", "points").read((scores, sizes, offsets, points))
    (box,), (pair,) = answer.boxes, answer.landmarks
    assert [box.x1, box.y1, box.x2, box.y2] == pytest.approx([0, 7, 12, 15])
    assert [value for point in pair for value in (point.x, point.y)] == pytest.approx([3, 11, 0, 15])
    nothing = reader("centerface", "points").read((scores * 0, sizes, offsets, points))
    assert (nothing.boxes, nothing.landmarks) == ([], [])


def test_only_the_highest_of_nine_cells_of_a_class_is_a_middle():
    scores = np.random.default_rng(3).random((2, 9, 7))
    highest = np.array([
        [[scores[c, max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].max() for x in range(7)] for y in range(9)]
        for c in range(2)
    ])  # fmt: skip
    assert (is_peak(scores) == (scores == highest)).all()
    assert not is_peak(np.zeros((1, 3, 3))).any()


def test_a_peak_below_the_least_score_is_not_read():
    scores, sizes, offsets = maps()
    scores[-1, 0, 4], sizes[:, 0, 4] = 0.4, 1e6  # e to this power is infinite
    assert [box.score for box in reader("centerface").read((scores, sizes, offsets)).boxes] == [0.9]
    scores[-1, 0, 4] = 0.6
    with pytest.raises(SampleError, match="beyond all measure"):
        reader("centerface").read((scores, sizes, offsets))


def test_logits_become_scores_before_middles_are_taken():
    scores, sizes, offsets = maps()
    (box,) = reader("centernet", activation="sigmoid").read(((scores - 0.5) * 100, sizes, offsets)).boxes
    assert box.score == pytest.approx(1)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["scores", "sizes", "offsets"])
def test_a_map_with_nan_is_the_samples_error_and_names_output_cell_and_remedy(which):
    parts = maps()
    parts[which][-1, 3, 4] = np.nan
    with pytest.raises(SampleError) as caught:
        reader("centerface").read(parts)
    name = ["heat", "sizes", "offsets"][which]
    index = f"[{len(parts[which]) - 1}, 3, 4]"
    assert f"the model's output {name} has nan at {index}, one of 1 such values" in str(caught.value)
    assert "check the range of spec.preprocess, or export the model in float32" in str(caught.value)


def test_maps_of_another_size_name_the_fields():
    scores, sizes, offsets = maps()
    with pytest.raises(SampleError, match=r"no maps of scores.*check spec.postprocess.output, boxes.output"):
        reader("centernet").read((scores, sizes[:, 1:], offsets))
    with pytest.raises(SampleError, match=r"landmarks \[4, 2, 5\].*check spec.postprocess.boxes.landmarks"):
        reader("centerface", "points").read((scores, sizes, offsets, np.zeros((4, 2, 5))))
    with pytest.raises(SampleError, match=r"no maps \[samples, channels, height, width\]"):
        reader("centernet").split([scores, sizes, offsets], 1)
