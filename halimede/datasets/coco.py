"""COCO: one JSON file with ``images``, ``annotations`` and ``categories``. A sample is an image, a class is counted by
its annotations.

The file may be far larger than memory, so its lists are read entry by entry. The three may come in any order: where
annotations come before what they name, the file is read twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.errors import UNREADABLE, DatasetError
from halimede.datasets.file_blocks import FileBlocks
from halimede.datasets.registry import register
from halimede.datasets.stream import lists

IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"
PARTS = (IMAGES, ANNOTATIONS, CATEGORIES)
MAX_CATEGORIES = 10_000
#: ids below this are remembered by one bit each (16 MB); of others so many, and beyond them images are not checked
SMALL_IDS, OTHER_IDS = 1 << 27, 200_000


@register("coco", "coco json", "coco-json", "cocojson")
class Coco:
    """Annotations in JSON."""

    suffixes = frozenset({".json"})

    def root(self, folder: Path) -> Path:
        """The annotations' folder of COCO's own layout, where there is one."""
        inner = folder / ANNOTATIONS
        return inner if inner.is_dir() else folder

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> bool:  # noqa: ARG002  # of the port
        """Read one file, entry by entry."""
        names = _Names(tally, source.name)
        late, annotations = False, _Annotations(tally, source.name, names)
        for part, number, entry in lists(source, PARTS):
            if part != ANNOTATIONS:
                names.take(part, number, entry)
            elif names.parts == {IMAGES, CATEGORIES} and not late:
                annotations.take(number, entry)
            else:
                late = True
        names.check(source.name)
        if late:
            for part, number, entry in lists(source, PARTS):
                if part == ANNOTATIONS:
                    annotations.take(number, entry)
        tally.sort({names.categories[key]: number for key, number in annotations.counts.items()})
        return True


class _Names:
    """The images and categories of a file."""

    def __init__(self, tally: DatasetCounts, file: str) -> None:
        self.categories: dict[Any, str] = {}
        self.images = _Ids()
        self._tally = tally
        self._file = file
        self.parts: set[str] = set()

    def take(self, part: str, number: int, entry: Any) -> None:
        """Take an image or a category, or name what is wrong with it."""
        self.parts.add(part)
        if reason := self._fault(part, entry):
            self._tally.fault(f"{self._file}: {part}[{number}]", reason)
        elif part == CATEGORIES:
            self.categories[entry["id"]] = entry["name"]
        else:
            self._tally.samples += 1

    def check(self, file: str) -> None:
        """Refuse what is no COCO file. Raises DatasetError."""
        if IMAGES not in self.parts and not self.categories:
            raise DatasetError(UNREADABLE, f"{file}: it has neither images nor categories: is it a COCO file?")

    def _fault(self, part: str, entry: Any) -> str:
        if not isinstance(entry, Mapping):
            return "no object"
        key = entry.get("id")
        if not is_id(key):
            return "it has no id"
        if part == CATEGORIES:
            if not isinstance(entry.get("name"), str) or not entry["name"]:
                return f"category {key} has no name"
            if len(self.categories) >= MAX_CATEGORIES:
                return f"over {MAX_CATEGORIES} categories"
            return f"category {key} is there twice" if key in self.categories else ""
        if not isinstance(entry.get("file_name"), str) or not entry["file_name"]:
            return f"image {key} has no file_name"
        return "" if self.images.add(key) else f"image {key} is there twice"


class _Annotations:
    """The annotations of a file."""

    def __init__(self, tally: DatasetCounts, file: str, names: _Names) -> None:
        self.counts: Counter[Any] = Counter()
        self._tally = tally
        self._file = file
        self._names = names

    def take(self, number: int, entry: Any) -> None:
        """Count an annotation, or name what is wrong with it."""
        if reason := self._fault(entry):
            key = entry.get("id") if isinstance(entry, Mapping) else None
            which = f" (id {key})" if is_id(key) else ""
            self._tally.fault(f"{self._file}: {ANNOTATIONS}[{number}]{which}", reason)
        else:
            self.counts[entry["category_id"]] += 1

    def _fault(self, entry: Any) -> str:
        if not isinstance(entry, Mapping):
            return "no object"
        image, category = entry.get("image_id"), entry.get("category_id")
        if not is_id(image) or not self._names.images.known(image):
            return f"its image_id {image!r} is no image of this file"
        if not is_id(category) or category not in self._names.categories:
            return f"its category_id {category!r} is no category of this file"
        box = entry.get("bbox")
        if box is None:
            return ""
        if not isinstance(box, list) or len(box) != 4 or not all(_finite(side) for side in box):
            return "its bbox is not four numbers: x, y, width, height"
        if box[2] <= 0 or box[3] <= 0:
            return f"its bbox is empty: width {box[2]:g}, height {box[3]:g}"
        return ""


class _Ids:
    """Ids that were seen, in bounded memory."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._others: set[int] = set()
        self._complete = True

    def add(self, key: Any) -> bool:
        """Remember an id; return whether it is new."""
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

    def known(self, key: Any) -> bool:
        """Whether an id was seen, as far as that is known."""
        if isinstance(key, int) and 0 <= key < SMALL_IDS:
            return key // 8 < len(self._bits) and bool(self._bits[key // 8] >> key % 8 & 1)
        return hash(key) in self._others or not self._complete


def is_id(value: Any) -> bool:
    """Whether a value can be an id."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
