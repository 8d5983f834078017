"""A sliding-window detector as plain matrices, and the same as an ONNX graph.

A scene is resized by matrices to a pyramid of levels; on each a window of 10 x 10 pixels slides, with the digit in its
inner 8 x 8. What is in a window is evened out (mean and contrast) and read by a network of one hidden layer, which the
graph has as a convolution, so that no window is cut out. A window that a better one touches is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from examples.detection.scenes import LABELS, SIDE, Floats

#: sides of a window and of the digit in its middle, and contrast (0..1) that counts as none
WINDOW, INNER, FLAT = 10, 8, 0.02


@dataclass(frozen=True)
class Plan:
    """What a detector looks at: sides of digits in pixels of the scene, one a level, and the step of its window."""

    sides: tuple[float, ...]
    stride: int


@dataclass(frozen=True)
class Network:
    """A network of one hidden layer.

    ``[100, hidden]``, ``[hidden]``, ``[hidden, 11]``, ``[11]``: the last class is that there is nothing.
    """

    hidden: Floats
    hidden_bias: Floats
    out: Floats
    out_bias: Floats


@cache
def shrinking(side: float) -> Floats:
    """Return the matrix ``[level, SIDE]`` that makes digits of this side 8 pixels large: a triangle filter."""
    scale = side / INNER
    size = int(SIDE / scale)
    middles = (np.arange(size) + 0.5) * scale - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(SIDE) - middles[:, np.newaxis]) / max(scale, 1))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@cache
def boxes(plan: Plan) -> Floats:
    """Return the box of each window ``[windows, 4]``, in the order of ``windows``."""
    found = []
    for side in plan.sides:
        scale = side / INNER
        places = np.arange(0, len(shrinking(side)) - WINDOW + 1, plan.stride)
        first = (places + (WINDOW - INNER) / 2) * scale
        y, x = np.meshgrid(first, first, indexing="ij")
        found.append(np.stack([x, y, x + side, y + side], axis=-1).reshape(-1, 4))
    return np.concatenate(found)


def windows(plan: Plan, picture: NDArray[np.uint8], chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return what is in the chosen windows of a scene, by their numbers in order, evened out: ``[chosen, 100]``."""
    found, first = [], 0
    for side in plan.sides:
        shrink = shrinking(side)
        level = (shrink @ (picture / 255) @ shrink.T).astype(np.float32)
        views = sliding_window_view(level, (WINDOW, WINDOW))[:: plan.stride, :: plan.stride]
        count = views.shape[0] * views.shape[1]
        mine = chosen[(chosen >= first) & (chosen < first + count)] - first
        found.append(views[mine // views.shape[1], mine % views.shape[1]].reshape(-1, WINDOW * WINDOW))
        first += count
    rows = np.concatenate(found)
    rows -= rows.mean(axis=1, keepdims=True)
    return np.asarray(rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + np.float32(FLAT**2)))


def export(plan: Plan, network: Network) -> onnx.ModelProto:
    """Write the detector: scenes ``[n, 1, SIDE, SIDE]`` in 0..1 to ``[n, 4 + 10, windows]``, as YOLO has it."""
    classes = len(LABELS)
    # a window's mean needs no taking away where the weights of each hidden unit add up to 0
    kernel = (network.hidden - network.hidden.mean(axis=0)).T.reshape(-1, 1, WINDOW, WINDOW)
    constants: dict[str, Any] = {
        "kernel": kernel,
        "hidden_bias": network.hidden_bias.reshape(1, -1, 1, 1),
        "out": network.out.T[:, :, np.newaxis, np.newaxis],
        "out_bias": network.out_bias,
        "flat": FLAT**2,
        "zero": 0.0,
        "places": boxes(plan).T[np.newaxis],
    }
    whole = {"flatten": [0, classes, -1], "from": [0], "ten": [classes], "channels": [1]}
    nodes, levels = [], []
    for i, side in enumerate(plan.sides):
        shrink = shrinking(side)
        constants |= {f"rows{i}": shrink, f"columns{i}": shrink.T}
        levels.append(f"level{i}")
        nodes += _level(i, plan.stride)
    node = helper.make_node
    nodes += [
        node("Concat", levels, ["scores"], axis=2),
        node("Shape", ["scores"], ["shape"]),
        node("Slice", ["shape", "from", "channels"], ["samples"]),
        node("Concat", ["samples", "once"], ["often"], axis=0),
        node("Expand", ["places", "often"], ["boxes"]),
        node("Concat", ["boxes", "scores"], ["detections"], axis=1),
    ]
    whole["once"] = [1, 1]
    tensors = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    tensors += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in whole.items()]
    graph = helper.make_graph(
        nodes,
        "digits in scenes",
        [helper.make_tensor_value_info("scene", TensorProto.FLOAT, ["n", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("detections", TensorProto.FLOAT, ["n", 4 + classes, len(boxes(plan))])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def _level(i: int, stride: int) -> list[onnx.NodeProto]:
    """Return the nodes of one level: ``level{i}`` is ``[n, 10, windows]``."""

    def node(kind: str, inputs: list[str], output: str, **options: Any) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [f"{output}{i}"], **options)

    slide: dict[str, Any] = {"kernel_shape": [WINDOW, WINDOW], "strides": [stride, stride]}
    return [
        node("MatMul", [f"rows{i}", "scene"], "lower"),
        node("MatMul", [f"lower{i}", f"columns{i}"], "pixels"),
        node("Mul", [f"pixels{i}", f"pixels{i}"], "squares"),
        node("AveragePool", [f"pixels{i}"], "mean", **slide),
        node("AveragePool", [f"squares{i}"], "square", **slide),
        node("Mul", [f"mean{i}", f"mean{i}"], "meant"),
        node("Sub", [f"square{i}", f"meant{i}"], "spread"),
        node("Max", [f"spread{i}", "zero"], "variance"),
        node("Add", [f"variance{i}", "flat"], "some"),
        node("Sqrt", [f"some{i}"], "contrast"),
        node("Conv", [f"pixels{i}", "kernel"], "raw", **slide),
        node("Div", [f"raw{i}", f"contrast{i}"], "evened"),
        node("Add", [f"evened{i}", "hidden_bias"], "moved"),
        node("Relu", [f"moved{i}"], "hidden"),
        node("Conv", [f"hidden{i}", "out", "out_bias"], "logits"),
        node("Softmax", [f"logits{i}"], "all", axis=1),
        node("Slice", [f"all{i}", "from", "ten", "channels"], "digits"),
        node("ReduceMax", [f"digits{i}", "channels"], "sure", keepdims=1),
        node("MaxPool", [f"sure{i}"], "surest", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("GreaterOrEqual", [f"sure{i}", f"surest{i}"], "peak"),
        node("Cast", [f"peak{i}"], "heard", to=TensorProto.FLOAT),
        node("Mul", [f"digits{i}", f"heard{i}"], "peaks"),
        node("Reshape", [f"peaks{i}", "flatten"], "level"),
    ]
