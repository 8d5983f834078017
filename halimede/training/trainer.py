"""What a user writes to train a model: a class with ``train`` and ``evaluate``, and how it is found.

```python
class Digits:
    def __init__(self, rate="0.1"): ...
    def initial_weights(self, shape, classes): ...            # {"w": array, ...}
    def train(self, data, weights): ...                       # new weights, {"loss": 0.3}
    def evaluate(self, data, weights): ...                    # {"accuracy": 0.98}
    def export(self, weights, path): ...                      # writes an ONNX model
```

Parameters are text, as in a resource. A trainer that draws random numbers must use ``data.seed``: then a round that is
repeated after a failure has the same result. ``Trainer`` describes the methods; ``load_trainer`` finds the class.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from halimede.errors import InvalidFieldError, describe_exception
from halimede.inference.estimator import load_estimator
from halimede.training.weights import Weights

#: field of the resource that names the trainer
FIELD = "spec.trainer.entry"
#: files of an archive that an error names
SHOWN = 5
#: group of the entry points of installed trainers
GROUP = "halimede.trainers"
#: methods that are checked when a trainer is loaded; the aggregator also calls ``initial_weights``
METHODS = ("train", "evaluate", "export")
#: trainers of this package by their names
BUILT_IN = {"Perceptron": "halimede.training.trainers.perceptron:Perceptron"}


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Samples of one node.

    Attributes:
        samples: ``(n, *shape)``, as the model's pre-processing makes them.
        labels: index of each sample's class, ``(n,) int64``.
        classes: the number of classes.
        seed: for random numbers.
        parameters: those of the round, such as ``mu`` of FedProx.

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
    """Trains one kind of model. Each step is in a new process, so a trainer remembers nothing between steps.

    A step calls one method at most; only a step that trains calls ``evaluate``, then ``train``. Methods may raise any
    exception; the worker reports it.
    """

    def initial_weights(self, shape: tuple[int, ...], classes: int) -> Weights:
        """Return the first weights, for samples of this shape: the same for each call."""

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        """Return the weights after some epochs, with the same names, types and shapes, and metrics of the training."""

    def evaluate(self, data: TrainingData, weights: Weights) -> Mapping[str, float]:
        """Return metrics of the weights on the samples, such as ``accuracy``."""

    def export(self, weights: Weights, path: Path) -> None:
        """Write the model as an ONNX file that takes samples and returns a probability for each class."""


def batches(number: int, size: int, random: np.random.Generator | None = None) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of ``number`` samples in batches of ``size``, in a random order; None: in their own order."""
    order = random.permutation(number) if random else np.arange(number)
    for first in range(0, number, size):
        yield order[first : first + size]


@cache
def import_trainer(entry: str, archive: str = "") -> Any:
    """Return the class that a job names: ``Perceptron``, an installed one, ``module:Class``, or ``file.py:Class``.

    The last two may be in ``archive``, the path of a Python file or a zip file; empty: none. Raises InvalidFieldError.
    """
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    named = _from_archive(archive, entry) if archive else (BUILT_IN | installed).get(entry, entry)
    trainer = load_estimator(named, FIELD, "train")
    if lacks := [name for name in METHODS if not callable(getattr(trainer, name, None))]:
        raise InvalidFieldError(FIELD, entry, f"it has no method {' and no method '.join(lacks)}: write it")
    return trainer


def load_trainer(entry: str, parameters: Mapping[str, str], archive: str = "") -> Trainer:
    """Return a trainer of the class that ``import_trainer`` finds. Raises InvalidFieldError."""
    trainer = import_trainer(entry, archive)
    try:
        return cast("Trainer", trainer(**parameters))
    except (TypeError, ValueError) as error:
        raise InvalidFieldError("spec.trainer.parameters", dict(parameters), f"{entry}: {error}") from error


def _from_archive(archive: str, entry: str) -> str:
    """Make the modules of an archive importable; return the entry as ``module:Class``. Raises InvalidFieldError.

    Modules of a zip file are imported from it: nothing is unpacked, so no path in it can lead elsewhere.
    """
    sys.dont_write_bytecode = True
    file, colon, name = entry.partition(":")
    folder, _, last = file.rpartition("/")
    module = last.removesuffix(".py")
    if not zipfile.is_zipfile(archive):
        _import_file(module, archive, entry)
    elif file.endswith(".py"):
        with zipfile.ZipFile(archive) as packed:
            names = packed.namelist()
        if file not in names:
            scripts = ", ".join(sorted(name for name in names if name.endswith(".py"))[:SHOWN]) or "no Python file"
            raise InvalidFieldError(FIELD, entry, f"the archive has no {file}: it has {scripts}")
    sys.path.insert(0, f"{archive}/{folder}".removesuffix("/"))
    return f"{module}{colon}{name}"


def _import_file(module: str, path: str, entry: str) -> None:
    """Import a Python file, whose name need not end with ``.py``, as a module. Raises InvalidFieldError."""
    spec = importlib.util.spec_from_file_location(module, path, loader=SourceFileLoader(module, path))
    assert spec is not None  # noqa: S101  # a loader was given
    assert spec.loader is not None  # noqa: S101
    sys.modules[module] = loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
    except (Exception, SystemExit) as error:
        failure = f"reading it as a Python file failed with {describe_exception(error)}: mend it"
        raise InvalidFieldError(FIELD, entry, f"the archive is no zip file, and {failure}") from error
