"""Counts of one file or of a whole dataset: they can be added, stored, and reported as facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime

import msgspec

from halimede.messages import BrokenEntry, ClassCount, DatasetFacts

#: most reported entries, and most reported classes
MAX_NAMED, MAX_SHOWN = 20, 1000
#: most characters of an entry's name and of a reason; of a class
MAX_TEXT, MAX_NAME = 1000, 256
#: most distinct values of a class column: of a named one, and of a guessed one
MAX_CLASSES, MAX_GUESSED = 10_000, 1000


class DatasetCounts(msgspec.Struct, kw_only=True):
    """The counts.

    Attributes:
        samples: usable entries.
        classes: number of samples of each class (in a detection dataset: of objects).
        guessed: the class column is a guess; ``facts`` judges by its values whether it is one.
        unclassed: the supposed class has too many values to be one.
        number_broken: unusable entries.
        broken: the first of them, each with the reason.
        listed: hashes of the samples of one file, eight bytes each, to compare it with others; empty: not compared.
        rank: the order of files that list the same samples; above 0 it is another view of them.

    """

    samples: int = 0
    classes: dict[str, int] = {}
    guessed: bool = False
    unclassed: bool = False
    number_broken: int = 0
    broken: list[tuple[str, str]] = []
    listed: bytes = b""
    rank: int = 0

    def fault(self, name: str, reason: str) -> None:
        """Count an unusable entry."""
        self.number_broken += 1
        if len(self.broken) < MAX_NAMED:
            self.broken.append((name[:MAX_TEXT], reason[:MAX_TEXT]))

    def sort(self, classes: Mapping[str, int], *, guessed: bool = False) -> None:
        """Add samples to their classes, unless there are too many classes to be meaningful."""
        self.guessed |= guessed
        for name, number in classes.items():
            self.classes[name[:MAX_NAME]] = self.classes.get(name[:MAX_NAME], 0) + number
        if len(self.classes) > (MAX_GUESSED if self.guessed else MAX_CLASSES):
            self.drop_classes()

    def drop_classes(self) -> None:
        """Record that there are no classes."""
        self.unclassed = True
        self.classes = {}

    def add(self, other: DatasetCounts) -> None:
        """Add other counts."""
        self.samples += other.samples
        self.unclassed |= other.unclassed
        self.sort(other.classes, guessed=other.guessed)
        for name, reason in other.broken:
            self.fault(name, reason)
        self.number_broken += other.number_broken - len(other.broken)

    def copy(self) -> DatasetCounts:
        """Return an independent copy."""
        return deepcopy(self)

    def facts(self, size: int) -> DatasetFacts:
        """Return the facts for a status."""
        few = not self.guessed or len(self.classes) * 2 <= self.samples
        classes = Counter(self.classes if few and not self.unclassed else {})
        ordered = sorted(classes.items(), key=lambda item: (-item[1], item[0]))
        return DatasetFacts(
            number_of_samples=self.samples,
            size=size,
            classes=[ClassCount(name=name, count=number) for name, number in ordered[:MAX_SHOWN]],
            number_of_classes=len(classes),
            number_broken=self.number_broken,
            broken=[BrokenEntry(name=name, reason=reason) for name, reason in sorted(self.broken, key=_natural)],
            counted_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


def _natural(entry: tuple[str, str]) -> tuple[object, ...]:
    """Sort ``line 9`` before ``line 10``."""
    head, _, tail = entry[0].rpartition(" ")
    return (head, int(tail), "") if tail.isascii() and tail.isdigit() else (head, 0, tail)
