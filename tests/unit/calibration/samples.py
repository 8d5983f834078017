"""Two made-up classifiers: the small one errs in ways that its own confidence does not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from halimede.calibration.temperature import softmax
from halimede.evaluation.data import LabelledSamples
from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile, write_artefact

LABELS = ["ant", "bee", "cat", "dog"]


def samples_of(number: int, **answers_: Any) -> LabelledSamples:
    """Return so many samples without any content."""
    names = [str(i) for i in range(number)]
    return LabelledSamples(images=[np.zeros(1)] * number, names=names, sizes=[100] * number, **answers_)


def saved(artefact: CalibrationFile, folder: Path) -> Path:
    path = folder / "zoo.calibration"
    path.write_bytes(write_artefact(artefact))
    return path


def answers(rows: np.ndarray) -> list[Prediction]:
    return [
        Prediction(label=LABELS[int(row.argmax())], score=float(row.max()), probabilities=row.tolist()) for row in rows
    ]


def pair(samples: int, seed: int = 0) -> tuple[list[Prediction], list[Prediction], LabelledSamples]:
    """Edge, cloud and data: of what the edge calls an ant half is something else, as sure as it is."""
    chance = np.random.default_rng(seed)
    truth = chance.integers(0, 4, samples)
    seen = np.where((truth == 1) & (chance.random(samples) < 0.5), 0, truth)
    edge = softmax(np.eye(4)[seen] * 2.5 + chance.normal(0, 0.8, (samples, 4)))
    cloud = softmax(np.eye(4)[truth] * 5 + chance.normal(0, 1, (samples, 4)))
    return answers(edge), answers(cloud), samples_of(samples, truths=[LABELS[i] for i in truth])
