"""The metadata of a model file: its texts, the names of its classes, and the range of its input.

ONNX has pairs of texts (``metadata_props`` of onnx.proto). TensorFlow Lite has the table of its metadata schema, and
files that are appended to it as a zip archive. No runtime checks metadata: it may be wrong, so what is read is bounded.
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
from typing import Any

from halimede.api.model_formats import ONNX, TFLITE, format_of
from halimede.inference.model import ModelError

#: the module of each format with the functions ``metadata`` and ``graph_input``, which take the path of a file
READERS = {ONNX: "halimede.inference.runtimes.onnx_graph", TFLITE: "halimede.inference.runtimes.tflite"}
#: most bytes of a text
MAX_TEXT = 1024 * 1024
#: most texts of a file
MAX_TEXTS = 256
#: most classes
MAX_CLASSES = 10_000
#: most characters of the name of a class
MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """What a file tells of itself. Each field is empty if the file does not have it.

    Attributes:
        texts: by the file's own keys; for TensorFlow Lite by name, description, version, author and license.
        labels: names of the model's classes, in order.
        mean: what is subtracted from pixels of 0 to 255, one number or one for each channel.
        std: by what the difference is divided then, as many numbers.

    """

    texts: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def has_range(self) -> bool:
        """Whether pixels can be scaled by ``mean`` and ``std``: as many finite numbers each, and no ``std`` is 0."""
        are_finite = all(map(math.isfinite, (*self.mean, *self.std)))
        return 0 < len(self.mean) == len(self.std) and are_finite and all(self.std)


def read_metadata(path: Path, file_format: str) -> FileMetadata:
    """Return the metadata of a file; empty if there is none, or if the file or its format cannot be read.

    Errors are left to whoever opens the file.
    """
    metadata: FileMetadata | None = call_reader("metadata", path, file_format)
    return metadata or FileMetadata()


def call_reader(function: str, path: Path, file_format: str) -> Any:
    """Return what a function of READERS returns for a file; None if the file or its format cannot be read."""
    form = format_of(file_format)
    if form not in READERS or not path.is_file():
        return None
    try:
        return getattr(import_module(READERS[form]), function)(path)
    except (ImportError, ModelError, OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return None
    except (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):  # of an archive that is appended to the file
        return None


def class_names(text: str) -> tuple[str, ...]:
    """Return the names of classes in a text: a list, or a dict by index 0, 1, ..., as a Python literal.

    There are none in any other text, or if they are more than MAX_CLASSES. Names are cut to MAX_NAME characters.
    """
    try:
        value = ast.literal_eval(text)
        if isinstance(value, dict) and sorted(value, key=str) == sorted(range(len(value)), key=str):
            value = [value[index] for index in range(len(value))]
        if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_CLASSES:
            return ()
        return tuple(str(name)[:MAX_NAME] for name in value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # ValueError: of an int of 4,300 digits
        return ()
