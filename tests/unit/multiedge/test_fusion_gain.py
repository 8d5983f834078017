"""Three noisy views of real digits, each with a model of its own: together they see better than the best of them.

Everything that a worker runs, but the bus: stages with ONNX models, and the joint. Splits are fixed: models learn on
the first third of the digits, calibration on the second, and what is measured is measured on the last.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from halimede.api.model import ModelSpec
from halimede.inference import Model, open_model
from halimede.messages import Prediction
from halimede.multiedge import Application, Finding, Item, JointTools, Tools, create
from halimede.multiedge.fusion.calibration import load, measure
from halimede.multiedge.stage import Parameters

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
CAMERAS = ("dark", "hidden", "noisy")
SPEC = {
    "url": "/m.onnx",
    "format": "onnx",
    "labels": NAMES,
    "preprocess": [{"op": "scale", "factor": 1 / 16}, {"op": "layout", "order": "flat"}],
    "postprocess": {"task": "classification", "output": "probabilities"},
}


@dataclass(frozen=True)
class Scene:
    """What each camera says of each digit (``predictions[camera][i]``) and what it is."""

    predictions: dict[str, list[Prediction]]
    truth: list[str]


def views(images: np.ndarray) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    noisy = images + random.normal(0, 6, images.shape)
    hidden = images.copy()
    for image, row in zip(hidden, random.integers(0, 5, len(images)), strict=True):
        image[row : row + 4] = 0
    dark = images * 0.3 + random.normal(0, 2, images.shape)
    made = {"noisy": noisy, "hidden": hidden, "dark": dark}
    return {name: np.clip(np.round(view), 0, 16).astype(np.uint8) for name, view in made.items()}


def opened(path: Path, view: np.ndarray, targets: np.ndarray) -> Model:
    classifier = LogisticRegression(C=100, max_iter=400).fit(view.reshape(-1, 64) / np.float32(16), targets)
    made = to_onnx(classifier, np.zeros((1, 64), np.float32), options={id(classifier): {"zipmap": False}})
    path.write_bytes(made.SerializeToString())
    return open_model(path, msgspec.convert(SPEC, ModelSpec))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, Scene]:
    digits = load_digits()
    third = len(digits.images) // 3
    application, nothing = create("fusion", "", Parameters({})), Parameters({})
    said: dict[str, list[Prediction]] = {}
    for camera, view in views(digits.images).items():
        with opened(tmp_path_factory.mktemp("m") / "m.onnx", view[:third], digits.target[:third]) as model:
            items = [Item(image, camera) for image in view[third:]]
            for stage in application.stages:
                stage(Tools({"model": model}, nothing)).run(items)
            said[camera] = [item.prediction for item in items]
    names = [NAMES[target] for target in digits.target[third:]]
    parts = slice(0, third), slice(third, None)
    return tuple(Scene({c: p[part] for c, p in said.items()}, names[part]) for part in parts)


def fused(scene: Scene, application: Application, parameters: Parameters, folder: Path) -> list[Prediction]:
    """Give all findings to the joint, a camera after the other: nothing says in which order they come."""
    joint = application.joint(JointTools(parameters, folder, cameras=CAMERAS))
    joint.open()
    answers: dict[bytes, Prediction] = {}
    for i in range(len(scene.truth)):
        for camera in CAMERAS:
            key = f"{camera}/{i}".encode()
            finding = Finding(key, camera, "w", "n", i, (i + 1) * 100_000_000, scene.predictions[camera][i])
            answers |= joint.take([finding], i / 10).answers
    return [answers[f"noisy/{i}".encode()] for i in range(len(scene.truth))]


def right(predictions: list[Prediction], truth: list[str]) -> float:
    return float(np.mean([said.label == name for said, name in zip(predictions, truth, strict=True)]))


def table(scene: Scene, path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["instant", "camera", "truth", *NAMES])
        for camera, said in scene.predictions.items():
            writer.writerows([i, camera, scene.truth[i], *p.probabilities] for i, p in enumerate(said))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["vote", "product", "max"])
def test_fusion_sees_better_than_the_best_single_source(scenes, tmp_path, rule):
    labelled, scene = scenes
    given = measure(load(table(labelled, tmp_path / "labelled.csv")), rule)["parameters"]
    parameters = Parameters(given)
    answers = fused(scene, create("fusion", "", parameters), parameters, tmp_path)
    single = {camera: right(said, scene.truth) for camera, said in scene.predictions.items()}
    together = right(answers, scene.truth)
    assert together >= max(single.values()) + (0.05 if rule == "product" else 0.0)
