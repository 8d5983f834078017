"""COCO: one JSON file with ``images``, ``annotations`` and ``categories``.

The three may come in any order: if annotations come before the entries that they reference, the file is read twice.
"""

from __future__ import annotations

import hashlib
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from halimede.sample_files.json_lists import JsonLists
from halimede.sample_files.repeated_samples import RepeatedSamples
from halimede.sample_files.rules import SampleFileError, is_set
from halimede.sample_files.samples import LabelledBox, PictureSample
from halimede.sample_files.text_blocks import contains_text

SUFFIX = ".json"
IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"
MAX_CATEGORIES = 10_000
#: ids below this take one bit each (16 MB); so many others are remembered, and with more of them images are not checked
SMALL_IDS, OTHER_IDS = 1 << 27, 200_000
#: most images whose names are compared with those of other files
MAX_COMPARED = 250_000
#: most boxes of a file whose boxes are read
MAX_BOXES = 2_000_000
EMPTY_BOX = "its bbox is empty"
#: the name of a file that has all boxes of its folder
OWN_FILE = "annotations.json"
#: most bytes at the begin of a file that are searched for the names of its lists
HEAD = 1024 * 1024


class CocoImage(msgspec.Struct):
    """An image, as far as it is read."""

    id: Any = None
    file_name: Any = None


class CocoCategory(msgspec.Struct):
    """A category; those with key points describe persons that are also in a file of boxes."""

    id: Any = None
    name: Any = None
    keypoints: Any = None


class CocoAnnotation(msgspec.Struct):
    """An annotation, as far as it is read."""

    id: Any = None
    image_id: Any = None
    category_id: Any = None
    bbox: Any = None
    iscrowd: Any = None


TYPES: dict[str, type[msgspec.Struct]] = {
    IMAGES: CocoImage, ANNOTATIONS: CocoAnnotation, CATEGORIES: CocoCategory,
}  # fmt: skip


class CocoFile:
    """An open file. ``fault`` is called with the name of an unusable entry and the reason.

    ``categories``: the names by id, once ``entries`` has yielded an annotation. ``pictures``: hashes of the names of
    its images, to compare files.
    """

    def __init__(
        self, descriptor: int, size: int, name: str, fault: Callable[[str, str], None], came: Callable[[int], None]
    ) -> None:
        self.categories: dict[Any, str] = {}
        self.has_key_points = False
        self.pictures = array("Q")
        self._ids = _Ids()
        self._lists: set[str] = set()
        self.name = name
        self._fault = fault
        self._open = partial(JsonLists, descriptor, size, name, came)

    def entries(self) -> Iterator[CocoImage | CocoAnnotation]:
        """Yield all usable images, and annotations whose image and category are there. Raises SampleFileError."""
        is_late = False
        for name, number, values in self._open().entries(TYPES):
            if name != ANNOTATIONS:
                self._lists.add(name)
                yield from self._named(name, number, values)
            elif self._lists == {IMAGES, CATEGORIES} and not is_late:
                yield from self._annotations(number, values)
            else:
                is_late = True
        if IMAGES not in self._lists and not self.categories:
            raise SampleFileError(f"{self.name}: it has neither images nor categories: is it a COCO file?")
        if is_late and self.is_labelled:
            for name, number, values in self._open().entries(TYPES):
                if name == ANNOTATIONS:
                    yield from self._annotations(number, values)

    @property
    def rank(self) -> int:
        """The order among files that list the same images: boxes, key points, captions."""
        return 2 if not self.is_labelled else int(self.has_key_points)

    @property
    def is_labelled(self) -> bool:
        """Whether it has categories; a file of captions has none."""
        return CATEGORIES in self._lists

    def _named(self, part: str, begin: int, values: list[Any]) -> Iterator[CocoImage]:
        for number, entry in enumerate(values, begin):
            reason = self._image_fault(entry) if part == IMAGES else self._category_fault(entry)
            if reason:
                self._fault(f"{self.name}: {part}[{number}]", reason)
            elif part == CATEGORIES:
                self.categories[entry.id] = entry.name
                self.has_key_points |= bool(entry.keypoints)
            else:
                if len(self.pictures) <= MAX_COMPARED:
                    digest = hashlib.blake2b(entry.file_name.encode(errors="surrogatepass"), digest_size=8)
                    self.pictures.frombytes(digest.digest())
                yield entry

    def _annotations(self, begin: int, values: list[Any]) -> Iterator[CocoAnnotation]:
        for number, entry in enumerate(values, begin):
            if reason := self._annotation_fault(entry):
                which = f" (id {entry.id})" if entry is not None and is_id(entry.id) else ""
                self._fault(f"{self.name}: {ANNOTATIONS}[{number}]{which}", reason)
            else:
                yield entry

    def _category_fault(self, entry: CocoCategory | None) -> str:
        if entry is None:
            return "no object"
        if not is_id(entry.id):
            return "it has no id"
        if not isinstance(entry.name, str) or not entry.name:
            return f"category {entry.id} has no name"
        if len(self.categories) >= MAX_CATEGORIES:
            return f"over {MAX_CATEGORIES} categories"
        return f"category {entry.id} is there twice" if entry.id in self.categories else ""

    def _image_fault(self, entry: CocoImage | None) -> str:
        if entry is None:
            return "no object"
        if not is_id(entry.id):
            return "it has no id"
        if not isinstance(entry.file_name, str) or not entry.file_name:
            return f"image {entry.id} has no file_name"
        return "" if self._ids.add(entry.id) else f"image {entry.id} is there twice"

    def _annotation_fault(self, entry: CocoAnnotation | None) -> str:
        if entry is None:
            return "no object"
        if not is_id(entry.image_id) or not self._ids.contains(entry.image_id):
            return f"its image_id {entry.image_id!r} is no image of this file"
        if not is_id(entry.category_id) or entry.category_id not in self.categories:
            return f"its category_id {entry.category_id!r} is no category of this file"
        return box_fault(entry.bbox) if entry.bbox else ""


