"""COCO: one JSON file with the lists ``images``, ``annotations`` (boxes in images) and ``categories`` (classes).

``read_coco`` reads the pictures of files; ``CocoFile`` reads the entries of one file. The lists may come in any order:
if annotations come before the images or categories that they name, the file is read twice.
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

#: the ending of COCO files, in small letters
SUFFIX = ".json"
#: the names of the lists
IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"
#: most categories of a file; further ones are unusable
MAX_CATEGORIES = 10_000
#: ids below the first number take one bit each (16 MB); of other ids at most so many hashes are stored
SMALL_IDS, MAX_HASHES = 1 << 27, 200_000
#: most images of a file whose names are compared with those of other files
MAX_COMPARED = 250_000
#: most boxes of a file that ``read_coco`` reads
MAX_BOXES = 2_000_000
#: how the reason begins why an annotation with an empty box is unusable
EMPTY_BOX = "its bbox is empty"
#: the name of a file that has all boxes of its folder
DEFAULT_FILE = "annotations.json"
#: first bytes of a file that are searched for the names of its lists
HEAD_BYTES = 1024 * 1024


class CocoImage(msgspec.Struct):
    """An entry of ``images``, as far as it is read: its id, and the path of its picture. Values may have any type."""

    id: Any = None
    file_name: Any = None


class CocoCategory(msgspec.Struct):
    """An entry of ``categories``, as far as it is read: a class with its id. Values may have any type.

    Files whose categories have ``keypoints`` repeat objects that a file of boxes has, too.
    """

    id: Any = None
    name: Any = None
    keypoints: Any = None


class CocoAnnotation(msgspec.Struct):
    """An entry of ``annotations``, as far as it is read: an object in an image. Values may have any type.

    Attributes:
        id: its own id, for errors.
        image_id: of an entry of ``images``.
        category_id: of an entry of ``categories``.
        bbox: x, y, width and height in pixels; empty or None: the annotation has no box.
        iscrowd: set if the box has many objects.

    """

    id: Any = None
    image_id: Any = None
    category_id: Any = None
    bbox: Any = None
    iscrowd: Any = None


#: the struct of an entry, by the name of its list
TYPES: dict[str, type[msgspec.Struct]] = {
    IMAGES: CocoImage, ANNOTATIONS: CocoAnnotation, CATEGORIES: CocoCategory,
}  # fmt: skip


class CocoFile:
    """An open COCO file. Read ``entries`` to their end; then the attributes are complete.

    ``descriptor``: of the open file of ``size`` bytes. ``name``: of the file, for errors. ``on_fault``: called with the
    name of an unusable entry and the reason. ``on_bytes``: called with each number of bytes that was read.

    Attributes:
        name: of the file.
        categories: names by id; complete when ``entries`` yields the first annotation.
        has_key_points: a category has key points.
        pictures: 64-bit hashes of the names of its images, by which files are compared; at most one more than
            MAX_COMPARED.

    """

    def __init__(
        self,
        descriptor: int,
        size: int,
        name: str,
        on_fault: Callable[[str, str], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        self.categories: dict[Any, str] = {}
        self.has_key_points = False
        self.pictures = array("Q")
        self._ids = _Ids()
        self._lists: set[str] = set()
        self.name = name
        self._on_fault = on_fault
        self._open_lists = partial(JsonLists, descriptor, size, name, on_bytes)

    def entries(self) -> Iterator[CocoImage | CocoAnnotation]:
        """Yield the usable images, and the usable annotations of a file with categories.

        An annotation comes after its image and category, which must be in the file. Raises SampleFileError if the file
        is no COCO file or no valid JSON.
        """
        has_early_annotations = False
        for list_name, first_index, entries in self._open_lists().entries(TYPES):
            if list_name != ANNOTATIONS:
                self._lists.add(list_name)
                yield from self._usable_images(list_name, first_index, entries)
            elif self._lists == {IMAGES, CATEGORIES} and not has_early_annotations:
                yield from self._annotations(first_index, entries)
            else:
                has_early_annotations = True
        if IMAGES not in self._lists and not self.categories:
            raise SampleFileError(f"{self.name}: it has neither images nor categories: is it a COCO file?")
        if has_early_annotations and self.is_labelled:
            for list_name, first_index, entries in self._open_lists().entries(TYPES):
                if list_name == ANNOTATIONS:
                    yield from self._annotations(first_index, entries)

    @property
    def rank(self) -> int:
        """The order of this file among files of the same images: 0 with boxes, 1 with key points, 2 with captions."""
        return 2 if not self.is_labelled else int(self.has_key_points)

    @property
    def is_labelled(self) -> bool:
        """Whether the file has categories; a file of captions has none."""
        return CATEGORIES in self._lists

    def _usable_images(self, list_name: str, first_index: int, entries: list[Any]) -> Iterator[CocoImage]:
        """Record or report entries of images or categories; yield the usable images.

        ``list_name``: IMAGES or CATEGORIES. ``first_index``: of the first entry in its list.
        """
        for index, entry in enumerate(entries, first_index):
            reason = self._image_fault(entry) if list_name == IMAGES else self._category_fault(entry)
            if reason:
                self._on_fault(f"{self.name}: {list_name}[{index}]", reason)
            elif list_name == CATEGORIES:
                self.categories[entry.id] = entry.name
                self.has_key_points |= bool(entry.keypoints)
            else:
                if len(self.pictures) <= MAX_COMPARED:
                    digest = hashlib.blake2b(entry.file_name.encode(errors="surrogatepass"), digest_size=8)
                    self.pictures.frombytes(digest.digest())
                yield entry

    def _annotations(self, first_index: int, entries: list[Any]) -> Iterator[CocoAnnotation]:
        """Yield the usable annotations, and report others. ``first_index``: of the first entry in its list."""
        for index, entry in enumerate(entries, first_index):
            if reason := self._annotation_fault(entry):
                id_text = f" (id {entry.id})" if entry is not None and is_id(entry.id) else ""
                self._on_fault(f"{self.name}: {ANNOTATIONS}[{index}]{id_text}", reason)
            else:
                yield entry

    def _category_fault(self, entry: CocoCategory | None) -> str:
        """Return why a category cannot be used; empty for a usable one."""
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
        """Return why an image cannot be used; empty for a usable one, whose id is recorded."""
        if entry is None:
            return "no object"
        if not is_id(entry.id):
            return "it has no id"
        if not isinstance(entry.file_name, str) or not entry.file_name:
            return f"image {entry.id} has no file_name"
        return "" if self._ids.add(entry.id) else f"image {entry.id} is there twice"

    def _annotation_fault(self, entry: CocoAnnotation | None) -> str:
        """Return why an annotation cannot be used; empty for a usable one."""
        if entry is None:
            return "no object"
        if not is_id(entry.image_id) or not self._ids.contains(entry.image_id):
            return f"its image_id {entry.image_id!r} is no image of this file"
        if not is_id(entry.category_id) or entry.category_id not in self.categories:
            return f"its category_id {entry.category_id!r} is no category of this file"
        return box_fault(entry.bbox) if entry.bbox else ""


class _Ids:
    """A set of ids in bounded memory: bits for small numbers, hashes for all other ids."""

    def __init__(self) -> None:
        #: a bit for each id below SMALL_IDS, the hashes of other ids, and whether all of these were stored
        self._bits = bytearray()
        self._hashes: set[int] = set()
        self._is_complete = True

    def add(self, id_: Any) -> bool:
        """Add an id; return whether it is new. An id that cannot be stored is new each time."""
        if isinstance(id_, float):
            id_ = int(id_)
        if isinstance(id_, int) and 0 <= id_ < SMALL_IDS:
            if id_ // 8 >= len(self._bits):
                self._bits.extend(bytes(id_ // 8 + 1 - len(self._bits)))
            is_new = not self._bits[id_ // 8] >> id_ % 8 & 1
            self._bits[id_ // 8] |= 1 << id_ % 8
            return is_new
        is_new = hash(id_) not in self._hashes
        if len(self._hashes) < MAX_HASHES:
            self._hashes.add(hash(id_))
        elif is_new:
            self._is_complete = False
        return is_new

    def contains(self, id_: Any) -> bool:
        """Whether an id was added; True for any id that is no small number if there were too many to store."""
        if isinstance(id_, float):
            id_ = int(id_)
        if isinstance(id_, int) and 0 <= id_ < SMALL_IDS:
            return id_ // 8 < len(self._bits) and bool(self._bits[id_ // 8] >> id_ % 8 & 1)
        return hash(id_) in self._hashes or not self._is_complete


def is_id(value: Any) -> bool:
    """Whether a value can be an id: a text or a whole number."""
    is_whole = isinstance(value, float) and value.is_integer()  # as pandas writes a column that lacks a number
    return is_whole or (isinstance(value, int | str) and not isinstance(value, bool))


def box_fault(box: Any) -> str:
    """Return what is wrong with the box of an annotation; empty for a usable box."""
    if not isinstance(box, list) or len(box) != 4 or not all(_is_finite(side) for side in box):
        return "its bbox is not four numbers: x, y, width, height"
    if box[2] <= 0 or box[3] <= 0:
        return f"{EMPTY_BOX}: width {box[2]:g}, height {box[3]:g}"
    return ""


def _is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def annotations_folder(folder: Path) -> Path:
    """Return the folder ``annotations`` of COCO's own layout, else the dataset's folder itself."""
    inner = folder / ANNOTATIONS
    return inner if inner.is_dir() else folder


def pictures_folder(folder: Path, file: Path) -> Path:
    """Return the folder with the pictures of a COCO file in the dataset ``folder``.

    In COCO's own layout it is the folder of the file's split (``val2017`` for ``instances_val2017.json``) or a common
    folder of pictures; else the folder of the file.
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
        head = file.read(HEAD_BYTES)
    names = [contains_text(head, f'"{name}"') for name in (IMAGES, ANNOTATIONS, "image_id")]
    return names[0] or all(names[1:])


