"""Opens TensorFlow Lite files with LiteRT, on the CPU: the runtime of the format tflite (``session.RUNTIMES``).

LiteRT verifies a file before it uses it, and has no operators that read files. Two things that a file can name are
refused: weights in other files, and operators that come in libraries. A quantized tensor holds whole numbers, each for
a value ``(number - zero) * scale``. Callers see it as float32, as in the model before its quantization.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from flatbuffers import encode, number_types
from flatbuffers.table import Table

from halimede.inference.file_metadata import MAX_CLASSES, MAX_NAME, MAX_TEXT, FileMetadata
from halimede.inference.graph_input import GraphInput, first_operators
from halimede.inference.model import Array, ModelError, UnsafeModelError
from halimede.inference.session import DeclaredTensor, reason, type_name

#: bytes 4 to 7 of a file
MAGIC = b"TFL3"
#: a quantized input whose highest value is lower takes no pictures of 0 to 255
HALF_RANGE = 128
#: the name of the entry with TensorFlow Lite Metadata (metadata_schema.fbs), and bytes 4 to 7 of its table
METADATA = "TFLITE_METADATA"
METADATA_MAGIC = b"M001"
#: positions of fields in the tables ModelMetadata, SubGraphMetadata, TensorMetadata, ProcessUnit, NormalizationOptions
MODEL_TEXTS = {0: "name", 1: "description", 2: "version", 4: "author", 5: "license"}
SUBGRAPHS, INPUTS, PROCESS_UNITS, OPTIONS_TYPE, OPTIONS = 3, 2, 4, 0, 1
NORMALIZATION, MEAN, STD = 1, 0, 1
#: most entries of a list of the metadata that are read: channels, tables
MAX_CHANNELS = 16
#: the signature (the set of names of inputs and outputs) that is used where a file has several
SERVING = "serving_default"


@dataclass(frozen=True, slots=True)
class LiteTensor:
    """An input or output in LiteRT's interpreter.

    Attributes:
        name: by the file's signature, else the tensor's own.
        index: the tensor's number in the interpreter.
        dtype: NumPy's type of the tensor in the file.
        shape: with None for an open axis.
        scale: of the quantization; 0: the tensor is not quantized.
        zero: the whole number that stands for 0, if the tensor is quantized.

    """

    name: str
    index: int
    dtype: Any
    shape: tuple[int | None, ...]
    scale: float
    zero: int

    @property
    def declared(self) -> DeclaredTensor:
        """The tensor as callers see it: float32 if it is quantized."""
        return DeclaredTensor(self.name, type_name(np.float32 if self.scale else self.dtype), self.shape)

    def quantize(self, values: Any) -> Array:
        """Return a caller's values, C-contiguous; for a quantized tensor in its own type, rounded and clipped."""
        array = np.ascontiguousarray(values)
        if not self.scale:
            return array
        limits = np.iinfo(self.dtype)
        whole = np.rint(array / np.float32(self.scale)) + self.zero
        quantized: Array = np.clip(whole, limits.min, limits.max).astype(self.dtype)
        return quantized

    def dequantize(self, quantized: Array) -> Array:
        """Return values of the file's tensor as callers see them: as float32 if it is quantized."""
        values: Array = (quantized.astype(np.float32) - self.zero) * np.float32(self.scale) if self.scale else quantized
        return values


