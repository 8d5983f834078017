"""A model file with its own inputs and outputs: tensors in and out, without pre- and post-processing.

For clients that use a tensor protocol. Element types have the names of the Open Inference Protocol. ``smoke`` tests
whether several requests may share one call: an open first axis need not count samples (it may count words), and the
rows of a batch may depend on one another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from halimede.inference.model import Array, ModelError, SampleError
from halimede.inference.runtimes.onnx import InferenceSession, run_bits
from halimede.inference.session import RuntimeSession, failure, open_session
from halimede.inference.tensor_ports import ZIPMAP

#: the protocol's name and the NumPy type of each of ONNX Runtime's types; bfloat16 is handled as its 16 bits
TYPES: dict[str, tuple[str, type[Any]]] = {
    "tensor(bool)": ("BOOL", np.bool_),
    "tensor(uint8)": ("UINT8", np.uint8),
    "tensor(uint16)": ("UINT16", np.uint16),
    "tensor(uint32)": ("UINT32", np.uint32),
    "tensor(uint64)": ("UINT64", np.uint64),
    "tensor(int8)": ("INT8", np.int8),
    "tensor(int16)": ("INT16", np.int16),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(float16)": ("FP16", np.float16),
    "tensor(float)": ("FP32", np.float32),
    "tensor(double)": ("FP64", np.float64),
    "tensor(bfloat16)": ("BF16", np.uint16),
    "tensor(string)": ("BYTES", np.object_),
}
#: the datatype of bfloat16
BF16 = "BF16"
#: lengths that are tried for open axes: pictures need some pixels for a convolution to fit
EXTENTS = (1, 8, 32, 224)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model file.

    Attributes:
        name: as the file declares it.
        datatype: the element type's name in the Open Inference Protocol, such as ``FP32``.
        dtype: its NumPy type.
        shape: batch axis included, with -1 for an open axis; None: an output whose shape the file does not declare.

    """

    name: str
    datatype: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape fits: each axis has the declared length, or is open."""
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(w in {-1, s} for w, s in zip(self.shape, shape, strict=True))

    def closed_shape(self, rows: int, extent: int) -> list[int]:
        """Return the shape with ``rows`` for an open first axis, and ``extent`` for each other open axis.

        It is empty for a scalar, and ``[rows]`` if the file declares no shape.
        """
        if self.shape == ():
            return []
        first, *inner = self.shape or (rows,)
        return [rows if first == -1 else first, *(extent if size == -1 else size for size in inner)]


class TensorModel:
    """An opened model file that is called with tensors. Several threads may call ``run`` at a time.

    Attributes:
        inputs: by name, in the file's order.
        outputs: by name, in the file's order; those that are no tensors are left out.
        batched: rows of different requests may be concatenated along the first axis; False until ``smoke``.
        call_s: seconds of processor time of the calling thread for one small call; infinite before ``smoke``, and if
            no small call succeeds.

    """

    def __init__(self, session: RuntimeSession) -> None:
        self._session: RuntimeSession | None = session
        self.inputs = {port.name: port for port in _ports(session.get_inputs(), "input")}
        self.outputs = {port.name: port for port in _ports(session.get_outputs(), "output")}
        self._bits = frozenset(p.name for p in [*self.inputs.values(), *self.outputs.values()] if p.datatype == BF16)
        self.batched = False
        self.call_s = float("inf")

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Return the named outputs, in that order. ``feeds``: an array for each input. Blocks. Raises SampleError."""
        session = self._session  # another thread may call close()
        if session is None:
            raise SampleError("the model is closed")
        try:
            if self._bits:
                return run_bits(cast("InferenceSession", session), feeds, outputs, self._bits)
            answers: list[Array] = session.run(outputs, feeds)
        except Exception as error:
            raise SampleError(failure(session, error)) from error
        return answers

    def smoke(self) -> None:
        """Set ``batched`` and ``call_s`` from runs on a small input, so that the first request is not the first run.

        If the model answers no small input, each request runs alone. Blocks.
        """
        self.batched = self._are_rows_independent()

    def close(self) -> None:
        """Free the model's memory; later calls raise SampleError."""
        self._session = None

    def _are_rows_independent(self) -> bool:
        """Whether three rows in one call give the same as in two calls; also measures ``call_s``.

        False if the shapes do not allow other numbers of rows, or if no small input fits.
        """
        names = list(self.outputs)
        for extent in EXTENTS:
            rows = {name: _sample_rows(port, extent) for name, port in self.inputs.items()}
            try:
                self.run(rows, names)
                began = time.thread_time()
                self.run(rows, names)
                self.call_s = time.thread_time() - began
                if not self._may_be_batched():
                    return False
                whole, first, last = (
                    self.run({name: array[part] for name, array in rows.items()}, names)
                    for part in (slice(0, 3), slice(0, 1), slice(1, 3))
                )
            except SampleError:
                continue
            return all(
                together.ndim and len(together) == 3 and _are_alike(together, np.concatenate(apart), self.outputs[name])
                for name, together, *apart in zip(names, whole, first, last, strict=True)
            )
        return False

    def _may_be_batched(self) -> bool:
        """Whether the first axis of all inputs and outputs is open."""
        return all(port.shape is not None and port.shape[:1] == (-1,) for port in self.inputs.values()) and all(
            port.shape is None or port.shape[:1] == (-1,) for port in self.outputs.values()
        )


