"""Features of an embedding model, as vectors of length 1, and their encoding.

Two vectors of length 1 are alike as far as their scalar product (cosine similarity) is near to 1. They travel in
half precision (float16, little endian), which moves that by less than 0.001.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, SampleError
from halimede.inference.postprocess import ClassReader, RowReader, rows_of
from halimede.messages import Prediction

#: numbers of one vector: what a Track holds (messages.multiedge)
MAX_LENGTH = 8192


class EmbeddingReader(RowReader):
    """Reads the one output of an embedding model, one vector at a time."""

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (others need it)
        """Read one sample's share of the output. Raises SampleError."""
        return Prediction(embeddings=pack(unit(part[0])))


class FeaturedClassReader:
    """Reads a classifier's scores, and the features from which it computed them."""

    def __init__(self, classes: ClassReader, features: str) -> None:
        self.names: tuple[str, ...] = (*classes.names, features)
        self._classes = classes

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Part the outputs by samples, ``[classes]`` and ``[features]`` each. Raises SampleError."""
        scores, features = outputs
        rows = rows_of(features)
        if len(rows) != count:
            raise SampleError(f"the model gives {len(rows)} rows of features for {count} samples")
        return [(*part, row) for part, row in zip(self._classes.split([scores], count), rows, strict=False)]

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Read one sample's share of the outputs. Raises SampleError."""
        prediction = self._classes.read(part[:1], geometry)
        prediction.embeddings = pack(unit(part[1]))
        return prediction


def unit(values: Array) -> NDArray[np.float32]:
    """Give a vector length 1; one of zeros, which says nothing, stays. Raises SampleError for what is no vector."""
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
    vector = vector / largest  # so that no square is beyond all measure, or nothing
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def pack(vectors: Array) -> bytes:
    """Write vectors, one after the other, as they travel."""
    return np.ascontiguousarray(vectors, "<f2").tobytes()


def unpack(data: bytes, count: int) -> NDArray[np.float32]:
    """Read ``count`` vectors of equal length: ``[count, length]``. Raises SampleError for what is none of ours."""
    if not count and not data:
        return np.zeros((0, 0), np.float32)
    if not data or not count or len(data) % (2 * count):
        raise SampleError(f"{len(data)} bytes of features do not make {count} vectors of equal length")
    vectors = np.frombuffer(data, "<f2").reshape(count, -1).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise SampleError("the features hold NaN or infinity")
    return vectors
