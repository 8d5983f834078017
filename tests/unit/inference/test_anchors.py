"""Boxes relative to anchors become pixels: by the published grid, by SSD's variances, and from a file of anchors."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.api.processing import Anchors
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.inference import ModelError, SampleError, open_model
from halimede.inference.decoders.anchors import anchor_boxes, cell_middles, load_anchors
from halimede.messages import Prediction
from tests.unit.inference.world import spec_of, write_constant

SIDE = 16
#: two layers of one stride, two anchors each: four in each of four cells
COUNT = 16


def model(folder: Path, numbers: np.ndarray, scores: np.ndarray, shape: tuple[int, ...] = (1, SIDE, SIDE, 3)) -> Path:
    """Write a model that gives these numbers and scores, whatever the picture is."""
    return write_constant(folder / "model.onnx", shape, numbers=numbers[np.newaxis], scores=scores[np.newaxis])


def spec(anchors: dict[str, object], **fields: object) -> ModelSpec:
    boxes = {"decode": "ssd-anchors", "output": "numbers", "anchors": anchors}
    after = {"task": "detection", "output": "scores", "boxes": boxes, **fields}
    steps = [{"op": "resize", "width": SIDE, "height": SIDE}]
    return spec_of(preprocess=steps, postprocess=after)


def answer_of(path: Path, described: ModelSpec, size: tuple[int, int] = (SIDE, SIDE)) -> Prediction:
    with open_model(path, described) as opened:
        (answer,) = opened.predict([opened.prepare(np.zeros((*size, 3), np.uint8))])
    return answer


def vast_array() -> bytes:
    """Return a file of NumPy's whose header claims more numbers than any memory holds."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**14, 4)})
    return file.getvalue()


GRID = {"strides": [8, 8], "perCell": 2}


class TestGrid:
    def test_layers_of_one_stride_share_cells_as_in_the_published_grid(self):
        grid = cell_middles([8, 16, 16, 16], 2, 128, 128)
        assert grid.shape == (896, 4)
        assert grid[:3, :2].tolist() == [[0.5 / 16, 0.5 / 16]] * 2 + [[1.5 / 16, 0.5 / 16]]
        assert (grid[512:518, :2] == 0.5 / 8).all()
        assert grid[518, :2].tolist() == [1.5 / 8, 0.5 / 8]
        assert grid[-1, :2].tolist() == [7.5 / 8, 7.5 / 8]

    @pytest.mark.parametrize(
        ("strides", "per_cell", "side", "count"),
        [([16, 32, 32, 32], 2, 256, 896), ([4], 1, 192, 2304), ([8, 16, 16, 16], 2, 192, 2016),
         ([8, 16, 32, 32, 32], 2, 224, 2254)],
    )  # fmt: skip
    def test_it_has_as_many_anchors_as_the_published_models_have_boxes(self, strides, per_cell, side, count):
        assert len(cell_middles(strides, per_cell, side, side)) == count


class TestModel:
    def test_numbers_are_pixels_from_the_middle_of_the_cell_and_points_follow(self, tmp_path):
        numbers, scores = np.zeros((COUNT, 8)), np.full((COUNT, 1), -9.0)
        numbers[4], scores[4] = [1, -1, 4, 2, 0, 0, 2, 3], 2  # in the second cell: its middle is 12, 4
        path = model(tmp_path, numbers, scores)
        answer = answer_of(path, spec(GRID, activation="sigmoid", nms={"score": 0.5}), (2 * SIDE, 4 * SIDE))
        (box,), (points,) = answer.boxes, answer.landmarks
        assert [box.x1, box.y1, box.x2, box.y2] == [44, 4, 60, 8]
        assert box.score == pytest.approx(1 / (1 + math.exp(-2)))
        assert [[point.x, point.y] for point in points] == [[48, 8], [56, 14]]

    def test_logarithms_of_sizes_have_the_variances_of_ssd(self, tmp_path):
        np.save(tmp_path / "anchors.npy", np.array([[0.5, 0.25, 0.25, 0.5]]))
        path = model(tmp_path, np.array([[1.0, -1, 5 * math.log(2), 0]]), np.array([[0.1, 0.9]]))
        answer = answer_of(path, spec({"file": "anchors.npy", "log": True}))
        (box,) = answer.boxes
        # middle 8 + 0.1 * 4, 4 - 0.1 * 8; size 2 * 4, 8
        assert [box.x1, box.y1, box.x2, box.y2] == pytest.approx([4.4, -0.8, 12.4, 7.2], abs=1e-5)
        assert (box.label, answer.landmarks) == (1, None)

    def test_a_file_of_numbers_in_text_is_read_too(self, tmp_path):
        (tmp_path / "anchors.csv").write_text("0.5,0.5,1,1\n0.25,0.25,1,1\n")
        path = model(tmp_path, np.array([[0, 0, 2, 2], [0, 0, 2, 2]]), np.array([[0], [0.9]]))
        answer = answer_of(path, spec({"file": "anchors.csv"}))
        assert [answer.boxes[0].x1, answer.boxes[0].y2] == [3, 5]


