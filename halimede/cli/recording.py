"""Writes and reads recordings: folders of frames as files, with ``index.jsonl`` for their times and metadata.

``halimede record`` writes one, ``replay`` reads it. A frame's file is complete before its line is in the index, so that
all files in the index are complete however a recording ended. Pictures are ordinary JPEG and PNG files.
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

#: the name of the index
INDEX = "index.jsonl"
#: suffixes of files, by encoding
ENDINGS = {"jpeg": "jpg", "png": "png", "raw": "raw"}
#: seconds between frames that have no times
PLAIN_GAP_S = 1 / 25


class RecordingEntry(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One line of the index: a frame."""

    #: the name of its file in the folder
    file: str
    #: milliseconds after the first frame
    offset_ms: float
    #: bytes of its file
    size: int
    encoding: Literal["raw", "jpeg", "png"]
    #: hexadecimal; empty: the camera sent a bare picture
    id: str = ""
    #: the number that its camera gave it; 0 for a bare picture
    sequence: int = 0
    #: element type and shape of ``raw`` data
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class RecordingWriter:
    """A recording that is being written: its folder, and the index, open for writing."""

    folder: Path
    index: IO[bytes]
    #: frames so far, and the bytes of their files
    frames: int = 0
    size: int = 0

    def add(self, payload: bytes, offset_ms: float) -> None:
        """Store one camera message, which came ``offset_ms`` after the first one. Blocks on the disk.

        Raises DecodeError for an invalid message, and HalimedeError if it cannot be stored.
        """
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
    """Yield the writer of a new recording. Raises HalimedeError for a folder that is not empty or not writable."""
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
    """Return the frames of a recording by their times; a last line that was cut off is skipped.

    Raises HalimedeError for an index that cannot be read, is invalid or empty.
    """
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
    """Return a recorded frame as a message of ``camera``, with a new id, because it counts as another frame.

    ``sequence``: its new number. A bare picture stays one. Raises HalimedeError if its file cannot be read.
    """
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
    """Return the frame of a camera message; that of a bare picture has an id of zeros. Raises DecodeError."""
    if encoding := encoding_of(payload):
        return Frame(id=bytes(16), encoding=encoding, data=memoryview(payload))
    if not payload:
        raise DecodeError("the message is empty")
    return codec.decode(topics.REQUEST, payload)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Raise HalimedeError in place of an OSError in the block, which writes into ``folder``."""
    try:
        yield
    except OSError as error:
        raise HalimedeError(f"{folder}: cannot be written: {error.strerror}: give a folder with free space") from error
