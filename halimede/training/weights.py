"""The weights of a model, as named NumPy arrays of plain numbers: their specs, checks, differences and sums.

The spec of a tensor is its name, type and shape.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from halimede.errors import HalimedeError
from halimede.messages import TensorSpec
from halimede.messages.training import MOST_TENSORS, Dtype

#: tensors by name, in the order in which the trainer makes them
Weights = dict[str, NDArray[Any]]
#: names of the element types that tensors may have
DTYPES = frozenset(get_args(Dtype))
#: most bytes of one tensor, and of all tensors of a model
MAX_TENSOR, MAX_WEIGHTS = 256 * 1024**2, 1024**3


class WeightsError(HalimedeError):
    """Weights, or a file of tensors, cannot be used. ``reason``: Shape, NotFinite, TooLarge or Unreadable."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def specs_of(weights: Mapping[str, NDArray[Any]]) -> list[TensorSpec]:
    """Return the specs of weights, in their order. Raises WeightsError for other types, and for too large tensors."""
    specs = []
    for name, tensor in weights.items():
        if not isinstance(tensor, np.ndarray):
            raise WeightsError("Shape", f"tensor {name!r} is a {type(tensor).__name__}: give a NumPy array")
        dtype = tensor.dtype.name
        if dtype not in DTYPES:
            raise WeightsError("Shape", f"tensor {name!r} holds {dtype}: use one of {', '.join(sorted(DTYPES))}")
        specs.append(TensorSpec(name=name, dtype=cast("Dtype", dtype), shape=list(tensor.shape)))
    check_specs(specs)
    return specs


def check_specs(specs: Sequence[TensorSpec]) -> None:
    """Raise WeightsError for no, too many or too large tensors, or for equal names. Nothing is allocated."""
    if not specs or len(specs) > MOST_TENSORS:
        raise WeightsError("TooLarge", f"{len(specs)} tensors: a model has 1 to {MOST_TENSORS}")
    if len({spec.name for spec in specs}) != len(specs):
        raise WeightsError("Shape", "two tensors have the same name")
    for spec in specs:
        if (size := bytes_of(spec)) > MAX_TENSOR:
            raise WeightsError("TooLarge", f"tensor {spec.name!r} has {size} bytes, more than {MAX_TENSOR}")
    if (size := sum(map(bytes_of, specs))) > MAX_WEIGHTS:
        raise WeightsError("TooLarge", f"the weights have {size} bytes, more than {MAX_WEIGHTS}")


def bytes_of(spec: TensorSpec) -> int:
    """Return the bytes of a tensor."""
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def check_finite(weights: Mapping[str, NDArray[Any]]) -> None:
    """Raise WeightsError for a NaN or an infinity."""
    for name, tensor in weights.items():
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            raise WeightsError("NotFinite", f"tensor {name!r} holds a value that is not finite")


def difference(new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]]) -> Weights:
    """Return new minus old for each tensor, in its type; a boolean is True if it has changed.

    Raises WeightsError if the specs differ.
    """
    if specs_of(new) != specs_of(old):
        raise WeightsError("Shape", "the trained weights have other names, types or shapes than those given to train")
    # NumPy makes a number of arrays without dimensions
    return {
        name: np.asarray(new[name] - old[name] if old[name].dtype.kind != "b" else new[name] ^ old[name])
        for name in old
    }


def add(weights: Mapping[str, NDArray[Any]], delta: Mapping[str, NDArray[Any]]) -> Weights:
    """Return weights plus what ``difference`` returned for weights of the same specs, in the types of the weights."""
    return {
        name: np.asarray(tensor ^ delta[name] if tensor.dtype.kind == "b" else tensor + delta[name], tensor.dtype)
        for name, tensor in weights.items()
    }


def norm(delta: Mapping[str, NDArray[Any]]) -> float:
    """Return the Euclidean norm over all tensors of floats; integers and booleans are counters and masks."""
    floats = (tensor for tensor in delta.values() if tensor.dtype.kind == "f")
    return math.sqrt(math.fsum(float(np.square(tensor, dtype=np.float64).sum()) for tensor in floats))


def digest_of(content: bytes | memoryview) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
