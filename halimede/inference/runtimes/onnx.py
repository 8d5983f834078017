"""Opens ONNX files with ONNX Runtime, on the CPU: the runtime of the format onnx (``session.RUNTIMES``).

Only the file and its external weights are loaded, never libraries of custom operators: ``file_checks`` refuses other
files before ONNX Runtime reads a byte. ONNX Runtime's own session is used as the ``RuntimeSession``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

# read at import: without it ONNX Runtime writes to the user's home and sends telemetry
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime as ort
from onnxruntime import InferenceSession

from halimede.inference.file_checks import check_model
from halimede.inference.model import Array, ModelError
from halimede.inference.session import reason

__all__ = ["InferenceSession", "open_session", "run_bits"]

#: the number of bfloat16 in onnx.proto
ONNX_BFLOAT16 = 16


def open_session(path: Path, threads: int) -> InferenceSession:
    """Load a file, and its external weights from its folder. Raises ModelError, OSError.

    ``threads``: of one call; 0: one for each core.
    """
    check_model(path)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3  # errors are raised; warnings on standard error would go to no log
    # Idle threads sleep: on an edge node other processes need the cores too.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # whatever the file's name: ORT's own format was not checked and must not be loaded
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        return InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"the model file {path} is not an ONNX model that can run here: {reason(error)}") from error


def run_bits(
    session: InferenceSession, feeds: Mapping[str, Array], outputs: Sequence[str], bits: Collection[str]
) -> list[Array]:
    """Return the named outputs of a call with tensors of bfloat16, for which NumPy has no type.

    ``bits``: the names of the inputs and outputs of bfloat16, whose arrays are uint16 with the same bits.
    Raises ONNX Runtime's errors.
    """
    inputs = {}
    for name, array in feeds.items():
        if name in bits:
            inputs[name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array), ONNX_BFLOAT16)
        else:
            inputs[name] = ort.OrtValue.ortvalue_from_numpy(array)
    values = session.run_with_ort_values(list(outputs), inputs)
    return [
        _bits_of(value) if name in bits else np.asarray(value.numpy())
        for name, value in zip(outputs, values, strict=True)
    ]


def _bits_of(value: ort.OrtValue) -> Array:
    """Return a copy of a bfloat16 tensor's bits as uint16 in its shape."""
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    data = ctypes.string_at(value.data_ptr(), count * 2) if count else b""
    return np.frombuffer(data, np.uint16).reshape(shape)