class _Ids:
    """A set of ids in bounded memory."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._others: set[int] = set()
        self._complete = True

    def add(self, key: Any) -> bool:
        """Remember an id; return whether it is new."""
        if isinstance(key, float):
            key = int(key)
        if isinstance(key, int) and 0 <= key < SMALL_IDS:
            if key // 8 >= len(self._bits):
                self._bits.extend(bytes(key // 8 + 1 - len(self._bits)))
            new = not self._bits[key // 8] >> key % 8 & 1
            self._bits[key // 8] |= 1 << key % 8
            return new
        new = hash(key) not in self._others
        if len(self._others) < OTHER_IDS:
            self._others.add(hash(key))
        elif new:
            self._complete = False
        return new

    def contains(self, key: Any) -> bool:
        """Whether an id was added, as far as it is remembered."""
        if isinstance(key, float):
            key = int(key)
        if isinstance(key, int) and 0 <= key < SMALL_IDS:
            return key // 8 < len(self._bits) and bool(self._bits[key // 8] >> key % 8 & 1)
        return hash(key) in self._others or not self._complete


def is_id(value: Any) -> bool:
    """Whether a value can be an id."""
    is_whole = isinstance(value, float) and value.is_integer()  # as pandas writes a column that lacks a number
    return is_whole or (isinstance(value, int | str) and not isinstance(value, bool))


def box_fault(box: Any) -> str:
    """Return what is wrong with a box that is there."""
    if not isinstance(box, list) or len(box) != 4 or not all(_is_finite(side) for side in box):
        return "its bbox is not four numbers: x, y, width, height"
    if box[2] <= 0 or box[3] <= 0:
        return f"{EMPTY_BOX}: width {box[2]:g}, height {box[3]:g}"
    return ""


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def annotations_folder(folder: Path) -> Path:
    """Return the annotations folder of COCO's own layout, if there is one."""
    inner = folder / ANNOTATIONS
    return inner if inner.is_dir() else folder


def pictures_folder(folder: Path, file: Path) -> Path:
    """Return the folder of a file's pictures: of its split (``instances_val2017.json``: ``val2017``), or its own.

    ``folder``: that of the dataset.
    """
    split = file.stem.rpartition("_")[2]
    for path in (folder / split, folder / IMAGES / split, folder / "JPEGImages", folder / IMAGES):
        if file.parent.name == ANNOTATIONS and path.is_dir():
            return path
    return file.parent


