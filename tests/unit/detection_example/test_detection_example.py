"""The detection example: scenes are honest, and the graph sees what the trainer saw."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
from PIL import Image

from examples.detection.detector import INNER, Network, Plan, boxes, export, shrinking, windows
from examples.detection.scenes import LABELS, SIDE, digits, scenes, write

PLAN = Plan(sides=(12.0, 20.0), stride=2)


def test_no_digit_is_in_two_parts():
    parts = ["fit", "tune", "calibrate", "test"]
    counts = [len(digits(part)[1]) for part in parts]
    assert sum(counts) == 1797
    assert min(counts) > 100


def test_scenes_are_always_the_same_and_each_part_has_its_own():
    first, again, other = scenes("test", 4), scenes("test", 4), scenes("calibrate", 4)
    for one, two, three in zip(first, again, other, strict=True):
        assert np.array_equal(one.picture, two.picture)
        assert not np.array_equal(one.picture, three.picture)


def test_boxes_are_in_their_scene_and_apart():
    shown = scenes("fit", 60)
    assert {len(scene.boxes) for scene in shown} >= {0, 1, 2, 3, 4}
    for scene in shown:
        assert scene.picture.shape == (SIDE, SIDE)
        assert ((scene.boxes >= 0) & (scene.boxes <= SIDE)).all()
        area = np.zeros((SIDE, SIDE), int)
        for x1, y1, x2, y2 in scene.boxes.astype(int).tolist():
            area[y1:y2, x1:x2] += 1
        assert area.max() <= 1


def test_the_folder_is_read_as_pictures_with_boxes(tmp_path):
    from halimede.evaluation.data import read_labelled

    shown = scenes("test", 12)
    write(tmp_path, shown)
    found = read_labelled(tmp_path, LABELS)
    assert [len(each) for each in found.boxes] == [len(scene.boxes) for scene in shown]
    for number, (scene, read) in enumerate(zip(shown, found.boxes, strict=True)):
        assert np.array_equal(np.squeeze(found.image(number)), scene.picture)
        assert [[box.x1, box.y1, box.x2, box.y2] for box in read] == scene.boxes.tolist()
        assert [str(box.label) for box in read] == [LABELS[label] for label in scene.labels]
    names = [entry["file_name"] for entry in json.loads((tmp_path / "annotations.json").read_text())["images"]]
    with Image.open(tmp_path / names[0]) as picture:
        assert picture.mode == "L"


def test_the_graph_says_of_each_loud_window_what_the_network_says_of_its_pixels():
    draw = np.random.default_rng(3)
    network = Network(
        *(draw.normal(0, scale, shape) for scale, shape in ((0.1, (100, 6)), (0.1, 6), (1, (6, 11)), (0.5, 11)))
    )
    session = onnxruntime.InferenceSession(export(PLAN, network).SerializeToString())
    shown = scenes("fit", 2)
    given = np.stack([scene.picture[np.newaxis] / np.float32(255) for scene in shown])
    (output,) = session.run(None, {"scene": given})
    places = boxes(PLAN)
    assert output.shape == (2, 4 + len(LABELS), len(places))
    for scene, said in zip(shown, output, strict=True):
        assert np.allclose(said[:4].T, places)
        rows = windows(PLAN, scene.picture, np.arange(len(places)))
        hidden = np.maximum(rows @ (network.hidden - network.hidden.mean(axis=0)) + network.hidden_bias, 0)
        scores = np.exp(hidden @ network.out + network.out_bias)
        scores = (scores / scores.sum(axis=1, keepdims=True))[:, :-1]
        loud = said[4:].any(axis=0)
        assert 0 < loud.mean() < 1
        assert np.allclose(said[4:, loud].T, scores[loud], atol=1e-3)


def test_a_level_shows_a_digit_eight_pixels_large():
    for side in PLAN.sides:
        shrink = shrinking(side)
        assert len(shrink) == int(SIDE * INNER / side)
        assert np.allclose(shrink.sum(axis=1), 1)
