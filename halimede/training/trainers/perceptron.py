"""A trainer of multilayer perceptrons in NumPy, without a framework. Without hidden layers: softmax regression."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede.training.trainer import TrainingData, batches
from halimede.training.weights import Weights

#: weights ``(inputs, units)``, biases ``(units,)``, or samples ``(n, values)``
Floats = NDArray[np.float32]
#: most hidden layers, units of each, and epochs
MOST_LAYERS, MOST_UNITS, MOST_EPOCHS = 8, 65_536, 10_000
#: seed of the first weights, which are the same on all nodes
FIRST_SEED = 0
#: versions of ONNX's operators and of its file form
OPSET, IR_VERSION = 17, 9


class Perceptron:
    """A ``Trainer`` (``halimede.training.trainer``) of fully connected layers with ReLU.

    It trains by stochastic gradient descent with momentum on the cross entropy. Weights are ``layer<i>.weight``,
    ``(inputs, outputs) float32``, and ``layer<i>.bias``, ``(outputs,) float32``.

    Args:
        hidden: units of the hidden layers, such as ``64`` or ``128,64``; empty: none.
        rate: learning rate, above 0, at most 1.
        momentum: from 0, below 1.
        decay: weight decay, from 0, below 1.
        epochs: passes over the samples in one round.
        batch: samples of one step.

    Raises ValueError for a parameter that is no number, or out of range.

    """

    def __init__(  # noqa: PLR0917 (a spec sets them by name)
        self,
        hidden: str = "64",
        rate: str = "0.05",
        momentum: str = "0.9",
        decay: str = "0.0001",
        epochs: str = "5",
        batch: str = "32",
    ) -> None:
        self._hidden = [int(units) for units in hidden.split(",") if units.strip()]
        self._rate, self._momentum, self._decay = float(rate), float(momentum), float(decay)
        self._epochs, self._batch = int(epochs), int(batch)
        if len(self._hidden) > MOST_LAYERS or not all(0 < units <= MOST_UNITS for units in self._hidden):
            raise ValueError(f"hidden has at most {MOST_LAYERS} layers of 1 to {MOST_UNITS} units")
        if not (0 < self._rate <= 1 and 0 <= self._momentum < 1 and 0 <= self._decay < 1):
            raise ValueError("rate must be in 0..1 and above 0, momentum and decay at least 0 and below 1")
        if not (0 < self._epochs <= MOST_EPOCHS and self._batch > 0):
            raise ValueError(f"epochs must be 1 to {MOST_EPOCHS}, and batch at least 1")

    def initial_weights(self, shape: tuple[int, ...], classes: int) -> Weights:
        """Return first weights for samples of ``shape``, the same for each call.

        They are He's initialisation (He et al. 2015, arXiv 1502.01852).
        """
        random = np.random.default_rng(FIRST_SEED)
        sizes = [int(np.prod(shape)), *self._hidden, classes]
        weights: Weights = {}
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            scale = np.sqrt(2 / max(inputs, 1))
            weights[f"layer{i}.weight"] = random.normal(0, scale, (inputs, outputs)).astype(np.float32)
            weights[f"layer{i}.bias"] = np.zeros(outputs, np.float32)
        return weights

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        """Return the weights after all epochs, and the loss of the last one.

        A parameter ``mu`` of the data adds FedProx's proximal term.
        """
        inputs, layers = _rows(data), _layers(weights)
        start = [(weight.copy(), bias.copy()) for weight, bias in layers]
        velocity = [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in layers]
        mu, random, loss = data.parameters.get("mu", 0.0), np.random.default_rng(data.seed), 0.0
        for _ in range(self._epochs):
            loss = 0.0
            for batch in batches(len(data), self._batch, random):
                batch_loss, gradients = _gradients(layers, inputs[batch], data.labels[batch], data.classes)
                loss += batch_loss * len(batch) / len(data)
                for layer, first, speed, gradient in zip(layers, start, velocity, gradients, strict=True):
                    for i in (0, 1):  # the weight, then the bias, which does not decay
                        pull = mu * (layer[i] - first[i]) + (self._decay * layer[i] if i == 0 else 0)
                        speed[i][...] = self._momentum * speed[i] - self._rate * (gradient[i] + pull)
                        layer[i][...] += speed[i]
        names = list(weights)
        return dict(zip(names, [tensor for layer in layers for tensor in layer], strict=True)), {"loss": float(loss)}

    def evaluate(self, data: TrainingData, weights: Weights) -> Mapping[str, float]:
        """Return ``accuracy`` and ``loss`` (the mean cross entropy); nothing without samples."""
        if not len(data):
            return {}
        probabilities = _forward(_layers(weights), _rows(data))[-1]
        likelihood = np.clip(probabilities[np.arange(len(data)), data.labels], 1e-12, 1)
        right = probabilities.argmax(axis=1) == data.labels
        return {"accuracy": float(right.mean()), "loss": float(-np.log(likelihood).mean())}

    def export(self, weights: Weights, path: Path) -> None:
        """Write an ONNX model: ``samples`` ``(n, values) float32`` to ``probabilities`` ``(n, classes)``."""
        from onnx import TensorProto, helper, numpy_helper, save  # noqa: PLC0415 (only the aggregator needs it)

        layers = _layers(weights)
        nodes, last = [], "samples"
        for i in range(len(layers)):
            nodes.append(helper.make_node("Gemm", [last, f"layer{i}.weight", f"layer{i}.bias"], [f"sum{i}"]))
            kind, last = ("Softmax", "probabilities") if i == len(layers) - 1 else ("Relu", f"active{i}")
            nodes.append(helper.make_node(kind, [f"sum{i}"], [last]))
        outer = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["samples_number", size])
            for name, size in (("samples", layers[0][0].shape[0]), ("probabilities", layers[-1][0].shape[1]))
        ]
        constants = [numpy_helper.from_array(np.ascontiguousarray(tensor), name) for name, tensor in weights.items()]
        graph = helper.make_graph(nodes, "perceptron", outer[:1], outer[1:], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        save(model, path)


def _rows(data: TrainingData) -> Floats:
    """Return samples as ``(n, values) float32``."""
    return np.ascontiguousarray(data.samples.reshape(len(data), -1), dtype=np.float32)


def _layers(weights: Mapping[str, NDArray[Any]]) -> list[tuple[Floats, Floats]]:
    """Return copies of the weight and the bias of each layer."""
    tensors = [tensor.astype(np.float32) for tensor in weights.values()]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _forward(layers: list[tuple[Floats, Floats]], inputs: Floats) -> list[Floats]:
    """Return the inputs and the values after each layer, ``(n, units)`` each; the last ones are the probabilities."""
    values = [inputs]
    for i, (weight, bias) in enumerate(layers):
        sums = values[-1] @ weight + bias
        if i < len(layers) - 1:
            values.append(np.maximum(sums, 0))
        else:
            powers = np.exp(sums - sums.max(axis=1, keepdims=True))
            values.append(powers / powers.sum(axis=1, keepdims=True))
    return values


def _gradients(
    layers: list[tuple[Floats, Floats]], inputs: Floats, labels: NDArray[np.int64], classes: int
) -> tuple[float, list[tuple[Floats, Floats]]]:
    """Return the mean cross entropy of a batch, and its gradients for the weight and the bias of each layer."""
    values = _forward(layers, inputs)
    right = np.eye(classes, dtype=np.float32)[labels]
    loss = float(-np.log(np.clip((values[-1] * right).sum(axis=1), 1e-12, 1)).mean())
    error: Floats = (values[-1] - right) / np.float32(len(inputs))
    gradients: list[tuple[Floats, Floats]] = []
    for i in reversed(range(len(layers))):
        gradients.insert(0, (values[i].T @ error, error.sum(axis=0)))
        if i:
            error = (error @ layers[i][0].T) * (values[i] > 0)
    return loss, gradients
