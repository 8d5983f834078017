"""Pascal VOC: one XML file for each picture, with its boxes.

A document type is refused before it is read: without entities, content cannot grow or reference other files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from xml.parsers import expat

from halimede.sample_files.rules import PICTURES, SampleFileError, is_set
from halimede.sample_files.samples import LabelledBox, PictureSample
from halimede.sample_files.text_blocks import contains_text, text_blocks

SUFFIX = ".xml"
#: most bytes of one file, depth of its elements, objects in it, characters of one text
MAX_BYTES, MAX_DEPTH, MAX_OBJECTS, MAX_TEXT = 16 * 1024 * 1024, 32, 100_000, 4096
SIDES = ("xmin", "ymin", "xmax", "ymax")
NAME, SIZE, BOX = "annotation/object/name", "annotation/size/", "annotation/object/bndbox/"
DIFFICULT = "annotation/object/difficult"
#: the folders of VOC's own layout
ANNOTATIONS, JPEG_IMAGES = "Annotations", "JPEGImages"
#: folders of pictures, below the folder of the dataset
PICTURE_FOLDERS = (JPEG_IMAGES, "images")
#: endings of a picture whose annotation names none
ENDINGS = (*PICTURES, *(ending.upper() for ending in PICTURES))
#: bytes at the begin of a file in which its root element is
HEAD = 4096


def annotations_folder(folder: Path) -> Path:
    """Return the annotations folder of VOC's own layout, if there is one."""
    inner = folder / ANNOTATIONS
    return inner if inner.is_dir() else folder


def layout_folder(annotation: Path) -> Path | None:
    """Return the folder with ``Annotations`` and ``JPEGImages`` that an annotation file is in, if there is one."""
    return next((parent.parent for parent in annotation.parents if parent.name == ANNOTATIONS), None)


def read_annotation(blocks: Iterable[bytes], size: int) -> VocAnnotation:
    """Read one annotation. Raises SampleFileError without the name of the file."""
    if size > MAX_BYTES:
        raise SampleFileError(f"over {MAX_BYTES >> 20} MiB")
    annotation = VocAnnotation()
    try:
        for block in blocks:
            annotation.parser.Parse(block, False)  # noqa: FBT003  # positional only
        annotation.parser.Parse(b"", True)  # noqa: FBT003
    except expat.ExpatError as error:
        raise SampleFileError(f"no XML: {error}") from None
    except (ValueError, LookupError) as error:
        raise SampleFileError(f"its encoding cannot be read: {error}") from None
    return annotation


def shown_name(picture: str) -> str:
    """Return the name of a picture without its folders."""
    return PurePosixPath(picture.replace("\\", "/")).name


def find_picture(folder: Path, annotation: Path, picture: str) -> Path | None:
    """Return the picture of an annotation file, by its name in the annotation; None: it does not exist.

    ``folder``: that of the dataset. Programs write names with folders and without, without an ending, or absolute ones
    of another machine. The annotation's own name counts last.
    """
    layout = layout_folder(annotation)
    inside = annotation.relative_to(layout / ANNOTATIONS if layout else folder)
    parts = [part for part in picture.replace("\\", "/").split("/") if part not in {"", ".", ".."}]
    names = [
        inside.parent.joinpath(*parts[-1:]),
        *(Path(*parts[i:]) for i in range(max(0, len(parts) - 8), len(parts))),
    ]
    names = (names if parts else []) + [inside.with_suffix("")]
    base = layout or folder
    for parent in (*(base / name for name in PICTURE_FOLDERS), annotation.parent, base):
        for name in names if parent.is_dir() else ():
            for path in _with_endings(parent / name):
                if path.is_file():
                    return path
    return None


def _with_endings(path: Path) -> Iterator[Path]:
    if path.suffix.lower() in PICTURES:
        yield path
    else:
        yield from (path.with_name(path.name + ending) for ending in ENDINGS)


def is_annotation(path: Path) -> bool:
    """Whether a file is an annotation, by its name and its first bytes. Raises OSError."""
    if path.suffix.lower() != SUFFIX:
        return False
    with path.open("rb") as file:
        return contains_text(file.read(HEAD), "<annotation")


