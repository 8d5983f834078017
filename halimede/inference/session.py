"""The port of model runtimes: an opened file with named inputs and outputs, whichever library runs it.

A runtime is one module with a function that opens its format, and a line in ``RUNTIMES``. It is imported when a file of
its format is opened: a worker with ONNX models loads only ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from halimede.api.model_formats import KNOWN, ONNX, SAVED_MODEL, TFLITE, ModelFormat, format_of
from halimede.errors import cause_of, shorten_middle
from halimede.inference.model import ModelError

MAX_REASON = 300
#: the module of each format's runtime
RUNTIMES = {
    ONNX: "halimede.inference.runtimes.onnx",
    TFLITE: "halimede.inference.runtimes.tflite",
    SAVED_MODEL: "halimede.inference.runtimes.saved_model",
}
#: element types in ONNX Runtime's words, which all runtimes use
TYPE_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(kind): f"tensor({name})"
    for kind, name in (
        (np.bool_, "bool"),
        (np.uint8, "uint8"),
        (np.uint16, "uint16"),
        (np.uint32, "uint32"),
        (np.uint64, "uint64"),
        (np.int8, "int8"),
        (np.int16, "int16"),
        (np.int32, "int32"),
        (np.int64, "int64"),
        (np.float16, "float16"),
        (np.float32, "float"),
        (np.float64, "double"),
    )
}


class Declared(Protocol):
    """An input or output as its file declares it. ``shape`` has a number, a name or None for each axis."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def type(self) -> str:
        """Its element type in ONNX Runtime's words, such as ``tensor(float)``."""

    @property
    def shape(self) -> Sequence[Any]:
        """The length of each axis."""


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """An input or output of a runtime that has no such class itself; None in ``shape`` is an open axis."""

    name: str
    type: str
    shape: tuple[int | None, ...]


class RuntimeSession(Protocol):
    """An opened file. Several threads may call ``run`` at a time. Other runtimes than ONNX's have ``runtime``."""

    def get_inputs(self) -> Sequence[Declared]:
        """Return the declared inputs."""

    def get_outputs(self) -> Sequence[Declared]:
        """Return the declared outputs."""

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any]) -> list[Any]:
        """Return the named outputs, in that order. Any exception is about this call alone."""


def type_name(dtype: Any) -> str:
    """Return an element type in ONNX Runtime's words; a type that no tensor of numbers has by its own name."""
    try:
        return TYPE_NAMES.get(np.dtype(dtype), str(dtype))
    except TypeError:
        return str(dtype)


def import_runtime(file_format: str) -> Any:
    """Import the module that opens a format. Raises ModelError if halimede does not read it, or lacks its package."""
    form = format_of(file_format)
    if form is None:
        raise ModelError(
            f"the model's format is {file_format!r}: export it to ONNX and set spec.format to onnx "
            f"(halimede reads {KNOWN}), or name an estimator that reads it"
        )
    try:
        return import_module(RUNTIMES[form])
    except ImportError as error:
        raise ModelError(not_installed(form, cause_of(error))) from error


def not_installed(form: ModelFormat, why: str) -> str:
    """Return the message that a format's package cannot be imported."""
    needs = f"the format {form.name} ({form.title}) needs the package {form.package}"
    return f"{needs}, which cannot be imported here ({why}): run {form.install}"


def open_session(path: Path, file_format: str, threads: int) -> RuntimeSession:
    """Load a file, whatever its inputs and outputs are. ``threads``: of one call; 0: one a core. Raises ModelError."""
    runtime, form = import_runtime(file_format), format_of(file_format)
    if not path.is_file() and not (form and form.folder and path.is_dir()):
        raise ModelError(f"the model file {path} does not exist: check the model's url")
    if path.is_file() and path.stat().st_size == 0:
        raise ModelError(f"the model file {path} is empty: export or download it again")
    try:
        session: RuntimeSession = runtime.open_session(path.resolve(), threads)
    except OSError as error:
        raise ModelError(f"the model file {path} cannot be read: {error.strerror or error}") from error
    return session


def reason(error: Exception) -> str:
    """Return the first line of a runtime's message, shortened to the length of a condition."""
    lines = str(error).strip().splitlines() or [cause_of(error)]
    return shorten_middle(lines[0], MAX_REASON)


def failure(session: RuntimeSession, error: Exception) -> str:
    """Return the message that a call failed."""
    return f"{getattr(session, 'runtime', 'ONNX Runtime')} failed: {reason(error)}"