class LiteSession:
    """A ``RuntimeSession`` (session) of an opened file, by LiteRT's ``interpreter``, whose tensors are allocated.

    Calls of several threads run one after the other, because the interpreter holds the tensors of one call.
    """

    runtime = "LiteRT"

    def __init__(self, interpreter: Any) -> None:
        inputs, outputs = _named_tensors(interpreter)
        self._interpreter = interpreter
        self._inputs = {tensor.name: tensor for tensor in inputs}
        self._outputs = {tensor.name: tensor for tensor in outputs}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def get_inputs(self) -> list[DeclaredTensor]:
        """Return the inputs, quantized ones as float32."""
        return [tensor.declared for tensor in self._inputs.values()]

    def get_outputs(self) -> list[DeclaredTensor]:
        """Return the outputs, quantized ones as float32."""
        return [tensor.declared for tensor in self._outputs.values()]

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any]) -> list[Array]:
        """Return copies of the named outputs, in that order. Raises the interpreter's RuntimeError and ValueError."""
        feeds = [(self._inputs[name], self._inputs[name].quantize(array)) for name, array in input_feed.items()]
        with self._lock:
            self._fit({port.name: array.shape for port, array in feeds})
            for port, array in feeds:
                self._interpreter.set_tensor(port.index, array)
            self._interpreter.invoke()
            outputs = [self._outputs[name] for name in output_names]
            return [port.dequantize(self._interpreter.get_tensor(port.index)) for port in outputs]

    def _fit(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Allocate the tensors for inputs of these shapes, unless they are allocated already."""
        if shapes == self._shapes:
            return
        self._shapes = {}  # until it has succeeded
        for name, shape in shapes.items():
            self._interpreter.resize_tensor_input(self._inputs[name].index, shape, strict=True)
        self._interpreter.allocate_tensors()
        self._shapes = shapes


def open_session(path: Path, threads: int) -> LiteSession:
    """Load a file. ``threads``: of one call; 0: one for each core. Raises ModelError, UnsafeModelError, OSError."""
    check_file(path)
    try:
        interpreter = Interpreter(model_path=str(path), num_threads=threads or os.cpu_count() or 1)
        interpreter.allocate_tensors()
        return LiteSession(interpreter)
    except (ValueError, RuntimeError) as error:
        if "unresolved custom op" in str(error):
            raise UnsafeModelError(
                f"the model file {path} needs an operator that comes in a library, and none is ever loaded: convert it "
                f"with built-in operators alone ({reason(error)})"
            ) from error
        text = f"the model file {path} is not a TensorFlow Lite model that can run here: {reason(error)}"
        raise ModelError(text) from error


def check_file(path: Path) -> None:
    """Check that the runtime may open a file. Raises ModelError, UnsafeModelError if it is hostile; OSError."""
    with path.open("rb") as file:
        if file.read(8)[4:] != MAGIC:
            raise ModelError(
                f"the model file {path} is not a TensorFlow Lite model: give the .tflite file, or an archive with one"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                external_groups = schema.Model.GetRootAs(content).ExternalBufferGroupsLength()
            except (struct.error, IndexError, ValueError, TypeError) as error:
                raise ModelError(
                    f"the model file {path} is a damaged TensorFlow Lite model: {reason(error)}"
                ) from error
    if external_groups:
        raise UnsafeModelError(f"the model file {path} has weights in other files: convert it with its weights in it")


def graph_input(path: Path) -> GraphInput | None:
    """Return the only input of a file; None if there is none or several.

    Raises ModelError, OSError, and for a damaged file errors such as ValueError, TypeError and struct.error.
    """
    check_file(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        model = schema.Model.GetRootAs(content)
        graph = model.Subgraphs(0)
        if graph.InputsLength() != 1:
            return None
        at = graph.Inputs(0)
        tensor, quantization = graph.Tensors(at), graph.Tensors(at).Quantization()
        name = bytes(tensor.Name() or b"").decode()
        if quantization is not None and quantization.ScaleLength():
            limit = 255 if tensor.Type() == schema.TensorType.UINT8 else 127
            floats = quantization.Scale(0) * (limit - quantization.ZeroPoint(0)) < HALF_RANGE
        else:
            floats = tensor.Type() == schema.TensorType.FLOAT32
        return GraphInput(name=name, floats=floats, operators=first_operators(_nodes(model, graph), str(at)))


def metadata(path: Path) -> FileMetadata:
    """Return the metadata of a file, empty fields for what it lacks.

    Raises OSError, ValueError and struct.error, and for a damaged zip archive in it the errors of ``zipfile``.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        labels = _label_lines(path)
        table = _metadata_table(content)
        if table is None:
            return FileMetadata(labels=labels)
        texts = {title: text for at, title in MODEL_TEXTS.items() if (text := _text_of(table, at))}
        mean, std = next(_ranges(table), ((), ()))
        return FileMetadata(texts=texts, labels=labels, mean=mean, std=std)


def _metadata_table(content: mmap.mmap) -> Table | None:
    """Return the table ModelMetadata, which is in a buffer of the file; None if the file has none."""
    model = schema.Model.GetRootAs(content)
    for i in range(model.MetadataLength()):
        entry = model.Metadata(i)
        if bytes(entry.Name() or b"").decode() == METADATA:
            buffer = model.Buffers(entry.Buffer())
            data = bytes(buffer.DataAsNumpy()) if buffer.DataLength() else b""
            if data[4:8] == METADATA_MAGIC:
                return Table(data, encode.Get(number_types.UOffsetTFlags.packer_type, data, 0))
    return None


def _ranges(table: Table) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Yield the mean and the standard deviation of each input of the first graph, a number a channel."""
    for graph in list(_tables(table, SUBGRAPHS))[:1]:
        for tensor in _tables(graph, INPUTS):
            for unit in _tables(tensor, PROCESS_UNITS):
                kind = _offset(unit, OPTIONS_TYPE)
                options = _offset(unit, OPTIONS)
                if not kind or not options or unit.Get(number_types.Uint8Flags, unit.Pos + kind) != NORMALIZATION:
                    continue
                normalization = Table(unit.Bytes, unit.Indirect(unit.Pos + options))
                yield _numbers(normalization, MEAN), _numbers(normalization, STD)


def _offset(table: Table, field: int) -> int:
    """Return the offset of a field in a table; 0 if the table does not have it."""
    return int(table.Offset(4 + 2 * field))


def _text_of(table: Table, field: int) -> str:
    """Return the text of a field; empty if the table does not have it."""
    at = _offset(table, field)
    return bytes(table.String(table.Pos + at)).decode(errors="replace")[:MAX_TEXT] if at else ""


def _tables(table: Table, field: int) -> Iterator[Table]:
    """Yield the first MAX_CHANNELS tables in a field."""
    at = _offset(table, field)
    for i in range(min(table.VectorLen(at), MAX_CHANNELS) if at else 0):
        yield Table(table.Bytes, table.Indirect(table.Vector(at) + 4 * i))


def _numbers(table: Table, field: int) -> tuple[float, ...]:
    """Return the first MAX_CHANNELS floats in a field."""
    at = _offset(table, field)
    count = min(table.VectorLen(at), MAX_CHANNELS) if at else 0
    return struct.unpack_from(f"<{count}f", table.Bytes, table.Vector(at)) if count else ()


def _label_lines(path: Path) -> tuple[str, ...]:
    """Return the names of classes: the lines of the only text file in the zip archive that is appended to the model."""
    if not zipfile.is_zipfile(path):
        return ()
    with zipfile.ZipFile(path) as archive:
        files = [entry for entry in archive.infolist() if entry.filename.endswith(".txt")]
        if len(files) != 1 or files[0].file_size > MAX_TEXT:
            return ()
        with archive.open(files[0]) as file:
            lines = io.TextIOWrapper(file, "utf-8", errors="replace").read(MAX_TEXT).splitlines()
    return tuple(line[:MAX_NAME] for line in lines[:MAX_CLASSES])


def _nodes(model: Any, graph: Any) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield operator, inputs and outputs (numbers of tensors as text) of each node, in the order of computation."""
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    for i in range(graph.OperatorsLength()):
        operator = graph.Operators(i)
        code = model.OperatorCodes(operator.OpcodeIndex())
        # the field for operators up to 127, and the one for all
        name = names.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "")
        inputs = [str(operator.Inputs(k)) for k in range(operator.InputsLength())]
        yield name, inputs, [str(operator.Outputs(k)) for k in range(operator.OutputsLength())]


