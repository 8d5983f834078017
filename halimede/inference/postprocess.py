"""Reads a model's raw output: class scores or boxes of one sample become a Prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from halimede.inference.model import Array, SampleError
from halimede.messages import Box, Prediction

Activation: TypeAlias = Literal["none", "softmax", "sigmoid"]

BOX_COLUMNS = 6
#: what a message may hold (messages.samples)
MAX_CLASSES = 100_000
MAX_BOXES = 10_000


def classify(scores: Array, labels: Sequence[str] = (), activation: Activation = "none") -> Prediction:
    """Read the scores of one sample, shape ``[classes]``: probabilities, the best one's label and its score.

    A single score with other than one label is a two-class model's probability of the second class. Raises
    SampleError for NaN, infinity and a class without a label.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not 0 < values.size <= MAX_CLASSES:
        raise SampleError(f"the model gives {list(values.shape)} for one sample, which are no class scores")
    if not np.isfinite(values).all():
        raise SampleError("the model gives NaN or infinity for this sample")
    values = activate(values, activation)
    if values.size == 1 and len(labels) != 1:
        values = np.array([1 - values[0], values[0]])
    best = int(values.argmax())
    probabilities: list[float] = values.tolist()
    return Prediction(label=label_of(best, labels), score=probabilities[best], probabilities=probabilities)


def activate(values: Array, activation: Activation) -> Array:
    """Turn finite scores into probabilities, without overflow however large they are."""
    if activation == "softmax":
        with np.errstate(over="ignore"):  # the furthest scores may be infinitely far apart: their power is 0
            powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    if activation == "sigmoid":
        small = np.exp(-np.abs(values))
        return np.where(values >= 0, 1 / (1 + small), small / (1 + small))
    return values


def detect(rows: Array, labels: Sequence[str] = ()) -> Prediction:
    """Read the boxes of one sample, shape ``[boxes, 6]``: x1, y1, x2, y2, score, class.

    Rows with a score of 0 or less are the padding of a fixed output size and are left out. Raises SampleError for
    NaN, infinity, a score over 1 and a class without a label.
    """
    values = np.asarray(rows, np.float64)
    if values.ndim != 2 or values.shape[1] != BOX_COLUMNS:
        raise SampleError(f"the model gives {list(values.shape)} for one sample, which are no [boxes, 6]")
    if not np.isfinite(values).all():
        raise SampleError("the model gives boxes with NaN or infinity for this sample")
    values = values[values[:, 4] > 0]
    if len(values) > MAX_BOXES:
        raise SampleError(f"the model gives {len(values)} boxes, more than {MAX_BOXES}: suppress overlaps in the model")
    boxes = []
    for x1, y1, x2, y2, score, kind in values.tolist():
        if score > 1:
            raise SampleError(f"the model gives a box the score {score:.6g}, which is not in 0..1")
        boxes.append(Box(x1, y1, x2, y2, score, label_of(int(kind), labels) if labels else int(kind)))
    return Prediction(boxes=boxes)


def label_of(index: int, labels: Sequence[str]) -> str:
    """Name a class; without labels its index as text."""
    if not labels:
        return str(index)
    if not 0 <= index < len(labels):
        raise SampleError(f"the model answers class {index}, and spec.labels names 0 to {len(labels) - 1}")
    return labels[index]
