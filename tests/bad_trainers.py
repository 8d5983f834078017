"""Trainers whose models are bad, as a user's script for a TrainingModel: each in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import Weights

#: units and layers that a slow model computes for nothing, for each call: some tens of milliseconds
UNITS, LAYERS = 1024, 600


class Worse(Perceptron):
    """Trains on few steps from random weights."""

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        chance = np.random.default_rng(data.seed)
        return {name: chance.normal(0, 0.1, each.shape).astype(np.float32) for name, each in weights.items()}, {}


class WrongLabels(Perceptron):
    """Trains on samples of which each has the label of the next class."""

    def train(self, data: TrainingData, weights: Weights) -> tuple[Weights, Mapping[str, float]]:
        labels = (data.labels + 1) % data.classes
        return super().train(TrainingData(data.samples, labels, data.classes, data.seed), weights)


class Broken(Perceptron):
    """Exports half of a file."""

    def export(self, weights: Weights, path: Path) -> None:
        super().export(weights, path)
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(len(content) // 2)


class Slow(Perceptron):
    """Exports a good model that computes much for nothing."""

    def export(self, weights: Weights, path: Path) -> None:
        super().export(weights, path)
        model = onnx.load_from_string(path.read_bytes())
        graph = model.graph
        graph.node[-1].output[0] = "answers"
        inputs = graph.input[0].type.tensor_type.shape.dim[1].dim_value
        constants = {
            "zeros0": np.zeros((inputs, UNITS), np.float32),
            "zeros": np.zeros((UNITS, UNITS), np.float32),
            "first": np.zeros(1, np.int64),
            "second": np.ones(1, np.int64),
        }
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        # of the first sample alone, so that a batch takes no longer
        graph.node.append(helper.make_node("Slice", ["samples", "first", "second", "first"], ["sample"]))
        graph.node.append(helper.make_node("MatMul", ["sample", "zeros0"], ["idle0"]))
        graph.node.extend(helper.make_node("MatMul", [f"idle{i}", "zeros"], [f"idle{i + 1}"]) for i in range(LAYERS))
        graph.node.append(helper.make_node("ReduceSum", [f"idle{LAYERS}"], ["nothing"], keepdims=0))
        graph.node.append(helper.make_node("Add", ["answers", "nothing"], ["probabilities"]))
        with path.open("r+b") as file:
            file.truncate()
            file.write(model.SerializeToString())


BAD = {"worse": Worse, "wrong labels": WrongLabels, "broken": Broken, "slow": Slow}
