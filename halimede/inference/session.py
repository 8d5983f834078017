"""The interface of model runtimes: an opened file with named inputs and outputs, whichever library runs it.

A runtime is a module with a function ``open_session(path, threads)``, and a line in ``RUNTIMES``. It is imported when a
file of its format is opened, so a worker with ONNX models loads only ONNX Runtime. ``FileModel`` and ``TensorModel``
call the ``RuntimeSession`` that ``open_session`` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from halimede.api.model_formats import FORMAT_NAMES, ONNX, SAVED_MODEL, TFLITE, ModelFormat, format_of
from halimede.errors import cause_of, shorten_middle
from halimede.inference.model import ModelError

#: most characters of a runtime's message
MAX_REASON = 300
#: the module of each format's runtime
RUNTIMES = {
    ONNX: "halimede.inference.runtimes.onnx",
    TFLITE: "halimede.inference.runtimes.tflite",
    SAVED_MODEL: "halimede.inference.runtimes.saved_model",
}
#: the element types that NumPy and ONNX Runtime name alike
NUMPY_NAMES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "double")
#: ONNX Runtime's name of each element type, which all runtimes use
TYPE_NAMES: dict[np.dtype[Any], str] = {np.dtype(name): f"tensor({name})" for name in NUMPY_NAMES}
TYPE_NAMES[np.dtype(np.float32)] = "tensor(float)"


class Declared(Protocol):
    """An input or output as its file declares it; ONNX Runtime's ``NodeArg`` has the same attributes."""

    @property
    def name(self) -> str:
        """The name by which sessions take or return the tensor."""

    @property
    def type(self) -> str:
        """The element type in ONNX Runtime's words, such as ``tensor(float)``."""

    @property
    def shape(self) -> Sequence[Any]:
        """The length of each axis, batch axis included; a name or None for an open one."""


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """A ``Declared``, which describes the fields, for runtimes that have no class of their own for it.

    None in ``shape`` is an open axis.
    """

    name: str
    type: str
    shape: tuple[int | None, ...]


class RuntimeSession(Protocol):
    """An opened model file. Several threads may call ``run`` at a time.

    An implementation for another runtime than ONNX's also has the attribute ``runtime``: its name for error texts.
    """

    def get_inputs(self) -> Sequence[Declared]:
        """Return the inputs as the file declares them."""

    def get_outputs(self) -> Sequence[Declared]:
        """Return the outputs as the file declares them."""

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any]) -> list[Any]:
        """Return the named outputs, in that order, for one array for each input. Blocks.

        May raise any exception; the session can be called again afterwards.
        """


def type_name(dtype: Any) -> str:
    """Return an element type (anything that ``np.dtype`` takes) in ONNX Runtime's words; other types by their text."""
    try:
        return TYPE_NAMES.get(np.dtype(dtype), str(dtype))
    except TypeError:
        return str(dtype)


def import_runtime(file_format: str) -> Any:
    """Return the module that opens a format. Raises ModelError for an unknown format, or if its package is missing."""
    form = format_of(file_format)
    if form is None:
        raise ModelError(
            f"the model's format is {file_format!r}: export it to ONNX and set spec.format to onnx "
            f"(halimede reads {FORMAT_NAMES}), or name an estimator that reads it"
        )
    try:
        return import_module(RUNTIMES[form])
    except ImportError as error:
        raise ModelError(not_installed(form, cause_of(error))) from error


def not_installed(form: ModelFormat, why: str) -> str:
    """Return the message that a format's package cannot be imported, because of ``why``."""
    needs = f"the format {form.name} ({form.title}) needs the package {form.package}"
    return f"{needs}, which cannot be imported here ({why}): run {form.install}"


def open_session(path: Path, file_format: str, threads: int) -> RuntimeSession:
    """Load a file (or folder) of a format, whatever its inputs and outputs are. Raises ModelError.

    ``threads``: of one call; 0: one for each core.
    """
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
    """Return the first line of a runtime's message, shortened to MAX_REASON characters."""
    lines = str(error).strip().splitlines() or [cause_of(error)]
    return shorten_middle(lines[0], MAX_REASON)


def failure(session: RuntimeSession, error: Exception) -> str:
    """Return the message that a call of a session failed with an error: the runtime's name and the reason."""
    return f"{getattr(session, 'runtime', 'ONNX Runtime')} failed: {reason(error)}"