def _named_tensors(interpreter: Any) -> tuple[list[LiteTensor], list[LiteTensor]]:
    """Return inputs and outputs, by the names of the signature if the file has one, else by those of the tensors."""
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    keys = list(interpreter.get_signature_list())
    key = SERVING if SERVING in keys else keys[0] if len(keys) == 1 else None
    if key is not None:
        runner = interpreter.get_signature_runner(key)
        named = runner.get_input_details(), runner.get_output_details()
        # a signature of another subgraph has other tensors
        if [_indices(details.values()) for details in named] == [_indices(inputs), _indices(outputs)]:
            return _tensors(named[0]), _tensors(named[1])
    return _tensors({info["name"]: info for info in inputs}), _tensors({info["name"]: info for info in outputs})


def _indices(details: Any) -> list[int]:
    """Return the numbers of tensors in order."""
    return sorted(info["index"] for info in details)


def _tensors(details: Mapping[str, Any]) -> list[LiteTensor]:
    """Return the tensors that the interpreter describes, by name."""
    return [_tensor(name, info) for name, info in details.items()]


def _tensor(name: str, detail: Mapping[str, Any]) -> LiteTensor:
    """Return a tensor from its description by the interpreter."""
    scale, zero = detail["quantization"]
    declared = detail["shape_signature"] if len(detail["shape_signature"]) else detail["shape"]
    return LiteTensor(
        name=name,
        index=detail["index"],
        dtype=detail["dtype"],
        shape=tuple(None if size < 0 else int(size) for size in declared),
        scale=float(scale) if np.dtype(detail["dtype"]).kind in "iu" else 0.0,
        zero=int(zero),
    )
