"""The input of a model file, and the operators that its values reach first, read from the file without running it.

So it is seen whether a model scales its input itself. ``unscaled`` warns of a model whose pictures reach it as 0 to 255
although it weighs floats at once: it would answer, and often wrongly. A SavedModel is a program: of it nothing is seen.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from halimede.api.model import ModelSpec
from halimede.api.model_formats import ONNX, TFLITE, format_of
from halimede.api.processing import keeps_range
from halimede.inference.model import ModelError

#: the modules with a function ``graph_input`` of a path
READERS = {ONNX: "halimede.inference.runtimes.onnx_graph", TFLITE: "halimede.inference.runtimes.tflite"}
#: operators that pass values on as they are, of ONNX and of TensorFlow Lite
MOVING = frozenset({
    "Cast", "Concat", "DepthToSpace", "DequantizeLinear", "Flatten", "Gather", "Identity", "Pad", "QuantizeLinear",
    "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Transpose", "Unsqueeze",
    "CAST", "CONCATENATION", "DEQUANTIZE", "EXPAND_DIMS", "MIRROR_PAD", "PAD", "PADV2", "QUANTIZE", "RESHAPE",
    "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "SLICE", "SPACE_TO_DEPTH", "SPLIT", "SQUEEZE", "STRIDED_SLICE",
    "TRANSPOSE",
})  # fmt: skip
#: operators that multiply values by learned weights
WEIGHING = frozenset({
    "Conv", "Gemm", "LinearClassifier", "MatMul", "SVMClassifier", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class GraphInput:
    """The only input of a file. ``floats``: it takes floats, or quantized numbers that end far below 255.

    ``operators``: the first ones that compute with its values.
    """

    name: str
    floats: bool
    operators: frozenset[str]

    @property
    def scales(self) -> bool:
        """Whether the model changes the range of its values before it weighs them, as far as the file shows."""
        return not self.operators or not self.operators <= WEIGHING


def graph_input(path: Path, file_format: str) -> GraphInput | None:
    """Return the input of a file; None if it has not exactly one, or cannot be read so. The file was checked before."""
    form = format_of(file_format)
    if form not in READERS or not path.is_file():
        return None
    try:
        graph: GraphInput | None = import_module(READERS[form]).graph_input(path)
    except (ImportError, ModelError, OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return None  # who opens the file reports it
    return graph


def first_operators(nodes: Iterable[tuple[str, Collection[str], Collection[str]]], name: str) -> frozenset[str]:
    """Return the operators that a tensor's values reach first, through those that only move them.

    ``nodes``: the operator, the inputs and the outputs of each, in the order of their computation.
    """
    reached, operators = {name}, set[str]()
    for operator, inputs, outputs in nodes:
        if reached.isdisjoint(inputs):
            continue
        if operator in MOVING:
            reached.update(outputs)
        elif operator not in {"Shape", "Size", "SHAPE"}:
            operators.add(operator)
    return frozenset(operators)


def unscaled(path: Path, spec: ModelSpec) -> str:
    """Return a warning if pictures reach a model of floats as 0 to 255; empty if not, or if that is not certain."""
    if not keeps_range(spec.preprocess):
        return ""
    graph = graph_input(path, spec.format)
    if graph is None or not graph.floats or graph.scales:
        return ""
    return (
        f"spec.preprocess: the model's input {graph.name} takes floats, and pictures reach it as 0 to 255: most models"
        " are trained on 0 to 1, and answer wrongly then. Add {op: normalize}; or {op: scale}, which changes nothing,"
        " if this model was trained on 0 to 255"
    )
