"""A recording: a folder of frames as files, and ``index.jsonl`` with their times and metadata.

A frame's file exists under its final name before its line is in the index. So however a recording ended, all files that
its index names are complete. Pictures are ordinary JPEG and PNG files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import msgspec

from halimede import codec, topics
from halimede.errors import DecodeError, HalimedeError
from halimede.messages import Frame
from halimede.picture_files import encoding_of
from halimede.system.files import write_atomic

INDEX = "index.jsonl"
ENDINGS = {"jpeg": "jpg", "png": "png", "raw": "raw"}
#: default seconds between frames
PLAIN_GAP_S = 1 / 25


class RecordingEntry(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One line of the index. ``offset_ms``: after the first frame; ``id``: empty for a bare picture."""

    file: str
    offset_ms: float
    size: int
    encoding: Literal["raw", "jpeg", "png"]
    id: str = ""
    sequence: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class RecordingWriter:
    """A recording that is being written."""

    folder: Path
    index: IO[bytes]
    frames: int = 0
    size: int = 0

    def add(self, payload: bytes, offset_ms: float) -> None:
        """Store one camera message. Raises DecodeError for an invalid frame, HalimedeError if it cannot be stored."""
        frame = read(payload)
        name = f"{self.frames:08}.{ENDINGS[frame.encoding]}"
        data = memoryview(frame.data)
        entry = RecordingEntry(
            file=name,
            offset_ms=round(offset_ms, 3),
            size=data.nbytes,
            encoding=frame.encoding,
            id=bytes(frame.id).hex() if any(frame.id) else "",
            sequence=frame.sequence,
            dtype=frame.dtype,
            shape=tuple(frame.shape),
        )
        with _writable(self.folder):
            write_atomic(self.folder / name, data)
            self.index.write(msgspec.json.encode(entry) + b"\n")
            self.index.flush()
        self.frames += 1
        self.size += data.nbytes


@contextmanager
def create(folder: Path) -> Iterator[RecordingWriter]:
    """Open a new recording; a folder that is not empty is refused."""
    with _writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise HalimedeError(f"{folder}: it is not empty: give a new folder")
        index = (folder / INDEX).open("xb")
    with index:
        yield RecordingWriter(folder, index)
        with _writable(folder):
            os.fsync(index.fileno())


def load(folder: Path) -> list[RecordingEntry]:
    """Read the index of a recording; a last line that was cut off is skipped."""
    path = folder / INDEX
    entries: list[RecordingEntry] = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise HalimedeError(f"{path}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = msgspec.json.decode(line, type=RecordingEntry)
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise HalimedeError(f"{path}, line {number}: {error}: correct or remove the line") from error
        if Path(entry.file).name != entry.file or entry.offset_ms < 0:
            raise HalimedeError(f"{path}, line {number}: a file of this folder or a time is missing: correct the line")
        entries.append(entry)
    if not entries:
        raise HalimedeError(f"{path}: it lists no frames: record again, or remove it to use plain pictures")
    return sorted(entries, key=lambda entry: entry.offset_ms)


def payload(folder: Path, entry: RecordingEntry, camera: str, sequence: int) -> bytes:
    """Return a frame as its camera publishes it, with a new id, because it counts as another frame."""
    try:
        data = (folder / entry.file).read_bytes()
    except OSError as error:
        raise HalimedeError(f"{folder / entry.file}: cannot be read: {error.strerror}") from error
    if not entry.id and entry.encoding != "raw":
        return data
    frame = Frame(
        id=secrets.token_bytes(16),
        camera=camera,
        sequence=sequence,
        encoding=entry.encoding,
        dtype=entry.dtype,
        shape=list(entry.shape),
        data=memoryview(data),
    )
    return codec.encode(topics.REQUEST, frame)


def read(payload: bytes) -> Frame:
    """Read a camera message; a bare picture has an id of zeros. Raises DecodeError."""
    if encoding := encoding_of(payload):
        return Frame(id=bytes(16), encoding=encoding, data=memoryview(payload))
    if not payload:
        raise DecodeError("the message is empty")
    return codec.decode(topics.REQUEST, payload)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HalimedeError(f"{folder}: cannot be written: {error.strerror}: give a folder with free space") from error