def annotation_files(folder: Path, files: Iterable[Path]) -> list[Path]:
    """Return those of a dataset's files that are COCO files: ``annotations.json`` alone if there is one.

    Raises OSError.
    """
    if (folder / DEFAULT_FILE).is_file():
        return [folder / DEFAULT_FILE]
    root = annotations_folder(folder)
    return [file for file in files if file.is_relative_to(root) and is_coco(file)]


def read_coco(folder: Path, files: Iterable[Path], limit: int) -> list[PictureSample]:
    """Return the pictures of COCO files with their boxes, ordered by ``rank``. Raises SampleFileError and OSError.

    ``folder``: of the dataset. ``limit``: most images of a file. A file whose images are all in files of a lower rank
    is left out. Crowds and annotations without a box, or with an empty box, are left out, because no answer can be
    compared with them. A file in which no annotation has a box is refused, because every answer of a detector would
    count as wrong.
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
    """Return a COCO file that was read, and its pictures. Raises SampleFileError and OSError."""
    by_id: dict[Any, PictureSample] = {}
    number_of_boxes, lacks_boxes = 0, False
    with file.open("rb") as stream:
        descriptor = stream.fileno()
        coco = CocoFile(descriptor, os.fstat(descriptor).st_size, str(file), _refuse, lambda _: None)
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
    """Return the path of an image of a COCO file. Raises SampleFileError if it is not in the dataset's folder."""
    inside = PurePosixPath(name.replace("\\", "/"))
    if not (inside.is_absolute() or ".." in inside.parts or "\0" in name):
        folders = (pictures_folder(folder, file), file.parent, folder, folder / IMAGES)
        path = next((path for parent in folders if (path := parent / inside).is_file()), None)
        if path and path.resolve().is_relative_to(folder.resolve()):
            return path
    text = f"its file_name {name[:80]!r} is not in this folder: put the picture beside the annotations"
    raise SampleFileError(f"{file}: {text}")


def _refuse(entry: str, reason: str) -> None:
    """Raise SampleFileError for an unusable entry, unless only its box is empty."""
    if not reason.startswith(EMPTY_BOX):
        raise SampleFileError(f"{entry}: {reason}")
