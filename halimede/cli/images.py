"""Pictures on disk as camera messages: found, checked before the first one is sent, and read one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from halimede import codec, topics
from halimede.errors import HalimedeError, TooLargeError
from halimede.image_headers import UPRIGHT, orientation_of
from halimede.messages import Frame
from halimede.names import file_name
from halimede.picture_files import Encoding, files_below, probe

#: bytes that topic and properties add to a message, and that a frame's fields add to a picture
TOPIC_BYTES, FRAME_BYTES = 512, 512


@dataclass(frozen=True, slots=True)
class InlineImage:
    """A file that is a picture, and its bytes."""

    path: Path
    encoding: Encoding
    size: int


def find(paths: Sequence[str]) -> tuple[list[InlineImage], int]:
    """Return the pictures of files and folders (recursively, by name), and the number of other files in folders.

    Raises HalimedeError for a path that is missing or not a picture.
    """
    pictures: list[InlineImage] = []
    other_files = 0
    for path in map(Path, paths):
        if path.is_dir():
            for file in files_below(path):
                picture = _probe(file)
                other_files += picture is None
                pictures += [picture] if picture else []
            continue
        if not path.exists():
            raise HalimedeError(f"{path}: there is no such file or folder")
        picture = _probe(path)
        if picture is None:
            raise HalimedeError(f"{path}: this is neither JPEG nor PNG: convert it")
        pictures.append(picture)
    if not pictures:
        raise HalimedeError(f"{', '.join(paths)}: there is no JPEG or PNG file")
    return pictures, other_files


def check_sizes(pictures: Sequence[InlineImage], limit: int) -> None:
    """Raise TooLargeError for the first picture of more than ``limit`` bytes."""
    for picture in pictures:
        if picture.size > limit:
            text = f"{picture.path}: {picture.size} bytes are more than the {limit} of a message: make it smaller"
            raise TooLargeError(text)


def sorted_by_folder(pictures: Sequence[InlineImage]) -> list[str]:
    """Return the names of the folders if pictures of one folder follow those of another, as in class folders."""
    folders = list(dict.fromkeys(picture.path.parent for picture in pictures))
    changes = sum(a.path.parent != b.path.parent for a, b in itertools.pairwise(pictures))
    several = len(folders) > 1 and changes == len(folders) - 1 and len(pictures) > len(folders)
    return [folder.name for folder in folders] if several else []


def limit(max_packet: int, *, bare: bool) -> int:
    """Return the largest size of a picture on a bus with packets of at most ``max_packet`` bytes."""
    size = min(codec.MAX_BYTES, max_packet - TOPIC_BYTES)
    return size if bare else size - FRAME_BYTES


def payload(picture: InlineImage, camera: str, sequence: int, id_: bytes, *, bare: bool) -> bytes:
    """Return a picture as its camera publishes it: an upright frame with this id, or the unchanged file."""
    data = picture.path.read_bytes()
    if bare:
        return data
    if orientation_of(data) != UPRIGHT:
        data = _upright(picture.path, data)
    name = file_name(picture.path.name)
    frame = Frame(id=id_, camera=camera, file=name, sequence=sequence, encoding=picture.encoding, data=memoryview(data))
    return codec.encode(topics.REQUEST, frame)


def count_rotated(pictures: Sequence[InlineImage]) -> int:
    """Return how many pictures are not upright as they are stored: their EXIF orientation is not 1."""
    return sum(orientation_of(picture.path.read_bytes()) != UPRIGHT for picture in pictures)


def _upright(path: Path, data: bytes) -> bytes:
    try:
        from halimede.frames.orientation import upright  # numpy and Pillow, which upright pictures do not need
    except ModuleNotFoundError as error:
        text = f"{path}: to turn it upright needs {error.name}: pip install 'halimede[worker]', or send it with --bare"
        raise HalimedeError(text) from error
    return upright(data)


def _probe(path: Path) -> InlineImage | None:
    try:
        size = path.stat().st_size
        encoding = probe(path)
    except OSError as error:
        raise HalimedeError(f"{path}: cannot be read: {error.strerror}") from error
    return InlineImage(path, encoding, size) if encoding else None