class TestMistakes:
    def test_a_grid_of_another_size_names_field_and_both_counts(self, tmp_path):
        path = model(tmp_path, np.zeros((COUNT - 1, 4)), np.zeros((COUNT - 1, 1)))
        with pytest.raises(ModelError) as caught:
            open_model(path, spec(GRID))
        assert "[15, 4] for one sample, and spec.postprocess.boxes.anchors has 16 anchors" in str(caught.value)
        assert "(strides [8, 8], perCell 2, input 16 x 16)" in str(caught.value)
        assert "correct the anchors" in str(caught.value)

    def test_a_file_of_another_size_names_the_file_and_both_counts(self, tmp_path):
        np.save(tmp_path / "anchors.npy", np.zeros((7, 4)))
        path = model(tmp_path, np.zeros((COUNT, 4)), np.zeros((COUNT, 1)))
        with pytest.raises(ModelError, match=r"\[16, 4\] for one sample.*has 7 anchors \(of anchors\.npy\)"):
            open_model(path, spec({"file": "anchors.npy"}))

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (np.zeros((3, 5)), r"anchors.npy holds float64 \[3, 5\], which are no finite numbers \[boxes, 4\]: write"),
            (np.full((3, 4), np.nan), "which are no finite numbers"),
            (np.array([[0.5, 0.5, 1, -0.25]]), r"anchors.npy has an anchor of the size -0\.25, and no size is below 0"),
            (np.array([{}]), r"holds no numbers \[boxes, 4\]: Object arrays cannot be loaded"),
            (None, "there is no readable file anchors.npy in the model's folder: pack it into one archive"),
        ],
        ids=["columns", "nan", "negative", "objects", "missing"],
    )
    def test_a_file_that_has_no_anchors_names_the_field(self, tmp_path, content, text):
        if content is not None:
            np.save(tmp_path / "anchors.npy", content)
        path = model(tmp_path, np.zeros((3, 4)), np.zeros((3, 1)))
        with pytest.raises(ModelError, match=text) as caught:
            open_model(path, spec({"file": "anchors.npy"}))
        assert str(caught.value).startswith("spec.postprocess.boxes.anchors.file: ")

    @pytest.mark.parametrize(
        ("name", "content"),
        [*(("a.npy", content) for content in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", vast_array())),
         *(("a.csv", content) for content in (b"", b"a,b\n"))],
    )  # fmt: skip
    def test_a_damaged_file_of_numbers_and_a_text_that_is_no_table_are_refused(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=rf"anchors\.file: {re.escape(name)} holds no numbers \[boxes, 4\]"):
            load_anchors(Anchors(file=name), tmp_path)

    @pytest.mark.parametrize("shape", [(COUNT - 1, 1), (COUNT - 1,), (1, COUNT)])
    def test_another_number_of_scores_than_boxes_names_both(self, tmp_path, shape):
        path = model(tmp_path, np.zeros((COUNT, 4)), np.zeros(shape))
        text = re.escape(f"scores {list(shape)} for 16 boxes of one sample: check spec.postprocess.output")
        with pytest.raises(ModelError, match=text):
            open_model(path, spec(GRID))

    def test_an_open_size_has_no_grid(self, tmp_path):
        path = model(tmp_path, np.zeros((COUNT, 4)), np.zeros((COUNT, 1)), (1, "H", "W", 3))
        with pytest.raises(ModelError, match=r"needs a picture of a fixed size, and the model's input x has the shape"):
            open_model(path, spec(GRID))

    def test_numbers_beyond_all_measure_are_the_samples_error(self):
        boxes = anchor_boxes(Anchors(strides=[8]), (SIDE, SIDE))
        with pytest.raises(SampleError, match=r"has 8 anchors"):
            boxes.decode(np.zeros((8, 3)))

    @pytest.mark.parametrize(
        ("anchors", "field"),
        [({}, "strides"), ({"strides": [8], "file": "a.npy"}, "strides"), ({"file": "../a.npy"}, "file"),
         ({"file": "a.py"}, "file")],
    )  # fmt: skip
    def test_fields_that_exclude_each_other_are_refused(self, anchors, field):
        from halimede.api.model import check

        with pytest.raises(InvalidFieldError, match=rf"spec\.postprocess\.boxes\.anchors\.{field}"):
            check(spec(anchors))

    @pytest.mark.parametrize(
        ("boxes", "text"),
        [
            ({"decode": "ssd-anchors", "output": "n"}, "set boxes.anchors, which it needs"),
            ({"decode": "ssd-anchors", "anchors": GRID}, "boxes.output: '' is not accepted: name the output of boxes"),
            ({"anchors": GRID}, "set decode to ssd-anchors"),
            ({"decode": "centernet", "output": "n"}, "boxes.offsets: '' is not accepted: name the output of offsets"),
            ({"offsets": "n"}, "remove it: rows has no offsets"),
            ({"landmarks": "n"}, "remove it: rows has no such output"),
            ({"decode": "centerface", "output": "a", "offsets": "b", "form": "xyxy"}, "gives middle and size"),
            ({"decode": "centerface", "output": "a", "offsets": "b", "classes": "c"}, "has a score for each class"),
        ],
    )
    def test_a_decode_has_the_outputs_that_it_reads(self, tmp_path, boxes, text):
        path = model(tmp_path, np.zeros((3, 4)), np.zeros((3, 1)))
        with pytest.raises(HalimedeError, match=text):
            open_model(path, spec_of(postprocess={"task": "detection", "boxes": boxes}))
