"""Pictures on disk as camera messages, for ``publish`` and ``replay``.

``find`` and ``check_sizes`` check all pictures before the first is sent; ``payload`` reads one at a time.
"""

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
from halimede.picture_files import Encoding, encoding_of_file, files_below

#: most bytes that topic and properties add to a message, and that a frame's fields add to a picture
TOPIC_BYTES, FRAME_BYTES = 512, 512


@dataclass(frozen=True, slots=True)
class InlineImage:
    """A picture file, its encoding by its first bytes, and its number of bytes."""

    path: Path
    encoding: Encoding
    size: int


def find(paths: Sequence[str]) -> tuple[list[InlineImage], int]:
    """Return the pictures of files and folders (recursively, by name), and the number of other files in the folders.

    Raises HalimedeError for a path that is missing, unreadable or not a picture, and without any picture.
    """
    pictures: list[InlineImage] = []
    other_files = 0
    for path in map(Path, paths):
        if path.is_dir():
            probed = [_probe(file) for file in files_below(path)]
            pictures += [picture for picture in probed if picture]
            other_files += probed.count(None)
            continue
        if not path.exists():
            raise HalimedeError(f"{path}: there is no such file or folder")
        picture = _probe(path)
        if picture is None:
            problem = "this is neither JPEG nor PNG: convert it" if path.stat().st_size else "the file is empty"
            raise HalimedeError(f"{path}: {problem}")
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
    """Return the names of the folders if the pictures come folder by folder, as from class folders; else none.

    That needs several folders, and more pictures than folders: one picture each shows no order.
    """
    folders = list(dict.fromkeys(picture.path.parent for picture in pictures))
    changes = sum(a.path.parent != b.path.parent for a, b in itertools.pairwise(pictures))
    several = len(folders) > 1 and changes == len(folders) - 1 and len(pictures) > len(folders)
    return [folder.name for folder in folders] if several else []


def limit(max_packet: int, *, bare: bool) -> int:
    """Return the most bytes of a picture on a bus with packets of at most ``max_packet`` bytes.

    ``bare``: it is sent as a file, else in a frame.
    """
    size = min(codec.MAX_BYTES, max_packet - TOPIC_BYTES)
    return size if bare else size - FRAME_BYTES


def payload(picture: InlineImage, camera: str, sequence: int, id_: bytes, *, bare: bool) -> bytes:
    """Return a camera message: an upright picture in a frame with this id (16 bytes), or (``bare``) the file as it is.

    Raises OSError if the file cannot be read, and HalimedeError if it must be turned without the packages for that.
    """
    data = picture.path.read_bytes()
    if bare:
        return data
    if orientation_of(data) != UPRIGHT:
        data = _upright(picture.path, data)
    name = file_name(picture.path.name)
    frame = Frame(id=id_, camera=camera, file=name, sequence=sequence, encoding=picture.encoding, data=memoryview(data))
    return codec.encode(topics.REQUEST, frame)


def count_rotated(pictures: Sequence[InlineImage]) -> int:
    """Return the number of pictures that EXIF says to turn, because they are not stored upright. Raises OSError."""
    return sum(orientation_of(picture.path.read_bytes()) != UPRIGHT for picture in pictures)


def _upright(path: Path, data: bytes) -> bytes:
    """Return a picture file that is turned upright. Raises HalimedeError without the packages for that."""
    try:
        from halimede.frames.orientation import upright  # numpy and Pillow, which upright pictures do not need
    except ModuleNotFoundError as error:
        text = f"{path}: to turn it upright needs {error.name}: pip install 'halimede[worker]', or send it with --bare"
        raise HalimedeError(text) from error
    return upright(data)


def _probe(path: Path) -> InlineImage | None:
    """Return the picture in a file; None: the file is no picture. Raises HalimedeError if it cannot be read."""
    try:
        size = path.stat().st_size
        encoding = encoding_of_file(path)
    except OSError as error:
        raise HalimedeError(f"{path}: cannot be read: {error.strerror}") from error
    return InlineImage(path, encoding, size) if encoding else None
