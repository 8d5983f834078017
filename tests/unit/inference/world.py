"""What tests of models share: specs as a resource has them, and files whose answers are known in advance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from tests.graphs import FLOAT, Node, write_graph


def spec_of(**fields: Any) -> ModelSpec:
    return convert({"url": "/m", "format": "onnx", **fields}, ModelSpec, "spec")


def write_constant(path: Path, shape: Sequence[Any], **outputs: np.ndarray) -> Path:
    """Write a model that gives these outputs, whatever its input of this shape is."""
    nodes: list[Node] = [("ReduceMax", ["x"], ["m"], {"keepdims": 0}), ("Mul", ["m", "zero"], ["nothing"], {})]
    nodes += [("Add", [f"constant {name}", "nothing"], [name], {}) for name in outputs]
    constants = {f"constant {name}": values.astype(np.float32) for name, values in outputs.items()}
    ports = {"x": (FLOAT, shape)}, {name: (FLOAT, values.shape) for name, values in outputs.items()}
    return write_graph(path, nodes, *ports, {**constants, "zero": np.array(0, np.float32)})


def add_metadata(path: Path, texts: dict[str, str]) -> Path:
    model = onnx.load(path)
    onnx.helper.set_model_props(model, texts)
    onnx.save(model, path)
    return path
