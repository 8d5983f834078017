"""Small real models: scikit-learn classifiers exported to ONNX, and graphs of a few nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from tests.graphs import write_graph

MakeGraph = Callable[..., Path]


@dataclass(frozen=True)
class Digits:
    """8 x 8 pictures of digits with values 0..16, and a classifier of theirs for values in 0..1."""

    images: np.ndarray
    targets: np.ndarray
    classifier: LogisticRegression
    path: Path

    def export(self, path: Path, zipmap: Any) -> Path:
        options = {id(self.classifier): {"zipmap": zipmap}}
        example = np.zeros((1, 64), np.float32)
        path.write_bytes(to_onnx(self.classifier, example, options=options).SerializeToString())
        return path


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    data = load_digits()
    rows = data.data.astype(np.float32) / 16
    classifier = LogisticRegression(max_iter=300).fit(rows, data.target)
    made = Digits(data.images.astype(np.uint8), data.target, classifier, tmp_path_factory.mktemp("digits") / "m.onnx")
    made.export(made.path, zipmap=False)
    return made


@pytest.fixture
def make_graph(tmp_path: Path) -> MakeGraph:
    """Write a graph: ``make_graph([(op, inputs, outputs, attributes)...], inputs={name: (type, shape)}, ...)``.

    A shape without a type is one of floats.
    """

    def ports(declared: dict[str, Any]) -> dict[str, Any]:
        return {name: port if isinstance(port, tuple) else (TensorProto.FLOAT, port) for name, port in declared.items()}

    def make(
        nodes: list[tuple[str, list[str], list[str], dict[str, Any]]],
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        constants: dict[str, np.ndarray] | None = None,
    ) -> Path:
        path = tmp_path / f"graph{len(list(tmp_path.iterdir()))}.onnx"
        return write_graph(path, nodes, ports(inputs), ports(outputs), constants)

    return make


@pytest.fixture
def two_outputs(make_graph: MakeGraph) -> Path:
    """Write a model that gives its input, in the output ``hidden``, and its softmax, in ``soft``."""
    nodes = [("Identity", ["x"], ["hidden"], {}), ("Softmax", ["x"], ["soft"], {})]
    return make_graph(nodes, {"x": ["N", 3]}, {"soft": ["N", 3], "hidden": ["N", 3]})


@pytest.fixture
def features_and_top(make_graph: MakeGraph) -> Path:
    """Write a model that gives its input, in the output ``features``, and the largest value of it, in ``top``."""
    nodes = [("Identity", ["x"], ["features"], {}), ("ReduceMax", ["x"], ["top"], {"axes": [1]})]
    return make_graph(nodes, {"x": ["N", 3]}, {"top": ["N", 1], "features": ["N", 3]})


@pytest.fixture
def make_echo(make_graph: MakeGraph) -> MakeGraph:
    """Write a model that answers with its input."""

    def make(shape: list[Any], kind: int = TensorProto.FLOAT, out_shape: list[Any] | None = None) -> Path:
        return make_graph([("Identity", ["x"], ["y"], {})], {"x": (kind, shape)}, {"y": (kind, out_shape or shape)})

    return make
