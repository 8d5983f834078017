"""The metadata of a model file: its texts, the names of its classes, and the range of its input.

ONNX has pairs of texts (``metadata_props`` of onnx.proto). TensorFlow Lite has the table of its metadata schema, and
files that are appended to it as a zip archive. Neither is checked by a runtime, so both are bounded and may be wrong.
"""

from __future__ import annotations

import ast
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from halimede.api.model_formats import ONNX, TFLITE, format_of
from halimede.inference.model import ModelError

#: the modules with a function ``metadata`` of a path
READERS = {ONNX: "halimede.inference.runtimes.onnx_graph", TFLITE: "halimede.inference.runtimes.tflite"}
#: bytes of a text, and number of texts
MAX_TEXT = 1024 * 1024
MAX_TEXTS = 256
MAX_CLASSES = 10_000
MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """What a file tells of itself. ``mean`` and ``std``: of values of 0 to 255. ``labels``: names of its classes."""

    texts: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def has_range(self) -> bool:
        """Whether values can be scaled by ``mean`` and ``std``: as many finite numbers, none of which divides by 0."""
        are_finite = all(map(math.isfinite, (*self.mean, *self.std)))
        return 0 < len(self.mean) == len(self.std) and are_finite and all(self.std)


def read_metadata(path: Path, file_format: str) -> FileMetadata:
    """Return the metadata of a file; nothing if it has none, or cannot be read so. The file was checked before."""
    form = format_of(file_format)
    if form not in READERS or not path.is_file():
        return FileMetadata()
    try:
        metadata: FileMetadata = import_module(READERS[form]).metadata(path)
    except (ImportError, ModelError, OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return FileMetadata()  # who opens the file reports it
    except (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):  # a damaged or encrypted archive
        return FileMetadata()
    return metadata


def class_names(text: str) -> tuple[str, ...]:
    """Return names of classes from a text: a list, or a dict by index, as Python or JSON; else none."""
    try:
        value = ast.literal_eval(text)
        if isinstance(value, dict) and sorted(value, key=str) == sorted(range(len(value)), key=str):
            value = [value[index] for index in range(len(value))]
        if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_CLASSES:
            return ()
        return tuple(str(name)[:MAX_NAME] for name in value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # ValueError: of an int of 4,300 digits
        return ()
