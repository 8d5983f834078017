"""Counts of one file or of a whole dataset: they can be added, stored, and reported as facts.

A ``DatasetReader`` fills a ``DatasetCounts``, the tally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime

import msgspec

from halimede.messages import BrokenEntry, ClassCount, DatasetFacts

#: most reported unusable entries, and most reported classes
MAX_BROKEN, MAX_REPORTED_CLASSES = 20, 1000
#: most characters of an entry's name and of a reason; most characters of a class
MAX_TEXT, MAX_NAME = 1000, 256
#: most distinct values of a class column: of one with a usual name, and of a guessed one
MAX_CLASSES, MAX_GUESSED = 10_000, 1000


class DatasetCounts(msgspec.Struct, kw_only=True):
    """The counts of one file, or of a whole dataset.

    Attributes:
        samples: the number of usable entries.
        classes: the number of samples of each class (in a detection dataset: of objects).
        guessed: the class column is a guess; ``facts`` decides by its values whether they are classes.
        unclassed: the class column has too many values to be one, or there is none.
        number_broken: the number of unusable entries.
        broken: names of the first unusable entries, each with the reason.
        listed: hashes of the samples of one file, eight bytes each, by which files are compared; empty: not compared.
        rank: the order of files that list the same samples, the lowest first; above 0 the file may be another view
            of the samples of a file with a lower rank.

    """

    samples: int = 0
    classes: dict[str, int] = {}
    guessed: bool = False
    unclassed: bool = False
    number_broken: int = 0
    broken: list[tuple[str, str]] = []
    listed: bytes = b""
    rank: int = 0

    def record_fault(self, name: str, reason: str) -> None:
        """Count an unusable entry, by its name and the reason."""
        self.number_broken += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken.append((name[:MAX_TEXT], reason[:MAX_TEXT]))

    def add_classes(self, classes: Mapping[str, int], *, guessed: bool = False) -> None:
        """Add numbers of samples by class; drop all classes if there are too many to be classes.

        ``guessed``: the class column is a guess.
        """
        self.guessed |= guessed
        for name, number in classes.items():
            self.classes[name[:MAX_NAME]] = self.classes.get(name[:MAX_NAME], 0) + number
        if len(self.classes) > (MAX_GUESSED if self.guessed else MAX_CLASSES):
            self.drop_classes()

    def drop_classes(self) -> None:
        """Record that the samples have no classes."""
        self.unclassed = True
        self.classes = {}

    def add(self, other: DatasetCounts) -> None:
        """Add the counts of another file, without ``listed`` and ``rank``."""
        self.samples += other.samples
        self.unclassed |= other.unclassed
        self.add_classes(other.classes, guessed=other.guessed)
        for name, reason in other.broken:
            self.record_fault(name, reason)
        self.number_broken += other.number_broken - len(other.broken)

    def copy(self) -> DatasetCounts:
        """Return an independent copy of the counts."""
        return deepcopy(self)

    def facts(self, size: int) -> DatasetFacts:
        """Return the facts for the status of a dataset of ``size`` bytes, as of now."""
        has_few_classes = not self.guessed or len(self.classes) * 2 <= self.samples
        classes = Counter(self.classes if has_few_classes and not self.unclassed else {})
        ordered = sorted(classes.items(), key=lambda item: (-item[1], item[0]))
        return DatasetFacts(
            number_of_samples=self.samples,
            size=size,
            classes=[ClassCount(name=name, count=number) for name, number in ordered[:MAX_REPORTED_CLASSES]],
            number_of_classes=len(classes),
            number_broken=self.number_broken,
            broken=[BrokenEntry(name=name, reason=reason) for name, reason in sorted(self.broken, key=_natural_order)],
            counted_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


def _natural_order(entry: tuple[str, str]) -> tuple[object, ...]:
    """Return a sort key for an entry by its name, in which ``line 9`` stands before ``line 10``."""
    head, _, tail = entry[0].rpartition(" ")
    return (head, int(tail), "") if tail.isascii() and tail.isdigit() else (head, 0, tail)
