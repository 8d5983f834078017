"""Bad candidates of ``bench.loop``: worse, broken, slow, and trained on wrong labels.

Each is handed to the loop in the place of a trained one, with the file that a training would leave. What the loop does
with it is left to the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.loop_data import CLASSES, Floats, Labels
from bench.loop_service import Service, Version
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import Weights

#: multiplications of a slow candidate's first layer: all but the first few units do nothing
SLOW = 12_000_000


@dataclass(frozen=True)
class BadCandidate:
    """A candidate with its kind; ``made`` None: there is only a file, which does not open."""

    kind: str
    how: str
    made: Version | Path


def candidates(service: Service, number: int) -> Iterator[BadCandidate]:
    """Yield one candidate of each kind, made from what the service has collected; ``number`` varies them."""
    samples, labels = service.training_set(service.loop.begins_s)
    chance = np.random.default_rng([service.seed, number])
    ways: dict[str, dict[str, Callable[[], Version | Path]]] = {
        "worse": {
            "weights with noise": lambda: _noisy(service, chance),
            "half of the classes": lambda: _trained(service, samples[labels < 5], labels[labels < 5], "half"),
            "one sample of each class": lambda: _few(service, samples, labels),
        },
        "broken": {
            "half of the file": lambda: _cut(service),
            "not a number": lambda: _changed(service, {"layer1.bias": np.full(CLASSES, np.nan, np.float32)}, "nan"),
            "seven classes": lambda: _classes(service, samples, labels),
            "a text": lambda: _text(service),
        },
        "slow": {"many units": lambda: _slow(service, samples, labels)},
        "wrong labels": {
            "next class": lambda: _trained(service, samples, (labels + 1) % CLASSES, "next"),
            "random": lambda: _trained(service, samples, chance.permutation(labels), "random"),
            "one class as another": lambda: _trained(service, samples, np.where(labels == 3, 8, labels), "targeted"),
            "two classes exchanged": lambda: _trained(service, samples, _exchanged(labels), "exchanged"),
        },
    }
    for kind, several in ways.items():
        how = list(several)[number % len(several)]
        yield BadCandidate(kind, how, several[how]())


def _exchanged(labels: Labels) -> Labels:
    found = np.arange(CLASSES)
    found[[4, 9]] = found[[9, 4]]
    return found[labels].astype(np.int64)


def _trained(service: Service, samples: Floats, labels: Labels, name: str) -> Version:
    data = TrainingData(samples, labels.astype(np.int64), CLASSES, service.seed)
    found, _ = service.models.small.train(data, dict(service.present.weights))
    return service.calibrated(name, found)


def _few(service: Service, samples: Floats, labels: Labels) -> Version:
    first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
    small = service.models.small
    data = TrainingData(samples[first], labels[first], CLASSES, service.seed)
    found, _ = small.train(data, small.initial_weights(samples.shape[1:], CLASSES))
    return service.calibrated("few", found)


def _noisy(service: Service, chance: np.random.Generator) -> Version:
    changed = {
        name: (tensor + chance.normal(0, 0.5 * tensor.std() + 0.05, tensor.shape)).astype(np.float32)
        for name, tensor in service.present.weights.items()
    }
    return service.calibrated("noisy", changed)


def _file(service: Service, name: str, trainer: Perceptron, weights: Weights) -> Path:
    path = service.models.folder / f"bad-{name}.onnx"
    trainer.export(weights, path)
    return path


def _changed(service: Service, changes: Weights, name: str) -> Path:
    return _file(service, name, service.models.small, {**service.present.weights, **changes})


def _cut(service: Service) -> Path:
    path = _file(service, "cut", service.models.small, service.present.weights)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def _text(service: Service) -> Path:
    path = service.models.folder / "bad-text.onnx"
    path.write_text("<html>404 Not Found</html>")
    return path


def _classes(service: Service, samples: Floats, labels: Labels) -> Path:
    small = service.models.small
    data = TrainingData(samples[labels < 7], labels[labels < 7], 7, service.seed)
    found, _ = small.train(data, small.initial_weights(samples.shape[1:], 7))
    return _file(service, "classes", small, found)


def _slow(service: Service, samples: Floats, labels: Labels) -> Version:
    """Return a candidate that is good, and takes its time."""
    data = TrainingData(samples, labels, CLASSES, service.seed)
    found, _ = service.models.small.train(data, dict(service.present.weights))
    inputs, units = found["layer0.weight"].shape
    slow_units = SLOW // inputs
    wide = {
        "layer0.weight": np.pad(found["layer0.weight"], ((0, 0), (0, slow_units - units))),
        "layer0.bias": np.pad(found["layer0.bias"], (0, slow_units - units)),
        "layer1.weight": np.pad(found["layer1.weight"], ((0, slow_units - units), (0, 0))),
        "layer1.bias": found["layer1.bias"],
    }
    return service.calibrated("slow", wide)
