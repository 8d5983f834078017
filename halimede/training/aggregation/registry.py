"""Finds an ``Aggregation`` by its name, and makes it with its parameters, which are text.

A new algorithm is a new module in this package with a dataclass under ``@register("Name")``. The fields that its
constructor takes are its parameters; the algorithms of this package inherit them from ``halimede.api.aggregation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from halimede.api.aggregation import FIELD, read_parameters
from halimede.api.mining import name_fix
from halimede.errors import InvalidFieldError
from halimede.system.modules import import_siblings
from halimede.training.update_checks import Update
from halimede.training.weights import Weights, add

A = TypeVar("A", bound="type[Aggregation]")
_algorithms: dict[str, type[Aggregation]] = {}


class Aggregation:
    """Base of the algorithms. ``aggregate`` may change what ``state`` returns, and nothing else."""

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Return the weights after a round.

        ``updates``: at least one, of the same tensors as the weights, finite, in the order of the trainers' names.
        """
        raise NotImplementedError

    def trainer_parameters(self) -> dict[str, float]:
        """Return parameters by name that each trainer gets with a round."""
        return {}

    def state(self) -> Weights:
        """Return what the algorithm keeps from round to round, besides the weights, as named tensors."""
        return {}

    def restore(self, state: Weights) -> None:
        """Continue with what ``state`` returned in an earlier process."""


def register(name: str) -> Callable[[A], A]:
    """Return a decorator that registers a dataclass as the algorithm ``name``.

    It raises ValueError if the name is taken.
    """

    def store(algorithm: A) -> A:
        if name in _algorithms:
            raise ValueError(f"aggregation {name} is registered twice")
        _algorithms[name] = algorithm
        return algorithm

    return store


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, in alphabetical order."""
    import_siblings(__name__)
    return tuple(sorted(_algorithms))


def create(name: str, parameters: Mapping[str, str]) -> Aggregation:
    """Return the algorithm of this name with these parameters, as a spec has them.

    Raises InvalidFieldError for an unknown name or an invalid parameter.
    """
    import_siblings(__name__)
    algorithm = _algorithms.get(name)
    if algorithm is None:
        raise InvalidFieldError(f"{FIELD}.name", name, name_fix(name, _algorithms))
    return algorithm(**read_parameters(algorithm, parameters))


def mean_delta(updates: Sequence[Update]) -> Weights:
    """Return the mean of the updates, each weighted by its samples, in float64 and in the order of the updates."""
    total = sum(update.samples for update in updates)
    return {
        name: np.sum([update.delta[name].astype(np.float64) * (update.samples / total) for update in updates], axis=0)
        for name in updates[0].delta
    }


def stack(updates: Sequence[Update], name: str) -> NDArray[np.float64]:
    """Return one tensor of all updates as ``(updates, *shape) float64``."""
    return np.stack([update.delta[name].astype(np.float64) for update in updates])


def add_delta(weights: Weights, delta: Weights) -> Weights:
    """Return weights with a difference of float64 added, in their own types: integers are rounded, booleans stay."""
    fitting = {
        name: np.rint(delta[name]).astype(tensor.dtype) if tensor.dtype.kind in "iu" else delta[name]
        for name, tensor in weights.items()
        if tensor.dtype.kind != "b"
    }
    fixed = {name: np.zeros_like(tensor) for name, tensor in weights.items() if tensor.dtype.kind == "b"}
    return add(weights, fitting | fixed)
