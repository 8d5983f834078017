"""``TorchTrainer``, a base class of trainers for modules of PyTorch: the weights are their ``state_dict``.

It needs the extra ``pytorch``.

```python
class Digits(TorchTrainer):
    def module(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
```

A further tensor has the number of classes and the shape of a sample, so that the module can be made again from its
weights alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halimede.training.trainer import TrainingData, batches
from halimede.training.weights import Weights

#: name of the tensor with the number of classes, then the shape of a sample, int64
FORM = "halimede.form"
#: seed of the first weights, which are the same on all nodes
FIRST_SEED = 0
#: version of ONNX's operators
OPSET = 17


class TorchTrainer:
    """A ``Trainer`` (``halimede.training.trainer``) of the module that a subclass makes in ``module``.

    It trains by stochastic gradient descent with momentum on the cross entropy.

    Args:
        rate: learning rate.
        momentum: from 0, below 1.
        decay: weight decay.
        epochs: passes over the samples in one round.
        batch: samples of one step.

    Raises ValueError for a parameter that is no number.

    """

    def __init__(
        self, rate: str = "0.05", momentum: str = "0.9", decay: str = "0.0001", epochs: str = "1", batch: str = "32"
    ) -> None:
        self._rate, self._momentum, self._decay = float(rate), float(momentum), float(decay)
        self._epochs, self._batch = int(epochs), int(batch)

    def module(self, shape: tuple[int, ...], classes: int) -> Any:
        """Return a new ``torch.nn.Module`` that maps ``(n, *shape) float32`` to ``(n, classes)`` logits."""
        raise NotImplementedError

    def initial_weights(self, shape: tuple[int, ...], classes: int) -> Weights:
        """Return the weights of a new module, the same for each call."""
        torch.manual_seed(FIRST_SEED)
        form = np.array([classes, *shape], np.int64)
        return {**_arrays(self.module(shape, classes).state_dict()), FORM: form}

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        """Return the weights after all epochs, and the loss of the last one.

        A parameter ``mu`` of the data adds FedProx's proximal term.
        """
        torch.manual_seed(data.seed)
        module = self._load(weights)
        module.train()
        samples, labels = _tensors(data)
        # torch.optim would load a compiler in each round
        moving = [(tensor, tensor.detach().clone(), torch.zeros_like(tensor)) for tensor in module.parameters()]
        mu, random, loss = data.parameters.get("mu", 0.0), np.random.default_rng(data.seed), 0.0
        for _ in range(self._epochs):
            loss = 0.0
            for batch in batches(len(data), self._batch, random):
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
        """Return ``accuracy`` and ``loss`` (the mean cross entropy); nothing without samples."""
        if not len(data):
            return {}
        module = self._load(weights)
        module.eval()
        samples, labels = _tensors(data)
        with torch.no_grad():
            outputs = torch.cat([module(samples[batch]) for batch in batches(len(data), self._batch)])
            loss = torch.nn.functional.cross_entropy(outputs, labels)
        return {"accuracy": float((outputs.argmax(dim=1) == labels).float().mean()), "loss": float(loss)}

    def export(self, weights: Weights, path: Path) -> None:
        """Write an ONNX model: ``samples`` ``(n, *shape) float32`` to ``probabilities`` ``(n, classes)``."""
        module = torch.nn.Sequential(self._load(weights), torch.nn.Softmax(dim=1))
        module.eval()
        example = torch.zeros((1, *_form(weights)[0]), dtype=torch.float32)
        names: dict[str, Any] = {"input_names": ["samples"], "output_names": ["probabilities"]}
        axes = {"samples": {0: "samples_number"}, "probabilities": {0: "samples_number"}}
        with path.open("wb") as file:
            torch.onnx.export(module, (example,), file, opset_version=OPSET, dynamic_axes=axes, dynamo=False, **names)

    def _load(self, weights: Weights) -> Any:
        """Return a new module with these weights."""
        module = self.module(*_form(weights))
        tensors = {
            name: torch.from_numpy(weights[name].copy()).reshape(parameter.shape)
            for name, parameter in module.state_dict().items()
        }
        module.load_state_dict(tensors)
        return module


def _form(weights: Weights) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes in the tensor FORM."""
    classes, *shape = (int(value) for value in weights[FORM])
    return tuple(shape), classes


def _arrays(state: Mapping[str, Any]) -> Weights:
    """Return a module's state as arrays; a single number becomes ``(1,)``."""
    return {name: np.atleast_1d(tensor.detach().cpu().numpy().copy()) for name, tensor in state.items()}


def _tensors(data: TrainingData) -> tuple[Any, Any]:
    """Return copies of samples (float32) and labels (int64) as tensors of PyTorch."""
    samples = np.ascontiguousarray(data.samples, dtype=np.float32)
    return torch.from_numpy(samples.copy()), torch.from_numpy(np.ascontiguousarray(data.labels).copy())
