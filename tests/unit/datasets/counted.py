"""What a count says of a dataset."""

from __future__ import annotations

from pathlib import Path

from halimede.datasets import count
from halimede.messages import DatasetFacts


def facts(path: Path, form: str, ledger: Path | None = None) -> DatasetFacts:
    return count(path, form, ledger).facts


def classes(of: DatasetFacts) -> dict[str, int]:
    return {label.name: label.count for label in of.classes}


def broken(of: DatasetFacts) -> dict[str, str]:
    return {entry.name: entry.reason for entry in of.broken}
