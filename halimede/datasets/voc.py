"""Pascal VOC: one XML file per picture with its boxes. A sample is a file, a class is counted by its objects.

A document type is refused before it is read: without entities, content cannot grow or reference other files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks, register

#: most bytes of one file, depth of its elements, objects in it, characters of one text
MAX_BYTES, MAX_DEPTH, MAX_OBJECTS, MAX_TEXT = 16 * 1024 * 1024, 32, 100_000, 4096
SIDES = ("xmin", "ymin", "xmax", "ymax")
NAME, SIZE, BOX = "annotation/object/name", "annotation/size/", "annotation/object/bndbox/"
PICTURES = "JPEGImages"


class _FaultError(Exception):
    """The reason why a file is unusable."""


@register("voc", "xml", "pascal voc", "pascalvoc", "voc xml", "voc-xml", "pascal-voc", "pascal-voc-xml")
class Voc(DatasetReader):
    """Annotations in XML."""

    suffixes = frozenset({".xml"})

    def root(self, folder: Path) -> Path:
        """Return the annotations folder of VOC's own layout, if there is one."""
        inner = folder / "Annotations"
        return inner if inner.is_dir() else folder

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:
        """Read one annotation."""
        try:
            if source.size > MAX_BYTES:
                raise _FaultError(f"over {MAX_BYTES >> 20} MiB")
            names, picture = _parse(source)
        except _FaultError as fault:
            tally.fault(source.name, str(fault))
            return True
        pictures = root.parent / PICTURES
        if root.name == "Annotations" and picture and pictures.is_dir():
            name = Path(picture.replace("\\", "/")).name
            if name in {"", ".."} or not (pictures / name).is_file():
                tally.fault(source.name, f"its picture {PICTURES}/{name} does not exist")
                return False  # the picture may appear without a change to this file
        tally.samples += 1
        tally.sort(names)
        return True


def _parse(source: FileBlocks) -> tuple[dict[str, int], str]:
    annotation = _Annotation()
    try:
        for block in source.blocks():
            annotation.parser.Parse(block, False)  # noqa: FBT003  # positional only
        annotation.parser.Parse(b"", True)  # noqa: FBT003
    except expat.ExpatError as error:
        raise _FaultError(f"no XML: {error}") from None
    except (ValueError, LookupError) as error:
        raise _FaultError(f"its encoding cannot be read: {error}") from None
    return annotation.names, annotation.picture


@dataclass(slots=True)
class _Annotation:
    """Content of one file. ``path`` is the parser's position, ``values`` are the texts of the current object."""

    parser: expat.XMLParserType = field(default_factory=expat.ParserCreate)
    names: dict[str, int] = field(default_factory=dict)
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
        raise _FaultError("it declares a document type or entities, which are not read: take them out")

    def _start(self, name: str, _: object) -> None:
        if not self._path and name != "annotation":
            raise _FaultError(f"its root is <{name[:64]}>, not <annotation>")
        self._path.append(name)
        self._text = ""
        if len(self._path) > MAX_DEPTH:
            raise _FaultError(f"its elements are nested over {MAX_DEPTH} deep")

    def _characters(self, text: str) -> None:
        if len(self._text) < MAX_TEXT:
            self._text += text[:MAX_TEXT]

    def _end(self, _: str) -> None:
        path, text = "/".join(self._path), self._text.strip()
        self._path.pop()
        self._text = ""
        if path == "annotation/filename":
            self.picture = text
        elif path == NAME or path.startswith((SIZE, BOX)):
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
            raise _FaultError(f"over {MAX_OBJECTS} objects")
        label = self._values.pop(NAME, "")
        if not label:
            raise _FaultError(f"{which} has no name")
        box = [_number(self._values.pop(BOX + side, ""), f"{which} ({label}): bndbox/{side}") for side in SIDES]
        if box[0] >= box[2] or box[1] >= box[3]:
            raise _FaultError(f"{which} ({label}): its box is empty or inverted: {_sides(box)}")
        width, height = self._size()
        if min(box) < 0 or (width and box[2] > width + 1) or (height and box[3] > height + 1):
            raise _FaultError(f"{which} ({label}): its box {_sides(box)} is not inside of {width:g} x {height:g}")
        self.names[label] = self.names.get(label, 0) + 1

    def _size(self) -> tuple[float, float]:
        """Return width and height, 0 if the file has none."""
        sides = [self._values.get(SIZE + side, "") for side in ("width", "height")]
        width, height = (_number(text, "size") if text else 0.0 for text in sides)
        return width, height


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _FaultError(f"{what} is {text[:32]!r}, not a number" if text else f"{what} is missing") from None
    if not math.isfinite(value):
        raise _FaultError(f"{what} is {text[:32]!r}, not a number")
    return value


def _sides(box: list[float]) -> str:
    return " ".join(f"{value:g}" for value in box)