def is_coco(path: Path) -> bool:
    """Whether a file is likely COCO, by its ending and the names of its lists near its begin. Raises OSError."""
    if path.suffix.lower() != SUFFIX:
        return False
    with path.open("rb") as file:
        head = file.read(HEAD)
    names = [contains_text(head, f'"{name}"') for name in (IMAGES, ANNOTATIONS, "image_id")]
    return names[0] or all(names[1:])


def annotation_files(folder: Path, files: Iterable[Path]) -> list[Path]:
    """Return those files of a dataset that are COCO's. Raises OSError."""
    if (folder / OWN_FILE).is_file():
        return [folder / OWN_FILE]
    root = annotations_folder(folder)
    return [file for file in files if file.is_relative_to(root) and is_coco(file)]


def read_coco(folder: Path, files: Iterable[Path], limit: int) -> list[PictureSample]:
    """Return the pictures of COCO files with their boxes, in their order. Raises SampleFileError and OSError.

    Crowds and annotations without a box, or with an empty one, are left out: no answer can be compared with them. A
    file in which no annotation has a box is refused: every answer of a detector would count as wrong.
    """
    contents = [_read(folder, file, limit) for file in files]
    samples: list[PictureSample] = []
    repeats = RepeatedSamples()
    for coco, listed in sorted(contents, key=lambda content: content[0].rank):
        if repeats.add(coco.name, str(pictures_folder(folder, Path(coco.name))), coco.pictures, is_view=coco.rank > 0):
            if not coco.is_labelled:
                raise SampleFileError(f"{coco.name}: it has no categories: write images, categories and annotations")
            samples += listed
    if repeats.message:
        raise SampleFileError(repeats.message)
    return samples


def _read(folder: Path, file: Path, limit: int) -> tuple[CocoFile, list[PictureSample]]:
    by_id: dict[Any, PictureSample] = {}
    number_of_boxes, lacks_boxes = 0, False
    with file.open("rb") as opened:
        number = opened.fileno()
        coco = CocoFile(number, os.fstat(number).st_size, str(file), _refuse, lambda _: None)
        for entry in coco.entries():
            if isinstance(entry, CocoImage):
                by_id[entry.id] = PictureSample(_picture(folder, file, entry.file_name), [])
                if len(by_id) > limit:
                    raise SampleFileError(f"{file}: it lists more than {limit} images: give a part")
            elif not entry.bbox:
                lacks_boxes = True
            elif not is_set(entry.iscrowd):
                x, y, width, height = entry.bbox
                box = LabelledBox(coco.categories[entry.category_id], x, y, x + width, y + height)
                by_id[entry.image_id].boxes.append(box)
                number_of_boxes += 1
                if number_of_boxes > MAX_BOXES:
                    raise SampleFileError(f"{file}: it has more than {MAX_BOXES} boxes: give a part")
    if lacks_boxes and not number_of_boxes:
        raise SampleFileError(f"{file}: its annotations have no bbox: write one for each: [x, y, width, height]")
    if len({sample.picture for sample in by_id.values()}) < len(by_id):
        raise SampleFileError(f"{file}: a file_name is there twice: list each image once")
    return coco, list(by_id.values())


def _picture(folder: Path, file: Path, name: str) -> Path:
    """Return where the picture of that name is. Raises SampleFileError for one that is not in the dataset's folder."""
    inside = PurePosixPath(name.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts or "\0" in name:
        raise SampleFileError(_outside(file, name))
    folders = (pictures_folder(folder, file), file.parent, folder, folder / IMAGES)
    path = next((path for parent in folders if (path := parent / inside).is_file()), None)
    if path is None or not path.resolve().is_relative_to(folder.resolve()):
        raise SampleFileError(_outside(file, name))
    return path


def _outside(file: Path, name: str) -> str:
    return f"{file}: its file_name {name[:80]!r} is not in this folder: put the picture beside the annotations"


def _refuse(entry: str, reason: str) -> None:
    """Refuse a file for an unusable entry; an empty box is no harm."""
    if not reason.startswith(EMPTY_BOX):
        raise SampleFileError(f"{entry}: {reason}")
