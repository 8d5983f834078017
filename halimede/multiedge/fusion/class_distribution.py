"""A camera's prediction as a distribution over named classes, and the rules that combine several of them.

Models may have different classes, and the worker with the joint need not have any of the models: so a finding contains
the names of its classes (the stage ``Named`` adds them).

| rule | |
|---|---|
| ``vote`` | each camera has a vote of its weight for its best class; equal votes: the more certain voters win |
| ``product`` | the weighted product of probabilities, normalized to 1 (a logarithmic opinion pool) |
| ``max`` | the camera with the highest probability times weight decides |

The product is optimal if cameras err independently, classes are about equally frequent, and the probabilities are
calibrated (Kittler, Hatef, Duin and Matas, "On combining classifiers", PAMI 1998). Hence each camera has its own
temperature (Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import softmax
from halimede.errors import InvalidFieldError
from halimede.inference import SampleError
from halimede.messages import Prediction
from halimede.multiedge.stage import Item, Stage, Tools

#: a number for each class or camera, or rows of these
Vector = NDArray[np.float64]
#: most classes of a model, because their names travel with every finding
MAX_CLASSES = 4096
#: most lists of names that are stored once for all findings with equal names
MAX_MODELS = 64
#: keys in the ``value`` of a finding's prediction: the names of the classes, and the ``value`` that the model gave
LABELS, VALUE = "labels", "value"
#: takes probabilities ``(cameras, classes)`` and weights ``(cameras,)``; returns the index of the best class and the
#: fused probability of each class ``(classes,)``
Rule = Callable[[Vector, Vector], tuple[int, Vector]]


class Named(Stage):
    """A ``Stage`` that adds the names of the model's classes to the prediction, as ``value.labels``.

    Put it after the stage that calls the model. The prediction's own value moves to ``value.value``. Nothing is added
    if the model declares no names, or a prediction has no probabilities. Raises InvalidFieldError for a model with more
    than MAX_CLASSES classes.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        count = len(self._labels())
        if count > MAX_CLASSES:
            raise InvalidFieldError("Model spec.labels", f"{count} labels", f"fusion takes at most {MAX_CLASSES}")

    def run(self, items: Sequence[Item]) -> None:
        """Add the names of the present model, which may be replaced while the worker runs.

        Raises SampleError if that model has more than MAX_CLASSES classes.
        """
        labels = self._labels()
        if len(labels) > MAX_CLASSES:
            raise SampleError(f"the new model has {len(labels)} labels, and fusion takes at most {MAX_CLASSES}")
        for item in items:
            prediction = item.prediction
            if labels and prediction.probabilities is not None:
                prediction.value = {LABELS: labels} | ({} if prediction.value is None else {VALUE: prediction.value})

    def _labels(self) -> list[str]:
        """Return the names of the classes of the worker's model; none without a model."""
        model = self.tools.models.get("model")
        return list(model.labels) if model else []


@dataclass(frozen=True, slots=True)
class ClassDistribution:
    """A prediction as probabilities of named classes.

    Attributes:
        names: the classes.
        probabilities: of each named class, ``(classes,) float64``.
        remainder: the probability of all other classes together; with ``probabilities`` it adds up to 1.
        complete: ``names`` has all classes of the model, in its order.

    """

    names: tuple[str, ...]
    probabilities: Vector
    remainder: float = 0.0
    complete: bool = True


def read(prediction: Prediction) -> ClassDistribution | None:
    """Return the distribution of a prediction; None if it names no class (only boxes, or a user's own value)."""
    if prediction.probabilities:
        values = np.asarray(prediction.probabilities, np.float64).clip(min=0.0)
        largest = values.max()
        names = _names(prediction, len(values), int(values.argmax()))
        if names and largest > 0:
            scaled = values / largest
            return ClassDistribution(_intern(names), scaled / scaled.sum())
    if prediction.label is None:
        return None
    score = 1.0 if prediction.score is None else min(max(prediction.score, 0.0), 1.0)
    return ClassDistribution((prediction.label,), np.array([score]), 1.0 - score, complete=False)


@functools.lru_cache(maxsize=MAX_MODELS)
def _intern(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one tuple for all findings of a model, because many findings are stored at a time."""
    return names


def _names(prediction: Prediction, count: int, best: int) -> tuple[str, ...]:
    """Return the names of a prediction's ``count`` classes; empty if they are unknown: then only its label is used.

    Without names in its value, the classes are named by their indexes, if its label is the index ``best`` of the class
    with the highest probability, or missing.
    """
    value: Any = prediction.value
    names = value.get(LABELS) if isinstance(value, Mapping) else None
    if isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names):
        return tuple(names) if len(set(names)) == count else ()
    return tuple(map(str, range(count))) if prediction.label in {None, str(best)} else ()


def align_classes(opinions: Sequence[ClassDistribution]) -> tuple[tuple[str, ...], Vector]:
    """Return the names of all classes, and their probabilities in each opinion: ``(opinions, classes) float64``.

    An opinion's ``remainder`` is divided evenly among the classes that only other opinions name. If there are none, its
    row is normalized to 1 without the remainder.
    """
    names = opinions[0].names
    if all(opinion.names == names and not opinion.remainder for opinion in opinions):
        return names, np.stack([opinion.probabilities for opinion in opinions])
    names = tuple(dict.fromkeys(name for opinion in opinions for name in opinion.names))
    index = {name: i for i, name in enumerate(names)}
    rows = np.zeros((len(opinions), len(names)))
    for row, opinion in zip(rows, opinions, strict=True):
        own = [index[name] for name in opinion.names]
        missing = np.ones(len(names), bool)
        missing[own] = False
        row[own] = opinion.probabilities
        if opinion.remainder and missing.any():
            row[missing] = opinion.remainder / missing.sum()
    sums = rows.sum(axis=1, keepdims=True)
    return names, rows / np.where(sums > 0, sums, 1.0)


def vote(rows: Vector, weights: Vector) -> tuple[int, Vector]:
    """Return the class with the most votes, and each class's share of the votes; a ``Rule``."""
    count = rows.shape[1]
    choices = rows.argmax(axis=1)
    votes = np.bincount(choices, weights, count)
    sureness = np.bincount(choices, weights * rows.max(axis=1), count)
    best = int(np.lexsort((sureness, votes))[-1])
    return best, votes / votes.sum()


def product(rows: Vector, weights: Vector) -> tuple[int, Vector]:
    """Return the best class of the product of the distributions, each to the power of its weight; a ``Rule``.

    No probability may be 0: ``calibrate`` sees to that.
    """
    fused = softmax(weights @ np.log(rows))
    return int(fused.argmax()), fused


def surest(rows: Vector, weights: Vector) -> tuple[int, Vector]:
    """Return the best class and the distribution of the camera with the highest weighted probability; a ``Rule``."""
    surest_row = int((weights * rows.max(axis=1)).argmax())
    return int(rows[surest_row].argmax()), rows[surest_row]


#: rules by the value of the parameter ``rule``
RULES: Mapping[str, Rule] = {"vote": vote, "product": product, "max": surest}
