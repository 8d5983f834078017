"""Finds an aggregation by its name, and parses its parameters, which are all text.

A new algorithm is one new file in this package: a dataclass under ``@register("Name")``. Its fields with ``init`` are
its parameters; those of this package inherit them from ``halimede.api.aggregation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from halimede.api.aggregation import FIELD, read_parameters
from halimede.api.mining import instead
from halimede.errors import InvalidFieldError
from halimede.system.modules import import_siblings
from halimede.training.update_checks import Update
from halimede.training.weights import Weights, add

A = TypeVar("A", bound="type[Aggregation]")
_algorithms: dict[str, type[Aggregation]] = {}


class Aggregation:
    """An algorithm. ``aggregate`` may change what ``state`` returns, and nothing else."""

    def aggregate(self, weights: Weights, updates: Sequence[Update]) -> Weights:
        """Return the weights after a round. ``updates`` are not empty, checked, and in the order of their trainers."""
        raise NotImplementedError

    def trainer_parameters(self) -> dict[str, float]:
        """Return what the trainers of a round get."""
        return {}

    def state(self) -> Weights:
        """Return what has to be kept from round to round, besides the weights."""
        return {}

    def restore(self, state: Weights) -> None:
        """Continue with a state."""


def register(name: str) -> Callable[[A], A]:
    """Register a dataclass as the algorithm ``name``. Raises ValueError if the name is taken."""

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
    """Make the algorithm that a spec names. Raises InvalidFieldError for an unknown name or an invalid parameter."""
    import_siblings(__name__)
    algorithm = _algorithms.get(name)
    if algorithm is None:
        raise InvalidFieldError(f"{FIELD}.name", name, instead(name, _algorithms))
    return algorithm(**read_parameters(algorithm, parameters))


def mean_delta(updates: Sequence[Update]) -> Weights:
    """Return the mean of the updates, each weighted by its samples, in float64 and in the order of the updates."""
    total = sum(update.samples for update in updates)
    return {
        name: np.sum([update.delta[name].astype(np.float64) * (update.samples / total) for update in updates], axis=0)
        for name in updates[0].delta
    }


def add_delta(weights: Weights, delta: Weights) -> Weights:
    """Return weights with a difference of float64 added: whole numbers are rounded, booleans stay."""
    fitting = {
        name: np.rint(delta[name]).astype(tensor.dtype) if tensor.dtype.kind in "iu" else delta[name]
        for name, tensor in weights.items()
        if tensor.dtype.kind != "b"
    }
    fixed = {name: np.zeros_like(tensor) for name, tensor in weights.items() if tensor.dtype.kind == "b"}
    return add(weights, fitting | fixed)
