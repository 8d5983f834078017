"""The input of a model file, and the operators that its values reach first, read from the file without running it.

The operators show whether a model scales its input itself. ``scale_warning`` warns if pictures reach a model as 0 to
255 although it multiplies floats by weights at once: its answers would often be wrong. ONNX and TensorFlow Lite files
are read. A SavedModel is a program, of which nothing is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from halimede.api.model import ModelSpec
from halimede.api.processing import has_unscaled_pixels
from halimede.inference.file_metadata import call_reader

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
    """The only input of a file.

    Attributes:
        name: as the file declares it.
        floats: the input takes floats, or quantized numbers whose highest value is far below 255.
        operators: names of the first operators that compute with the input's values.

    """

    name: str
    floats: bool
    operators: frozenset[str]

    @property
    def scales(self) -> bool:
        """Whether the model may change the range of its input's values before it multiplies them by weights."""
        return not self.operators or not self.operators <= WEIGHING


def graph_input(path: Path, file_format: str) -> GraphInput | None:
    """Return the only input of a file; None if there is none or several, or if the file or format cannot be read.

    Errors are left to whoever opens the file.
    """
    graph: GraphInput | None = call_reader("graph_input", path, file_format)
    return graph


def first_operators(nodes: Iterable[tuple[str, Collection[str], Collection[str]]], name: str) -> frozenset[str]:
    """Return the operators that compute with the values of the tensor ``name``, as they are or moved by MOVING ones.

    ``nodes``: operator, inputs and outputs of each node, in the order of their computation.
    """
    reached, operators = {name}, set[str]()
    for operator, inputs, outputs in nodes:
        if reached.isdisjoint(inputs):
            continue
        if operator in MOVING:
            reached.update(outputs)
        elif operator not in {"Shape", "Size", "SHAPE"}:  # they read no values
            operators.add(operator)
    return frozenset(operators)


def scale_warning(path: Path, spec: ModelSpec) -> str:
    """Return the warning that pictures reach a model of floats as 0 to 255.

    It is empty if they do not, if the model may scale its input itself, and if the file does not show its input.
    """
    graph = graph_input(path, spec.format) if has_unscaled_pixels(spec.preprocess) else None
    if graph is None or not graph.floats or graph.scales:
        return ""
    return (
        f"spec.preprocess: the model's input {graph.name} takes floats, and pictures reach it as 0 to 255: most models"
        " are trained on 0 to 1, and answer wrongly then. Add {op: normalize}; or {op: scale}, which changes nothing,"
        " if this model was trained on 0 to 255"
    )
