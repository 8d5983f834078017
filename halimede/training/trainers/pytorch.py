"""A trainer for modules of PyTorch: their ``state_dict`` is the weights. It needs the extra ``pytorch``.

```python
class Digits(TorchTrainer):
    def module(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
```

The shape of a sample and the number of classes are one of the tensors, so that the module can be made again from its
weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halimede.training.trainer import TrainingData
from halimede.training.weights import Weights

#: the tensor with the number of classes, then the shape of a sample
FORM = "halimede.form"
#: the first weights are the same on all nodes
FIRST_SEED = 0
OPSET = 17


class TorchTrainer:
    """Trains ``module`` by stochastic gradient descent with momentum on the cross entropy. Derive from it.

    Args:
        rate: learning rate; ``momentum``; ``decay``: of the weights.
        epochs: passes over the samples in one round.
        batch: samples of one step.

    """

    def __init__(
        self, rate: str = "0.05", momentum: str = "0.9", decay: str = "0.0001", epochs: str = "1", batch: str = "32"
    ) -> None:
        self._rate, self._momentum, self._decay = float(rate), float(momentum), float(decay)
        self._epochs, self._batch = int(epochs), int(batch)

    def module(self, shape: tuple[int, ...], classes: int) -> Any:
        """Return a new module that takes a batch of samples of this shape, and returns a value for each class."""
        raise NotImplementedError

    def initial_weights(self, shape: tuple[int, ...], classes: int) -> Weights:
        """Return the weights of a new module, the same for each call."""
        torch.manual_seed(FIRST_SEED)
        form = np.array([classes, *shape], np.int64)
        return {**_arrays(self.module(shape, classes).state_dict()), FORM: form}

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        """Return the weights after all epochs, and the loss of the last one. ``mu`` adds FedProx's proximal term."""
        torch.manual_seed(data.seed)
        module = self._load(weights)
        module.train()
        samples, labels = _tensors(data)
        # torch.optim would load a compiler in each round
        moving = [(tensor, tensor.detach().clone(), torch.zeros_like(tensor)) for tensor in module.parameters()]
        mu, random, loss = data.parameters.get("mu", 0.0), np.random.default_rng(data.seed), 0.0
        for _ in range(self._epochs):
            loss = 0.0
            for batch in self._batches(len(data), random):
                module.zero_grad()
                batch_loss = torch.nn.functional.cross_entropy(module(samples[batch]), labels[batch])
                batch_loss.backward()
                loss += batch_loss.item() * len(batch) / len(data)
                with torch.no_grad():
                    for tensor, first, speed in moving:
                        pull = self._decay * tensor + mu * (tensor - first)
                        speed.mul_(self._momentum).add_(tensor.grad + pull)
                        tensor.sub_(self._rate * speed)
        return {**_arrays(module.state_dict()), FORM: weights[FORM]}, {"loss": loss}

    def evaluate(self, data: TrainingData, weights: Weights) -> Mapping[str, float]:
        """Return accuracy and cross entropy; nothing without samples."""
        if not len(data):
            return {}
        module = self._load(weights)
        module.eval()
        samples, labels = _tensors(data)
        with torch.no_grad():
            outputs = torch.cat([module(samples[batch]) for batch in self._batches(len(data))])
            loss = torch.nn.functional.cross_entropy(outputs, labels)
        right = outputs.argmax(dim=1) == labels
        return {"accuracy": float(right.float().mean()), "loss": float(loss)}

    def export(self, weights: Weights, path: Path) -> None:
        """Write an ONNX model: ``samples`` (any number x shape) to ``probabilities``."""
        module = torch.nn.Sequential(self._load(weights), torch.nn.Softmax(dim=1))
        module.eval()
        example = torch.zeros((1, *_form(weights)[0]), dtype=torch.float32)
        names: dict[str, Any] = {"input_names": ["samples"], "output_names": ["probabilities"]}
        axes = {"samples": {0: "samples_number"}, "probabilities": {0: "samples_number"}}
        with path.open("wb") as file:
            torch.onnx.export(module, (example,), file, opset_version=OPSET, dynamic_axes=axes, dynamo=False, **names)

    def _load(self, weights: Weights) -> Any:
        module = self.module(*_form(weights))
        tensors = {
            name: torch.from_numpy(weights[name].copy()).reshape(parameter.shape)
            for name, parameter in module.state_dict().items()
        }
        module.load_state_dict(tensors)
        return module

    def _batches(self, number: int, random: np.random.Generator | None = None) -> Iterator[NDArray[np.int64]]:
        order = random.permutation(number) if random else np.arange(number)
        for first in range(0, number, self._batch):
            yield order[first : first + self._batch]


def _form(weights: Weights) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes."""
    classes, *shape = (int(value) for value in weights[FORM])
    return tuple(shape), classes


def _arrays(state: Mapping[str, Any]) -> Weights:
    """Return the arrays of a state; a single number is an array of one."""
    return {name: np.atleast_1d(tensor.detach().cpu().numpy().copy()) for name, tensor in state.items()}


def _tensors(data: TrainingData) -> tuple[Any, Any]:
    """Return samples and labels as tensors."""
    samples = np.ascontiguousarray(data.samples, dtype=np.float32)
    return torch.from_numpy(samples.copy()), torch.from_numpy(np.ascontiguousarray(data.labels).copy())
