"""COCO: one JSON file with ``images``, ``annotations`` and ``categories``. A sample is an image, a class is counted by
its annotations.

The file may be far larger than memory, so its lists are read entry by entry. The three may come in any order: if
annotations come before the entries that they reference, the file is read twice.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import UNREADABLE, DatasetError, DatasetReader, FileBlocks, register

IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"
PARTS = (IMAGES, ANNOTATIONS, CATEGORIES)
MAX_CATEGORIES = 10_000
#: ids below this take one bit each (16 MB); so many others are remembered, and with more of them images are not checked
SMALL_IDS, OTHER_IDS = 1 << 27, 200_000
#: most characters of one entry
MAX_ENTRY = 4 * 1024 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")


@register("coco", "coco json", "coco-json", "cocojson")
class Coco(DatasetReader):
    """Annotations in JSON."""

    suffixes = frozenset({".json"})

    def root(self, folder: Path) -> Path:
        """Return the annotations folder of COCO's own layout, if there is one."""
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
        """Record an image or a category, or its fault."""
        self.parts.add(part)
        if reason := self._fault(part, entry):
            self._tally.fault(f"{self._file}: {part}[{number}]", reason)
        elif part == CATEGORIES:
            self.categories[entry["id"]] = entry["name"]
        else:
            self._tally.samples += 1

    def check(self, file: str) -> None:
        """Refuse a file that is not COCO. Raises DatasetError."""
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
        """Count an annotation, or record its fault."""
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
    """A set of ids in bounded memory."""

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
        """Whether an id was seen, as far as it is remembered."""
        if isinstance(key, int) and 0 <= key < SMALL_IDS:
            return key // 8 < len(self._bits) and bool(self._bits[key // 8] >> key % 8 & 1)
        return hash(key) in self._others or not self._complete


def is_id(value: Any) -> bool:
    """Whether a value can be an id."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def lists(source: FileBlocks, names: Collection[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield list name, position and value of each entry of the named lists. Raises DatasetError.

    Memory holds one entry and one block. Python's own scanner reads whole entries: one that does not end in the block
    is read again with more of the file. An event parser would take several times as long for entries that are needed as
    a whole.
    """
    text = _Text(source)
    if text.peek() != "{":
        raise text.error("it is no JSON object")
    text.skip()
    if text.peek() == "}":
        return
    while True:
        name = text.value("a name")
        if not isinstance(name, str) or text.peek() != ":":
            raise text.error("a name and a colon are expected")
        text.skip()
        if text.peek() == "[":
            for number, entry in enumerate(_entries(text, name)):
                if name in names:
                    yield name, number, entry
        else:
            text.value(name)
        if (mark := text.peek()) == "}":
            return
        if mark != ",":
            raise text.error(f"a comma is expected after {name}")
        text.skip()


def _entries(text: _Text, name: str) -> Iterator[Any]:
    text.skip()
    if text.peek() == "]":
        text.skip()
        return
    number = 0
    while True:
        yield text.value(f"{name}[{number}]")
        mark = text.peek()
        if mark not in {",", "]"}:
            raise text.error(f"a comma is expected after {name}[{number}]")
        text.skip()
        if mark == "]":
            return
        number += 1


class _Text:
    """The text from a position on; earlier text is dropped."""

    def __init__(self, source: FileBlocks) -> None:
        self._name = source.name
        self._blocks = source.blocks()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._behind = 0
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is not white space, empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill()

    def skip(self) -> None:
        """Skip the character that ``peek`` returned."""
        self._at += 1

    def value(self, what: str) -> Any:
        """Return the next value."""
        self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:  # otherwise it may be a number that continues
                    self._at = end
                    return value
            except RecursionError:
                raise self.error(f"{what} is nested too deep") from None
            except ValueError as error:
                if self._ended:
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number that is too long"
                    raise self.error(f"{what}: no JSON: {reason}") from None
            if len(self._text) - self._at > MAX_ENTRY:
                raise self.error(f"{what}: no JSON, or over {MAX_ENTRY >> 20} MiB")
            self._fill()

    def error(self, message: str) -> DatasetError:
        """Return an error with the position."""
        return DatasetError(UNREADABLE, f"{self._name}: {message} (at character {self._behind + self._at})")

    def _fill(self) -> None:
        """Read at least as much as is buffered."""
        parts = [self._text[self._at :]]
        self._behind += self._at
        self._at = 0
        wanted = max(1, len(parts[0]))
        try:
            while wanted > 0 and not self._ended:
                block = next(self._blocks, b"")
                self._ended = not block
                parts.append(self._decoder.decode(block, not block))
                wanted -= len(parts[-1])
        except UnicodeDecodeError:
            raise self.error("it is not UTF-8") from None
        self._text = "".join(parts)
