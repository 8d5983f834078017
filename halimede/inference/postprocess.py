"""Converts raw outputs of models, scores of classes and features, to Predictions; ``detection`` does so for boxes.

Features (embeddings) are vectors of length 1: the closer the scalar product of two of them is to 1, the more similar
are their samples. They are sent in half precision (float16, little endian), which changes that by less than 0.001.
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

#: what turns a model's scores into probabilities; none: they are probabilities already
Activation: TypeAlias = Literal["none", "softmax", "sigmoid"]
#: most classes of a message (messages.samples)
MAX_CLASSES = 100_000
#: most numbers of one vector: limit of a Track (messages.multiedge)
MAX_LENGTH = 8192
#: tolerance by which rounding may raise a probability above 1
SCORE_SLACK = 1e-3


def classify(scores: Array, labels: Sequence[str] = (), activation: Activation = "none") -> Prediction:
    """Return the probabilities of one sample's scores, ``[classes]``, with the best class and its probability.

    A single score, unless there is one label, is a two-class model's probability of the second class. Raises
    SampleError for other shapes, for none or more than MAX_CLASSES scores, NaN, infinity, and a best class without a
    label.
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
    """Return probabilities of finite scores of any size, in the same shape; softmax runs over the last axis."""
    if activation == "softmax":
        with np.errstate(over="ignore"):  # the difference of scores may overflow: then the power is 0
            powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    if activation == "sigmoid":
        small = np.exp(-np.abs(values))
        return np.where(values >= 0, 1 / (1 + small), small / (1 + small))
    return values


def best_classes(prediction: Prediction, labels: Sequence[str], count: int) -> list[dict[str, str | float]]:
    """Return ``label`` and ``score`` of the ``count`` best classes of a prediction, the best first.

    Of equal scores the lower index comes first. Raises SampleError for a class without a label.
    """
    scores = np.asarray(prediction.probabilities or [])
    best = np.argsort(-scores, kind="stable")[:count].tolist()
    return [{"label": label_of(index, labels), "score": float(scores[index])} for index in best]


class RowReader:
    """The half of a ``Reader`` (file_model) that divides the only output ``name`` by samples; subclasses ``read``."""

    def __init__(self, name: str) -> None:
        self.names: tuple[str, ...] = (name,)

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:  # noqa: ARG002 (others need it)
        """Return one row of the output for each sample, in order. Raises SampleError for a single number."""
        (output,) = outputs
        return [(row,) for row in rows_of(output)]


class ClassReader(RowReader):
    """A ``Reader`` (file_model) of a classifier's only output, one sample's ``[classes]`` at a time.

    ``name``: of the output. ``postprocess``: that of the spec. ``labels``: names of the classes; empty: labels are
    indices as text.
    """

    def __init__(self, name: str, postprocess: Postprocess, labels: Sequence[str]) -> None:
        super().__init__(name)
        self._activation = postprocess.activation
        self._top = postprocess.top_k
        self._labels = tuple(labels)

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (likewise)
        """Return the best class and all probabilities; ``value``: the best classes, if ``topK``. Raises SampleError."""
        prediction = classify(part[0], self._labels, self._activation)
        if self._top:
            prediction.value = best_classes(prediction, self._labels, self._top)
        return prediction


def rows_of(output: Array) -> Array:
    """Return an output without the axes of length 1 after the first one: pooling leaves them.

    The result is ``[samples, numbers]`` unless several longer axes are left. Raises SampleError for a single number,
    and for an output without numbers.
    """
    if output.ndim == 2 and output.shape[1]:
        return output
    if output.ndim == 0:
        raise SampleError("the model gives a single number, which is no row for each sample")
    if output.size == 0:
        raise SampleError(f"the model gives {list(output.shape)}, which has no numbers")
    return output.reshape([len(output), *([size for size in output.shape[1:] if size > 1] or [1])])


def label_of(index: int, labels: Sequence[str]) -> str:
    """Return the name of a class; without labels its index as text. Raises SampleError if ``labels`` is too short."""
    if not labels:
        return str(index)
    if not 0 <= index < len(labels):
        raise SampleError(f"the model answers class {index}, and spec.labels names 0 to {len(labels) - 1}")
    return labels[index]


class EmbeddingReader(RowReader):
    """A ``Reader`` (file_model) of an embedding model's only output, one vector at a time."""

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (others need it)
        """Return the vector with length 1 as ``embeddings``. Raises SampleError."""
        return Prediction(embeddings=pack(unit(part[0])))


class FeaturedClassReader:
    """A ``Reader`` (file_model) of a classifier's scores and of the features from which it computed them.

    ``classes``: reads the scores. ``features``: the name of the output of features.
    """

    def __init__(self, classes: ClassReader, features: str) -> None:
        self.names: tuple[str, ...] = (*classes.names, features)
        self._classes = classes

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Return each sample's rows ``[classes]`` and ``[features]``, in order. Raises SampleError."""
        scores, features = outputs
        score_rows, rows = self._classes.split([scores], count), rows_of(features)
        for name, number in (("scores", len(score_rows)), ("features", len(rows))):
            if number != count:
                raise SampleError(f"the model gives {number} rows of {name} for {count} samples")
        return [(*part, row) for part, row in zip(score_rows, rows, strict=True)]

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Return the prediction of ``ClassReader``, with the features as ``embeddings``. Raises SampleError."""
        prediction = self._classes.read(part[:1], geometry)
        prediction.embeddings = pack(unit(part[1]))
        return prediction


def unit(values: Array) -> NDArray[np.float32]:
    """Return a vector scaled to length 1; zeros stay zeros. Raises SampleError for other shapes, NaN and infinity."""
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
    """Encode vectors, ``[count, length]`` or one ``[length]``, as they are sent: float16, little endian, in order."""
    return np.ascontiguousarray(vectors, "<f2").tobytes()


def unpack(data: bytes, count: int) -> NDArray[np.float32]:
    """Decode the bytes of ``pack`` as ``[count, length]`` vectors. Raises SampleError for invalid data."""
    if not count and not data:
        return np.zeros((0, 0), np.float32)
    if not data or not count or len(data) % (2 * count):
        raise SampleError(f"{len(data)} bytes of features do not make {count} vectors of equal length")
    vectors = np.frombuffer(data, "<f2").reshape(count, -1).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise SampleError("the features hold NaN or infinity")
    return vectors