def read_voc(folder: Path, files: Iterable[Path]) -> list[PictureSample]:
    """Return the pictures of those files that are annotations, with their boxes, without difficult objects.

    Raises SampleFileError and OSError.
    """
    root = annotations_folder(folder)
    return [_sample(folder, file) for file in files if file.is_relative_to(root) and is_annotation(file)]


def _sample(folder: Path, path: Path) -> PictureSample:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            annotation = read_annotation(text_blocks(file.fileno(), path.name, 0, size), size)
        picture = find_picture(folder, path, annotation.picture)
        if picture is None or not picture.resolve().is_relative_to(folder.resolve()):
            name = shown_name(annotation.picture) or path.stem
            raise SampleFileError(f"its picture {name} is not in this folder: put it there, or remove this file")
    except SampleFileError as error:
        raise SampleFileError(f"{path}: {error}") from None
    return PictureSample(picture, [box for box in annotation.boxes if not box.is_left_out])


@dataclass(slots=True)
class VocAnnotation:
    """Content of one file: the name of its picture, and its objects."""

    parser: expat.XMLParserType = field(default_factory=expat.ParserCreate)
    boxes: list[LabelledBox] = field(default_factory=list)
    picture: str = ""
    _path: list[str] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _text: str = ""
    _objects: int = 0

    def __post_init__(self) -> None:
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.buffer_text = True

    def _refuse(self, *_: object) -> None:
        raise SampleFileError("it declares a document type or entities, which are not read: take them out")

    def _start(self, name: str, _: object) -> None:
        if not self._path and name != "annotation":
            raise SampleFileError(f"its root is <{name[:64]}>, not <annotation>: export it as Pascal VOC")
        self._path.append(name)
        self._text = ""
        if len(self._path) > MAX_DEPTH:
            raise SampleFileError(f"its elements are nested over {MAX_DEPTH} deep")

    def _characters(self, text: str) -> None:
        if len(self._text) < MAX_TEXT:
            self._text += text[:MAX_TEXT]

    def _end(self, _: str) -> None:
        path, text = "/".join(self._path), self._text.strip()
        self._path.pop()
        self._text = ""
        if path == "annotation/filename":
            self.picture = text
        elif path in {NAME, DIFFICULT} or path.startswith((SIZE, BOX)):
            self._values[path] = text
        elif path == "annotation/object":
            self._object()
        elif path in {"annotation/size", "annotation"}:
            self._size()

    def _object(self) -> None:
        """Check one object and count it."""
        self._objects += 1
        which = f"object {self._objects}"
        if self._objects > MAX_OBJECTS:
            raise SampleFileError(f"over {MAX_OBJECTS} objects")
        label = self._values.pop(NAME, "")
        if not label:
            raise SampleFileError(f"{which} has no name")
        box = [_number(self._values.pop(BOX + side, ""), f"{which} ({label}): bndbox/{side}") for side in SIDES]
        if box[0] >= box[2] or box[1] >= box[3]:
            raise SampleFileError(f"{which} ({label}): its box is empty or inverted: {_sides(box)}")
        width, height = self._size()
        if min(box) < 0 or (width and box[2] > width + 1) or (height and box[3] > height + 1):
            raise SampleFileError(f"{which} ({label}): its box {_sides(box)} is not inside of {width:g} x {height:g}")
        left, top, right, bottom = box
        is_difficult = is_set(self._values.pop(DIFFICULT, ""))
        self.boxes.append(LabelledBox(label, left, top, right, bottom, is_left_out=is_difficult))

    def _size(self) -> tuple[float, float]:
        """Return width and height, 0 if the file has none."""
        sides = [self._values.get(SIZE + side, "") for side in ("width", "height")]
        width, height = (_number(text, "size") if text else 0.0 for text in sides)
        return width, height


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise SampleFileError(f"{what} is {text[:32]!r}, not a number" if text else f"{what} is missing") from None
    if not math.isfinite(value):
        raise SampleFileError(f"{what} is {text[:32]!r}, not a number")
    return value


def _sides(box: list[float]) -> str:
    return " ".join(f"{value:g}" for value in box)
