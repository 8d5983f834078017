"""Small ONNX graphs, written by hand: models whose answers can be told in advance, run by the real ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
Node = tuple[str, list[str], list[str], dict[str, Any]]
Ports = Mapping[str, tuple[int, Sequence[Any] | None]]


def write_graph(
    path: Path, nodes: Sequence[Node], inputs: Ports, outputs: Ports, constants: Mapping[str, np.ndarray] | None = None
) -> Path:
    """Write a graph of ``(op, inputs, outputs, attributes)``; ports are ``{name: (type, shape)}``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes],
        "small",
        [helper.make_tensor_value_info(name, *declared) for name, declared in inputs.items()],
        [helper.make_tensor_value_info(name, *declared) for name, declared in outputs.items()],
        [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def write_spotter(path: Path) -> Path:
    """Write a detector for one bright thing in ``[N, height, width, 1]`` of values in 0..1: rows ``[N, 1, 6]``.

    The score is that of the brightest pixel; what is not brighter than one half is nothing.
    """
    nodes: list[Node] = [
        ("Greater", ["x", "half"], ["bright"], {}),
        ("Cast", ["bright"], ["spot"], {"to": FLOAT}),
        ("ReduceMax", ["spot"], ["rows"], {"axes": [2, 3], "keepdims": 0}),
        ("ReduceMax", ["spot"], ["columns"], {"axes": [1, 3], "keepdims": 0}),
        ("Mul", ["x", "spot"], ["kept"], {}),
        ("ReduceMax", ["kept"], ["score"], {"axes": [1, 2, 3], "keepdims": 0}),
        ("Unsqueeze", ["score", "last"], ["score1"], {}),
        ("Mul", ["score1", "zero"], ["class"], {}),
    ]
    for side, source in (("x", "columns"), ("y", "rows")):
        nodes += [
            ("ArgMax", [source], [f"{side}a"], {"axis": 1}),
            ("ArgMax", [source], [f"{side}b"], {"axis": 1, "select_last_index": 1}),
            ("Cast", [f"{side}a"], [f"{side}1"], {"to": FLOAT}),
            ("Cast", [f"{side}b"], [f"{side}c"], {"to": FLOAT}),
            ("Add", [f"{side}c", "one"], [f"{side}2"], {}),
        ]
    nodes += [
        ("Concat", ["x1", "y1", "x2", "y2", "score1", "class"], ["row"], {"axis": 1}),
        ("Unsqueeze", ["row", "last"], ["boxes"], {}),
        ("Transpose", ["boxes"], ["out"], {"perm": [0, 2, 1]}),
    ]
    constants = {name: np.array(value, np.float32) for name, value in {"half": 0.5, "one": 1, "zero": 0}.items()}
    constants["last"] = np.array([-1], np.int64)
    return write_graph(path, nodes, {"x": (FLOAT, ["N", "H", "W", 1])}, {"out": (FLOAT, ["N", 1, 6])}, constants)


def write_weigher(path: Path, size: int) -> Path:
    """Write a classifier of ``[N, size]`` values in 0..1: the mean is the probability of the second of two classes."""
    nodes: list[Node] = [
        ("ReduceMean", ["x"], ["bright"], {"axes": [1]}),
        ("Sub", ["one", "bright"], ["dark"], {}),
        ("Concat", ["dark", "bright"], ["y"], {"axis": 1}),
    ]
    ports = {"x": (FLOAT, ["N", size])}, {"y": (FLOAT, ["N", 2])}
    return write_graph(path, nodes, *ports, {"one": np.array(1, np.float32)})


def write_describer(path: Path, size: int) -> Path:
    """Write an embedding model: the values of ``[N, size]`` without their mean."""
    nodes: list[Node] = [("ReduceMean", ["x"], ["mean"], {"axes": [1]}), ("Sub", ["x", "mean"], ["y"], {})]
    return write_graph(path, nodes, {"x": (FLOAT, ["N", size])}, {"y": (FLOAT, ["N", size])})