def open_tensors(path: Path | str, file_format: str = "onnx", *, threads: int = 1) -> TensorModel:
    """Load a file and run it on small inputs. ``threads``: of one call; 0: one for each core. Raises ModelError."""
    model = TensorModel(open_session(Path(path), file_format, threads))
    model.smoke()
    return model


def _ports(declared: Sequence[Any], side: str) -> list[Port]:
    """Return the declared inputs or outputs (``side``: input or output) that are tensors.

    Raises ModelError if there are none, or if an input is no tensor.
    """
    ports = [port for port in declared if port.type in TYPES]
    if (side == "input" and len(ports) < len(declared)) or not ports:
        listed = ", ".join(f"{port.name} {port.type}" for port in declared) or "none"
        hint = f" ({ZIPMAP})" if "seq(map" in listed else ""
        raise ModelError(f"the model has {side}s that are no tensors, {listed}: export it with tensors alone{hint}")
    return [
        Port(port.name, TYPES[port.type][0], np.dtype(TYPES[port.type][1]), _shape(port.shape, side)) for port in ports
    ]


def _shape(declared: Sequence[Any], side: str) -> tuple[int, ...] | None:
    """Return a declared shape as ``Port`` has it."""
    # an output without a declared shape cannot be distinguished from a scalar
    if not declared and side == "output":
        return None
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in declared)


def _sample_rows(port: Port, extent: int) -> Array:
    """Return three random rows (or as many as the shape declares); other open axes have the length ``extent``."""
    shape = port.closed_shape(3, extent)
    random = np.random.default_rng(7)
    if port.datatype == "BYTES":
        return np.array(random.choice(["a", "b", "c"], shape), object)
    if port.datatype == BF16:
        return np.asarray(random.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if port.dtype.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(port.dtype)
    return np.asarray(random.integers(0, 2, shape)).astype(port.dtype)


def _are_alike(together: Array, apart: Array, port: Port) -> bool:
    """Whether results of ``port`` differ at most by the rounding of another order of additions."""
    if together.shape != apart.shape:
        return False
    if port.datatype == BF16:
        together, apart = as_float(together), as_float(apart)
    if together.dtype.kind != "f":
        return bool((together == apart).all())
    rough = 1e-2 if port.datatype in {"FP16", BF16} else 1e-4  # 16 bits round more coarsely
    return bool(np.allclose(together, apart, rtol=rough, atol=rough * 0.1, equal_nan=True))


def as_float(bits: Array) -> Array:
    """Return the float32 values of bfloat16 numbers that are given as uint16 bits."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)
