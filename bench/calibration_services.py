"""Five services to calibrate: their models, the samples to calibrate on and to test on, and the truth of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from examples.detection import scenes
from examples.digits import data as digits
from examples.real_pairs import faces, words
from examples.real_pairs.manifests import PARTS, model
from examples.real_pairs.packages import Package

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Subject:
    """A service to measure: its rule before calibration, and what writes its models, manifests and samples.

    ``truth``: what the samples' truth is. ``write``: called with the folder, the number of samples in each part, and a
    seed, of which each draws other samples. ``packages``: those that have its models and pictures.
    """

    name: str
    rule: str
    truth: str
    write: Callable[[Path, int, int], list[dict[str, Any]]]
    packages: tuple[Package, ...] = ()


def example_models(file: Path) -> list[dict[str, Any]]:
    """Return an example's Models with the whole paths of their files."""
    bodies = list(yaml.safe_load_all(file.read_text()))
    for body in bodies:
        body["spec"]["url"] = str((file.parent / body["spec"]["url"]).resolve())
    return bodies


def write_digits(folder: Path, _: int, seed: int) -> list[dict[str, Any]]:
    """Write the half of scikit-learn's digits that no model was trained on; a seed divides them in another way."""
    digits.export(folder, digits.SEED + seed)
    return example_models(EXAMPLES / "digits" / "1-models.yaml")


def write_scenes(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write scenes of digits, rendered at known places."""
    for part in ("calibrate", "test"):
        scenes.write(folder / part, scenes.scenes(part, count * (seed + 1))[-count:])
    return example_models(EXAMPLES / "detection" / "1-models.yaml")


def write_table(folder: Path, _: int, seed: int) -> list[dict[str, Any]]:
    """Write scikit-learn's table of breast cancer: the small model reads two columns, the big one all thirty."""
    from skl2onnx import to_onnx  # noqa: PLC0415  # slow to import
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    rows, classes = load_breast_cancer(return_X_y=True)
    rows = rows.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))
    fit, unseen = order[:120], np.random.default_rng(seed).permutation(order[120:])
    parts = {"calibrate": unseen[:225], "test": unseen[225:]}
    models = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in (("table-small", 2), ("table-big", rows.shape[1])):
        used = np.zeros(rows.shape[1], np.float32)
        used[:columns] = 1
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
        pipeline.fit(rows[fit] * used, classes[fit])
        pipeline.steps[-1][1].coef_ *= used
        options = {id(pipeline.steps[-1][1]): {"zipmap": False}}
        written = to_onnx(pipeline, rows[:1], options=options, target_opset=17)
        (folder / f"{name}.onnx").write_bytes(written.SerializeToString())
        models.append(model(name, folder / f"{name}.onnx", format="onnx", labels=["malignant", "benign"],
                            postprocess={"task": "classification", "output": "probabilities"}))  # fmt: skip
    for part, chosen in parts.items():
        np.savez(folder / f"{part}.npz", x=rows[chosen], y=classes[chosen])
    return models


def write_words(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write words as a camera sees them: small, blurred, with noise."""
    for part in PARTS:
        words.write_frames(folder / part, part, count, seed)
    return words.write_models(folder)


def write_faces(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write frames with faces at known places, of the same people in both parts: two draws of one stream."""
    for part in PARTS:
        faces.write_frames(folder / part, part, count, seed, with_all_people=True)
    return faces.write_models(folder)


def write_faces_alone(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write the same frames without boxes: the big model's answers are the truth."""
    models = write_faces(folder, count, seed)
    for part in PARTS:
        (folder / part / "annotations.json").unlink()
    return models


SUBJECTS = (
    Subject("faces", "UncertainBoxes", "boxes drawn by hand, rendered", write_faces, faces.PACKAGES),
    Subject("faces-agreement", "UncertainBoxes", "agreement with the big model", write_faces_alone, faces.PACKAGES),
    Subject("words", "Threshold", "rendered", write_words, words.PACKAGES),
    Subject("digits", "Margin", "scikit-learn's labels", write_digits),
    Subject("scenes", "UncertainBoxes", "rendered", write_scenes),
    Subject("table", "Margin", "scikit-learn's labels", write_table),
)
