"""Checks ONNX files before any library reads them, by content and not by name: ``check_model``.

| content | result |
|---|---|
| pickle, PyTorch's ``.pt`` and ``.pth`` (pickles in a zip), NumPy files with objects | refused: reading one runs code |
| HDF5 (Keras), TensorFlow Lite, safetensors, GGUF, ORT's own format, arrays, archives | refused, with what to do |
| ONNX with weights in external files | these must be regular files in the model's folder, and long enough; no links |
| ONNX with operators that ONNX Runtime lacks | refused: they come in libraries, which are never loaded |

Operators and external files are read from the file itself (``halimede.system.onnx_file``). ONNX Runtime cannot report
them, because it opens external files while it loads.
"""

from __future__ import annotations

import codecs
import mmap
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from halimede.inference.model import ModelError, UnsafeModelError
from halimede.system.onnx_file import MalformedProtobufError, MessageType, ProtobufRecord, records

#: parts of error texts
EXPORT = "export it to ONNX"
GIVE = "give the model's file"
RUNS_CODE = "reading it runs the code in it"
NOT_ONNX = "is not an ONNX model: it is"
#: domains of operators that ONNX Runtime includes
DOMAINS = frozenset({
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training",
    "com.microsoft", "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc",
})  # fmt: skip
#: part of a location of weights that ONNX Runtime interprets as an address in memory
MEMORY_MARK = "_ORT_MEM_ADDR_"
#: first bytes of a file by which its format is recognised
HEAD_BYTES = 512
#: most members of a zip archive that are looked at
MAX_MEMBERS = 10_000
#: position of the bytes that show another format, the bytes, and the message for each
FOREIGN_FORMATS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89HDF\r\n\x1a\n", f"{NOT_ONNX} HDF5, such as Keras writes: {EXPORT} (tf2onnx)"),
    (0, b"GGUF", f"{NOT_ONNX} GGUF: {EXPORT}"),
    (
        0,
        b"\x1f\x8b",
        f"{NOT_ONNX} compressed: give an archive (.tar.gz, .zip) that holds the ONNX file, or the file itself",
    ),
    (0, b"BZh", f"{NOT_ONNX} compressed: give the ONNX file itself"),
    (0, b"\xfd7zXZ\x00", f"{NOT_ONNX} compressed: give the ONNX file itself"),
    (0, b"\xff\xd8\xff", f"{NOT_ONNX} a JPEG picture: {GIVE}"),
    (0, b"\x89PNG\r\n\x1a\n", f"{NOT_ONNX} a PNG picture: {GIVE}"),
    (4, b"TFL3", f"{NOT_ONNX} TensorFlow Lite: set spec.format to tflite, or {EXPORT} (tf2onnx)"),
    (4, b"ORTM", "is in ONNX Runtime's own format: give the ONNX file"),
    (8, b'{"', f"is safetensors, weights without a model: {EXPORT}"),
    (257, b"ustar", "is a tar archive: give the ONNX file in it"),
)
#: beginnings of texts that are often stored in place of a model, in small letters, and the message for each
TEXT_FORMATS: tuple[tuple[str, str], ...] = (
    ("version https://git-lfs", "it is a pointer of Git LFS: run `git lfs pull` where it comes from"),
    ("<!doctype html", "it is a web page: download the file itself"),
    ("<html", "it is a web page: download the file itself"),
    ("", f"it is text: {GIVE}"),
)
#: the beginning of a pickle: protocols 2 to 5 begin with their number, the older ones with text
_pickle_start = re.compile(rb"\x80[\x02-\x05]|\(*c[\w.]+\n[\w.]+\n|\([dlip]\w*\d*\n|\(i[\w.]+\n[\w.]+\n")
#: the header of a NumPy file whose array, or a field of it, holds objects
_object_header = re.compile(rb"'descr':\s*(?:'\|?O|.{0,300}'\|?O\d*')", re.DOTALL)


def check_model(path: Path) -> None:
    """Raise ModelError if a file is no ONNX model, UnsafeModelError if ONNX Runtime must not open it, or OSError."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        check_head(path, head, file)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                _check_records(path, records(content))
            except MalformedProtobufError as error:
                cause = _text_format(head) or str(error)
                raise ModelError(f"the model file {path} is not an ONNX model that can run here: {cause}") from error


def _text_format(head: bytes) -> str:
    """Return the message for a file that begins with text; empty if its first bytes are no text."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head).lower()  # the last character may be cut
    except UnicodeDecodeError:
        return ""
    if not all(character.isprintable() or character in "\t\r\n" for character in text):
        return ""
    return next(description for begin, description in TEXT_FORMATS if text.lstrip().startswith(begin))


def check_head(path: Path, head: bytes, file: BinaryIO) -> None:
    """Raise ModelError, or UnsafeModelError, if the first bytes of a file, ``head``, show that it is not ONNX.

    ``file``: the open file, whose members are read if it is a zip archive.
    """
    if _pickle_start.match(head):
        raise UnsafeModelError(f"the model file {path} is a pickle, and {RUNS_CODE}: {EXPORT}")
    if head.startswith(b"\x93NUMPY"):
        raise _numpy_error(path, head)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise _zip_error(path, file)
    for position, magic, text in FOREIGN_FORMATS:
        if head.startswith(magic, position):
            raise ModelError(f"the model file {path} {text}")


