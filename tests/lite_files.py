"""Small TensorFlow Lite files, written with LiteRT's own schema: models whose answers NumPy can compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

#: scale and zero point of a quantized classifier's input and output
INPUT_STEP, OUTPUT_STEP = (1 / 16, -128), (1 / 256, -128)
NUMBER, BYTE = schema.TensorType.FLOAT32, schema.TensorType.INT8


class Builder:
    """A graph of operators, and the file that it is written to."""

    def __init__(self) -> None:
        self.graph = schema.SubGraphT()
        self.graph.name = "main"
        self.graph.tensors, self.graph.operators = [], []
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.model.subgraphs = [self.graph]

    def tensor(self, name: str, shape: Sequence[int], kind: int = NUMBER, step: tuple[float, int] | None = None) -> int:
        """Add a tensor; -1 is an open axis, ``step`` its scale and zero point."""
        made = schema.TensorT()
        made.name, made.type = name, kind
        made.shape, made.shapeSignature = [max(1, size) for size in shape], list(shape)
        if step:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = [step[0]], [step[1]]
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def constant(self, name: str, values: np.ndarray) -> int:
        at = self.tensor(name, values.shape)
        self.model.buffers.append(schema.BufferT())
        self.model.buffers[-1].data = np.frombuffer(values.astype(np.float32).tobytes(), np.uint8)
        self.graph.tensors[at].buffer = len(self.model.buffers) - 1
        return at

    def operator(self, name: str, inputs: list[int], outputs: list[int], options: str = "", **values: Any) -> None:
        """Add an operator by its name in the schema; a name in lower case is of a library."""
        code, made = schema.OperatorCodeT(), schema.OperatorT()
        code.version = 1
        code.builtinCode = getattr(schema.BuiltinOperator, name, schema.BuiltinOperator.CUSTOM)
        code.deprecatedBuiltinCode = code.builtinCode
        code.customCode = name if name.islower() else None
        self.model.operatorCodes.append(code)
        made.opcodeIndex, made.inputs, made.outputs = len(self.model.operatorCodes) - 1, inputs, outputs
        if options:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            made.builtinOptions = getattr(schema, f"{options}T")()
            for field, value in values.items():
                setattr(made.builtinOptions, field, value)
        self.graph.operators.append(made)

    def sign(self, inputs: dict[str, int], outputs: dict[str, int], key: str = "serving_default") -> None:
        """Add a signature: other names for inputs and outputs."""
        made = schema.SignatureDefT()
        made.signatureKey, made.subgraphIndex = key, 0
        made.inputs, made.outputs = ([_named(*each) for each in names.items()] for names in (inputs, outputs))
        self.model.signatureDefs = [*(self.model.signatureDefs or []), made]

    def write(self, path: Path, inputs: list[int], outputs: list[int]) -> Path:
        self.graph.inputs, self.graph.outputs = inputs, outputs
        packed = flatbuffers.Builder(1024)
        packed.Finish(self.model.Pack(packed), b"TFL3")
        path.write_bytes(bytes(packed.Output()))
        return path


def _named(name: str, index: int) -> Any:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name, index
    return made


def write_classifier(
    path: Path, weights: np.ndarray, bias: np.ndarray, *, batch: int = -1, quantized: bool = False, signed: bool = False
) -> Path:
    """Write softmax(x @ weights + bias), of ``x`` [batch, features] to ``y`` [batch, classes].

    ``quantized``: both are stored as int8. ``signed``: a signature names them ``picture`` and ``scores``.
    """
    b = Builder()
    features, classes = weights.shape
    given = x = b.tensor("x", [batch, features], *((BYTE, INPUT_STEP) if quantized else ()))
    if quantized:
        x = b.tensor("xf", [batch, features])
        b.operator("DEQUANTIZE", [given], [x], "DequantizeOptions")
    w, c = b.constant("w", np.ascontiguousarray(weights.T)), b.constant("b", bias)
    logits, y = b.tensor("z", [batch, classes]), b.tensor("y", [batch, classes])
    b.operator("FULLY_CONNECTED", [x, w, c], [logits], "FullyConnectedOptions")
    b.operator("SOFTMAX", [logits], [y], "SoftmaxOptions", beta=1.0)
    if quantized:
        b.graph.tensors[y].name, scores = b"yf", y
        y = b.tensor("y", [batch, classes], BYTE, OUTPUT_STEP)
        b.operator("QUANTIZE", [scores], [y], "QuantizeOptions")
    if signed:
        b.sign({"picture": given}, {"scores": y})
    return b.write(path, [given], [y])


def write_weigher(path: Path) -> Path:
    """Write a classifier of four values in 0..1: dark or bright."""
    weights = np.array([[-2.0, 2.0]] * 4, np.float32)
    return write_classifier(path, weights, np.array([4.0, -4.0], np.float32))


def write_fixed(path: Path) -> Path:
    """Write a model of [batch, 4] that declares an open axis, and takes one row: a reshape inside fixes it."""
    b = Builder()
    x, row, y = b.tensor("x", [-1, 4]), b.tensor("r", [1, 4]), b.tensor("y", [-1, 4])
    b.operator("RESHAPE", [x], [row], "ReshapeOptions", newShape=[1, 4])
    b.operator("SOFTMAX", [row], [y], "SoftmaxOptions", beta=1.0)
    return b.write(path, [x], [y])


def write_library_operator(path: Path) -> Path:
    """Write a model with an operator that only a library has."""
    b = Builder()
    x, y = b.tensor("x", [1, 4]), b.tensor("y", [1, 4])
    b.operator("open_a_shell", [x], [y])
    return b.write(path, [x], [y])


def write_external(path: Path, file: str) -> Path:
    """Write a model whose weights are in another file."""
    b = Builder()
    x, y = b.tensor("x", [1, 4]), b.tensor("y", [1, 4])
    b.operator("LOGISTIC", [x], [y])
    group = schema.ExternalBufferGroupT()
    group.name = file
    b.model.externalBufferGroups = [group]
    return b.write(path, [x], [y])


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits, row by row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
