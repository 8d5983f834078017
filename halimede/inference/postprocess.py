"""Converts raw outputs of models, scores of classes and features, to Predictions. Boxes: ``detection``.

Features are vectors of length 1. The closer their scalar product (cosine similarity) is to 1, the more similar are two
of them. They are sent in half precision (float16, little endian), which changes that by less than 0.001.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halimede.api.processing import Postprocess
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, SampleError
from halimede.messages import Prediction

Activation: TypeAlias = Literal["none", "softmax", "sigmoid"]
#: limit of a message (messages.samples)
MAX_CLASSES = 100_000
#: numbers of one vector: limit of a Track (messages.multiedge)
MAX_LENGTH = 8192


def classify(scores: Array, labels: Sequence[str] = (), activation: Activation = "none") -> Prediction:
    """Convert the scores of one sample, shape ``[classes]``: probabilities, the best one's label and its score.

    A single score, unless there is one label, is a two-class model's probability of the second class. Raises
    SampleError for NaN, infinity and a class without a label.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not 0 < values.size <= MAX_CLASSES:
        raise SampleError(f"the model gives {list(values.shape)} for one sample, which are no class scores")
    probabilities: list[float] = values.tolist()
    # a finite sum has finite parts; if the sum overflowed, the parts may still be finite
    if not isfinite(sum(probabilities)) and not all(map(isfinite, probabilities)):
        raise SampleError("the model gives NaN or infinity for this sample")
    if activation != "none":
        probabilities = activate(values, activation).tolist()
    if len(probabilities) == 1 and len(labels) != 1:
        probabilities = [1 - probabilities[0], probabilities[0]]
    best = probabilities.index(max(probabilities))
    return Prediction(label=label_of(best, labels), score=probabilities[best], probabilities=probabilities)


def activate(values: Array, activation: Activation) -> Array:
    """Turn finite scores into probabilities, without overflow for any size."""
    if activation == "softmax":
        with np.errstate(over="ignore"):  # the difference of scores may overflow: then the power is 0
            powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    if activation == "sigmoid":
        small = np.exp(-np.abs(values))
        return np.where(values >= 0, 1 / (1 + small), small / (1 + small))
    return values


def best_classes(prediction: Prediction, labels: Sequence[str], count: int) -> list[dict[str, str | float]]:
    """Return the ``count`` best classes of a prediction, the best first, and the first among equals."""
    scores = np.asarray(prediction.probabilities or [])
    best = np.argsort(-scores, kind="stable")[:count].tolist()
    return [{"label": label_of(index, labels), "score": float(scores[index])} for index in best]


class RowReader:
    """Reads the one output ``name`` of a model, one row for each sample."""

    def __init__(self, name: str) -> None:
        self.names: tuple[str, ...] = (name,)

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:  # noqa: ARG002 (others need it)
        """Divide the output by samples, one row each."""
        (output,) = outputs
        return [(row,) for row in rows_of(output)]


class ClassReader(RowReader):
    """Reads the only output of a classifier, ``[classes]`` at a time."""

    def __init__(self, name: str, postprocess: Postprocess, labels: Sequence[str]) -> None:
        super().__init__(name)
        self._activation = postprocess.activation
        self._top = postprocess.top_k
        self._labels = tuple(labels)

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (likewise)
        """Read one sample's part of the output. Raises SampleError."""
        prediction = classify(part[0], self._labels, self._activation)
        if self._top:
            prediction.value = best_classes(prediction, self._labels, self._top)
        return prediction


def rows_of(output: Array) -> Array:
    """Return an output as one row for each sample: pooling leaves axes of length 1, as in [samples, classes, 1, 1]."""
    if output.ndim == 2 and output.shape[1]:
        return output
    if output.ndim == 0:
        raise SampleError("the model gives a single number, which is no row for each sample")
    return output.reshape([len(output), *([size for size in output.shape[1:] if size > 1] or [1])])


def label_of(index: int, labels: Sequence[str]) -> str:
    """Return the name of a class; without labels its index as text."""
    if not labels:
        return str(index)
    if not 0 <= index < len(labels):
        raise SampleError(f"the model answers class {index}, and spec.labels names 0 to {len(labels) - 1}")
    return labels[index]


class EmbeddingReader(RowReader):
    """Reads the only output of an embedding model, one vector at a time."""

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (others need it)
        """Read one sample's part of the output. Raises SampleError."""
        return Prediction(embeddings=pack(unit(part[0])))


class FeaturedClassReader:
    """Reads a classifier's scores, and the features from which it computed them."""

    def __init__(self, classes: ClassReader, features: str) -> None:
        self.names: tuple[str, ...] = (*classes.names, features)
        self._classes = classes

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Divide the outputs by samples, ``[classes]`` and ``[features]`` each. Raises SampleError."""
        scores, features = outputs
        rows = rows_of(features)
        if len(rows) != count:
            raise SampleError(f"the model gives {len(rows)} rows of features for {count} samples")
        return [(*part, row) for part, row in zip(self._classes.split([scores], count), rows, strict=False)]

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Read one sample's part of the outputs. Raises SampleError."""
        prediction = self._classes.read(part[:1], geometry)
        prediction.embeddings = pack(unit(part[1]))
        return prediction


def unit(values: Array) -> NDArray[np.float32]:
    """Normalize a vector to length 1; a vector of zeros stays. Raises SampleError for other values than a vector."""
    vector = np.asarray(values, np.float64)
    if vector.ndim != 1 or not 0 < vector.size <= MAX_LENGTH:
        raise SampleError(
            f"the model gives {list(vector.shape)} for one sample, which is no vector of up to {MAX_LENGTH} numbers"
        )
    if not np.isfinite(vector).all():
        raise SampleError("the model gives NaN or infinity for this sample")
    largest = np.abs(vector).max()
    if not largest:
        return np.zeros(vector.size, np.float32)
    vector = vector / largest  # so that no square overflows or underflows
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def pack(vectors: Array) -> bytes:
    """Encode vectors, one after the other, as they are sent."""
    return np.ascontiguousarray(vectors, "<f2").tobytes()


def unpack(data: bytes, count: int) -> NDArray[np.float32]:
    """Decode ``count`` vectors of equal length: ``[count, length]``. Raises SampleError for invalid data."""
    if not count and not data:
        return np.zeros((0, 0), np.float32)
    if not data or not count or len(data) % (2 * count):
        raise SampleError(f"{len(data)} bytes of features do not make {count} vectors of equal length")
    vectors = np.frombuffer(data, "<f2").reshape(count, -1).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise SampleError("the features hold NaN or infinity")
    return vectors
