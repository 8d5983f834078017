"""What a user writes to train a model: a class with ``train`` and ``evaluate``, and how it is found.

```python
class Digits:
    def __init__(self, rate="0.1"): ...
    def initial_weights(self, shape, classes): ...            # {"w": array, ...}
    def train(self, data, weights): ...                       # new weights, {"loss": 0.3}
    def evaluate(self, data, weights): ...                    # {"accuracy": 0.98}
    def export(self, weights, path): ...                      # writes an ONNX model
```

Parameters are text, as in a resource. A trainer that draws random numbers must use ``data.seed``: a round that is
repeated after a failure then has the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from halimede.errors import InvalidFieldError
from halimede.inference.estimator import load_estimator
from halimede.training.weights import Weights

FIELD = "spec.trainer.entry"
#: entry points of distributions; those of this package are named without a module
GROUP = "halimede.trainers"
#: methods that a job needs; ``initial_weights`` only one without initial weights
METHODS = ("train", "evaluate", "export")
BUILT_IN = {"Perceptron": "halimede.training.trainers.perceptron:Perceptron"}


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Samples of one node.

    ``samples``: a sample in each row, as the model's pre-processing makes them. ``labels``: index of the class of each.
    ``parameters``: of the round, such as ``mu`` of FedProx.
    """

    samples: NDArray[Any]
    labels: NDArray[np.int64]
    classes: int
    seed: int = 0
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)


class Trainer(Protocol):
    """Trains one kind of model. All methods are called in a process of their own."""

    def initial_weights(self, shape: tuple[int, ...], classes: int) -> Weights:
        """Return the first weights, for samples of a shape: the same ones for each call."""

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        """Return weights after some epochs, of the same names, types and shapes, and metrics."""

    def evaluate(self, data: TrainingData, weights: Weights) -> Mapping[str, float]:
        """Return metrics of weights, such as ``accuracy``."""

    def export(self, weights: Weights, path: Path) -> None:
        """Write the model as an ONNX file that takes ``samples`` and returns probabilities."""


@cache
def import_trainer(entry: str) -> Any:
    """Import the class that a job names: ``Perceptron``, an installed one, or ``module:Class``.

    Raises InvalidFieldError.
    """
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    found = load_estimator((BUILT_IN | installed).get(entry, entry), FIELD, "train")
    if lacks := [name for name in METHODS if not callable(getattr(found, name, None))]:
        raise InvalidFieldError(FIELD, entry, f"it has no method {' and no method '.join(lacks)}: write it")
    return found


def load_trainer(entry: str, parameters: Mapping[str, str]) -> Trainer:
    """Make the trainer that a job names. Raises InvalidFieldError."""
    found = import_trainer(entry)
    try:
        return cast("Trainer", found(**parameters))
    except (TypeError, ValueError) as error:
        raise InvalidFieldError("spec.trainer.parameters", dict(parameters), f"{entry}: {error}") from error
