"""Which column or field of a table says the class of a sample."""

from __future__ import annotations

from collections.abc import Sequence

#: names that say it, best first
NAMES = ("label", "class", "category", "target", "labels", "classes", "class_name", "y")


def class_column(names: Sequence[str]) -> tuple[int, bool]:
    """Return the column of the class, and whether that is only guessed: the last one then."""
    lower = [name.strip().strip('"').lower() for name in names]
    for name in NAMES:
        if name in lower:
            return lower.index(name), False
    return len(names) - 1, True
