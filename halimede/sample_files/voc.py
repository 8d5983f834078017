"""Pascal VOC: one XML file, the annotation, for each picture, with its boxes.

``read_voc`` reads the pictures of a dataset, ``read_annotation`` one file. A file with a document type is refused
before it is read: without entities, content cannot grow or reference other files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from xml.parsers import expat

from halimede.sample_files.rules import PICTURES, SampleFileError, is_set
from halimede.sample_files.samples import LabelledBox, PictureSample
from halimede.sample_files.text_blocks import contains_text, text_blocks

#: the ending of annotations, in small letters
SUFFIX = ".xml"
#: most bytes of a file, depth of its elements, objects in it, and characters of a text; longer texts are cut
MAX_BYTES, MAX_DEPTH, MAX_OBJECTS, MAX_TEXT = 16 * 1024 * 1024, 32, 100_000, 4096
#: the elements of a box: left, top, right and bottom in pixels
SIDES = ("xmin", "ymin", "xmax", "ymax")
#: paths of elements from the root on
NAME_PATH, SIZE_PATH, BOX_PATH = "annotation/object/name", "annotation/size/", "annotation/object/bndbox/"
DIFFICULT_PATH = "annotation/object/difficult"
#: the folders of annotations and of pictures in VOC's own layout
ANNOTATIONS, JPEG_IMAGES = "Annotations", "JPEGImages"
#: folders of pictures, below the folder of the dataset
PICTURE_FOLDERS = (JPEG_IMAGES, "images")
#: endings that are tried for a picture whose name has none
PICTURE_ENDINGS = (*PICTURES, *(ending.upper() for ending in PICTURES))
#: first bytes of a file in which its root element is expected
HEAD_BYTES = 4096


def annotations_folder(folder: Path) -> Path:
    """Return the folder ``Annotations`` of VOC's own layout, else the dataset's folder itself."""
    inner = folder / ANNOTATIONS
    return inner if inner.is_dir() else folder


def layout_folder(annotation: Path) -> Path | None:
    """Return the folder that has the annotation file's folder ``Annotations``; None: it is not in VOC's own layout."""
    return next((parent.parent for parent in annotation.parents if parent.name == ANNOTATIONS), None)


def read_annotation(blocks: Iterable[bytes], size: int) -> VocAnnotation:
    """Return the content of an annotation file of ``size`` bytes, given in blocks.

    Raises SampleFileError, whose message does not have the name of the file.
    """
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
    """Return the path of the picture of an annotation file; None: it does not exist.

    ``folder``: of the dataset. ``picture``: the name in the annotation, which programs write with or without folders,
    without an ending, or as an absolute path of another machine. In each folder the annotation's own name comes last.
    """
    layout = layout_folder(annotation)
    inside = annotation.relative_to(layout / ANNOTATIONS if layout else folder)
    parts = [part for part in picture.replace("\\", "/").split("/") if part not in {"", ".", ".."}]
    names = [
        inside.parent.joinpath(*parts[-1:]),
        *(Path(*parts[index:]) for index in range(max(0, len(parts) - 8), len(parts))),
    ]
    names = (names if parts else []) + [inside.with_suffix("")]
    base = layout or folder
    for parent in (*(base / name for name in PICTURE_FOLDERS), annotation.parent, base):
        for name in names if parent.is_dir() else ():
            for path in _with_endings(parent / name):
                if path.is_file():
                    return path
    return None


def _with_endings(path: Path) -> list[Path]:
    """Return a path that has the ending of a picture; any other path with each of ``PICTURE_ENDINGS``."""
    if path.suffix.lower() in PICTURES:
        return [path]
    return [path.with_name(path.name + ending) for ending in PICTURE_ENDINGS]


def is_annotation(path: Path) -> bool:
    """Whether a file is an annotation, by the ending of its name and its first bytes. Raises OSError."""
    if path.suffix.lower() != SUFFIX:
        return False
    with path.open("rb") as file:
        return contains_text(file.read(HEAD_BYTES), "<annotation")


def read_voc(folder: Path, files: Iterable[Path]) -> list[PictureSample]:
    """Return the pictures of those files that are annotations, with their boxes, without difficult objects.

    ``folder``: of the dataset. Raises SampleFileError and OSError.
    """
    root = annotations_folder(folder)
    return [_sample(folder, file) for file in files if file.is_relative_to(root) and is_annotation(file)]


def _sample(folder: Path, path: Path) -> PictureSample:
    """Return the picture of an annotation file. Raises SampleFileError and OSError."""
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
    """The content of one annotation file.

    Attributes:
        parser: fills this object with what it parses.
        boxes: the objects, difficult ones included.
        picture: the name of the picture, as the file has it; empty: it has none.

    """

    parser: expat.XMLParserType = field(default_factory=expat.ParserCreate)
    boxes: list[LabelledBox] = field(default_factory=list)
    picture: str = ""
    #: the open elements from the root on, the texts of ended elements by path, and the text of the innermost one
    _path: list[str] = field(default_factory=list)
    _values: dict[str, str] = field(default_factory=dict)
    _text: str = ""
    #: how many objects have ended
    _objects: int = 0

    def __post_init__(self) -> None:
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.buffer_text = True

    def _refuse(self, *_: object) -> None:
        """Raise SampleFileError for a document type or an entity."""
        raise SampleFileError("it declares a document type or entities, which are not read: take them out")

    def _start(self, name: str, _: object) -> None:
        """Handle the start of an element. Raises SampleFileError for another root, and for too deep elements."""
        if not self._path and name != "annotation":
            raise SampleFileError(f"its root is <{name[:64]}>, not <annotation>: export it as Pascal VOC")
        self._path.append(name)
        self._text = ""
        if len(self._path) > MAX_DEPTH:
            raise SampleFileError(f"its elements are nested over {MAX_DEPTH} deep")

    def _characters(self, text: str) -> None:
        """Add to the text of the present element."""
        if len(self._text) < MAX_TEXT:
            self._text += text[:MAX_TEXT]

    def _end(self, _: str) -> None:
        """Handle the end of an element: store its text, add the object, or check the size. Raises SampleFileError."""
        path, text = "/".join(self._path), self._text.strip()
        self._path.pop()
        self._text = ""
        if path == "annotation/filename":
            self.picture = text
        elif path in {NAME_PATH, DIFFICULT_PATH} or path.startswith((SIZE_PATH, BOX_PATH)):
            self._values[path] = text
        elif path == "annotation/object":
            self._add_object()
        elif path in {"annotation/size", "annotation"}:
            self._picture_size()

    def _add_object(self) -> None:
        """Check the object that ends here, and add its box. Raises SampleFileError."""
        self._objects += 1
        object_name = f"object {self._objects}"
        if self._objects > MAX_OBJECTS:
            raise SampleFileError(f"over {MAX_OBJECTS} objects")
        label = self._values.pop(NAME_PATH, "")
        if not label:
            raise SampleFileError(f"{object_name} has no name")
        box = [
            _number(self._values.pop(BOX_PATH + side, ""), f"{object_name} ({label}): bndbox/{side}") for side in SIDES
        ]
        if box[0] >= box[2] or box[1] >= box[3]:
            raise SampleFileError(f"{object_name} ({label}): its box is empty or inverted: {_sides(box)}")
        width, height = self._picture_size()
        if min(box) < 0 or (width and box[2] > width + 1) or (height and box[3] > height + 1):
            raise SampleFileError(
                f"{object_name} ({label}): its box {_sides(box)} is not inside of {width:g} x {height:g}"
            )
        x1, y1, x2, y2 = box
        self.boxes.append(LabelledBox(label, x1, y1, x2, y2, is_set(self._values.pop(DIFFICULT_PATH, ""))))

    def _picture_size(self) -> tuple[float, float]:
        """Return width and height of the picture in pixels; 0: the file has none. Raises SampleFileError."""
        sides = [self._values.get(SIZE_PATH + side, "") for side in ("width", "height")]
        width, height = (_number(text, "size") if text else 0.0 for text in sides)
        return width, height


def _number(text: str, name_in_error: str) -> float:
    """Return a text as a finite number. Raises SampleFileError, which begins with ``name_in_error``."""
    try:
        value = float(text)
    except ValueError:
        raise SampleFileError(
            f"{name_in_error} is {text[:32]!r}, not a number" if text else f"{name_in_error} is missing"
        ) from None
    if not math.isfinite(value):
        raise SampleFileError(f"{name_in_error} is {text[:32]!r}, not a number")
    return value


def _sides(box: list[float]) -> str:
    """Return the sides of a box as text, for errors."""
    return " ".join(f"{value:g}" for value in box)
