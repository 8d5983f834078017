"""Compares what a training reads with what the other readers of samples read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from halimede.api.model import ModelSpec
from halimede.training.data import TrainingDataError, read_data


def check_training(path: Path, truths: list[str]) -> None:
    """A training reads samples of these classes, or says why they are too few to learn from."""
    spec = ModelSpec(url="file:///m.onnx", format="onnx", labels=sorted(set(truths)))
    try:
        data = read_data(path, spec)
    except TrainingDataError as error:
        if error.reason not in {"DatasetEmpty", "DatasetOneClass"}:
            raise
        return
    classes = [*data.train.labels.tolist(), *data.held_out.labels.tolist()]
    assert Counter(spec.labels[number] for number in classes) == Counter(truths)