def _numpy_error(path: Path, head: bytes) -> ModelError:
    """Return the error for a file that contains NumPy's format: UnsafeModelError if it may hold objects."""
    if _object_header.search(head):
        return UnsafeModelError(f"the model file {path} is a NumPy file with objects, which are pickled: {EXPORT}")
    return ModelError(f"the model file {path} is a NumPy array, not a model: {EXPORT}")


def _zip_error(path: Path, file: BinaryIO) -> ModelError:
    """Return the error for a zip archive: UnsafeModelError if it contains a pickle."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()[:MAX_MEMBERS]
            names = [member.filename for member in members]
            if any(name.endswith(".pkl") for name in names):
                return UnsafeModelError(
                    f"the model file {path} is PyTorch's (a pickle in a zip), and {RUNS_CODE}: {EXPORT} (torch.onnx)"
                )
            for member in (member for member in members if member.filename.endswith(".npy")):
                with archive.open(member) as inner:
                    if isinstance(error := _numpy_error(path, inner.read(HEAD_BYTES)), UnsafeModelError):
                        return error
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        return ModelError(f"the model file {path} is a damaged zip archive: {error}")
    if any(name.endswith(".npy") for name in names):
        return ModelError(f"the model file {path} has NumPy arrays, not a model: {EXPORT}")
    return ModelError(f"the model file {path} is a zip archive: give the ONNX file in it")


def _check_records(path: Path, file_records: Iterator[ProtobufRecord]) -> None:
    """Raise UnsafeModelError for foreign operators, and UnsafeModelError or ModelError for bad external data.

    Operators are judged after the last record, because a model may define its own functions after their use.
    """
    foreign: dict[str, str] = {}
    own: set[str] = set()
    sizes: dict[str, int] = {}
    for record in file_records:
        domain = record.texts.get("domain", "")
        if record.kind is MessageType.FUNCTION:
            own.add(domain)
        elif record.kind is MessageType.NODE and domain not in DOMAINS:
            foreign.setdefault(domain, record.texts.get("name", ""))
        elif record.entries:
            _check_external(path, record, sizes)
    for domain, operator in foreign.items():
        if domain not in own:
            raise UnsafeModelError(
                f"the model file {path} needs the operator {operator[:100]!r} of {domain[:100]!r}, which comes in a "
                "library, and none is ever loaded: export it with operators of ONNX"
            )


def _check_external(path: Path, record: ProtobufRecord, sizes: dict[str, int]) -> None:
    """Raise UnsafeModelError or ModelError if a tensor's data are not within a regular file in the model's folder.

    ``sizes``: bytes of the files by location, which this function fills. Repeated keys of a record are refused,
    because readers differ in which one they use.
    """
    name = record.texts.get("name", "")[:100]
    entries = dict(record.entries)
    if len(entries) != len(record.entries) or "location" not in entries:
        raise UnsafeModelError(f"the model file {path} does not give a valid location for the data of tensor {name!r}")
    location = entries["location"]
    if location not in sizes:
        sizes[location] = _size_within(path, location, name)
    try:
        offset, length = (int(entries.get(key) or "0", 10) for key in ("offset", "length"))
    except ValueError as error:
        raise ModelError(
            f"the model file {path} has an offset or a length that is no number, for tensor {name!r}: {error}"
        ) from error
    if min(offset, length) < 0 or offset + length > sizes[location]:
        raise UnsafeModelError(
            f"the model file {path} wants bytes {offset} to {offset + length} of {location[:100]!r} for tensor "
            f"{name!r}, which has {sizes[location]}: deliver the matching file"
        )


def _size_within(path: Path, location: str, name: str) -> int:
    """Return the bytes of a file in the model's folder; no part of its path may be a link.

    Raises UnsafeModelError, or ModelError if the file cannot be read.
    """
    parts = PurePosixPath(location).parts
    is_outside = not parts or location.startswith("/") or ".." in parts or "\\" in location or "\0" in location
    if is_outside or MEMORY_MARK in location:
        raise UnsafeModelError(
            f"the model file {path} takes the data of tensor {name!r} from {location[:200]!r}, which is not in its "
            "folder: export it with the data in its folder"
        )
    entry = path.parent
    for i, part in enumerate(parts):
        entry /= part
        try:
            status = entry.lstat()
        except (OSError, ValueError) as error:
            raise ModelError(f"the model's data file {entry} cannot be read: deliver it with the model") from error
        has_expected_type = stat.S_ISREG if i == len(parts) - 1 else stat.S_ISDIR
        if not has_expected_type(status.st_mode):
            problem = "a link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
            raise UnsafeModelError(f"the model's data file {entry} is {problem}: put the file itself there")
    return status.st_size
