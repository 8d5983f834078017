"""Labelled findings for calibration: each camera's predictions for instants with a known truth.

From CSV (a line for each finding: ``instant``, ``camera``, ``truth``, then a column a class), from NPZ
(``probabilities`` as ``[instants, cameras, classes]``, NaN where a camera has nothing; ``truth``, ``cameras``,
``labels``), or from what ``halimede results --output json`` has written, with a CSV of ``camera``, ``sequence``,
``truth``.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede import codec, topics
from halimede.errors import DecodeError, HalimedeError
from halimede.multiedge.fusion.class_distribution import Vector, read

#: bytes of a file, and numbers that it may make
MAX_FILE, MAX_NUMBERS = 1 << 30, 1 << 28
COLUMNS = ("instant", "camera", "truth")


class LabelledError(HalimedeError):
    """A file without valid labelled findings. The text names the file and the error."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """``rows`` is ``[instants, cameras, classes]``, NaN where a camera has nothing; ``truth`` the class's index."""

    rows: Vector
    truth: NDArray[np.int64]
    cameras: tuple[str, ...]
    labels: tuple[str, ...]

    def of(self, camera: int) -> tuple[Vector, NDArray[np.int64]]:
        """Return what one camera said, and the truth of it."""
        there = ~np.isnan(self.rows[:, camera]).any(axis=1)
        return self.rows[there, camera], self.truth[there]

    def part(self, chosen: NDArray[np.bool_]) -> Labelled:
        """Return some of the instants."""
        return Labelled(self.rows[chosen], self.truth[chosen], self.cameras, self.labels)


@dataclass(frozen=True, slots=True)
class _LabelledFinding:
    instant: str
    camera: str
    truth: str
    probabilities: Mapping[str, float]


def load(path: Path, truth: Path | None = None) -> Labelled:
    """Read a file. Raises LabelledError."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise LabelledError(f"{path}: is larger than {MAX_FILE >> 20} MiB: give a part of it")
        if path.suffix == ".npz":
            return _npz(path)
        return _table(path, _recorded(path, truth) if truth else _lines(path))
    except (OSError, ValueError, EOFError, csv.Error, zipfile.BadZipFile, DecodeError) as error:
        raise LabelledError(f"{path}: {error}") from error


def _npz(path: Path) -> Labelled:
    with np.load(path, allow_pickle=False) as file:
        missing = {"probabilities", "truth"} - set(file.files)
        if missing:
            raise LabelledError(f"{path}: has no array {', '.join(sorted(missing))}")
        rows = np.asarray(file["probabilities"], np.float64)
        truth = np.asarray(file["truth"])
        if rows.ndim != 3 or truth.shape != rows.shape[:1] or not rows.size:
            raise LabelledError(f"{path}: write probabilities as [instants, cameras, classes] and truth as [instants]")
        count = rows.shape[2]
        labels = [str(each) for each in file["labels"]] if "labels" in file.files else [str(i) for i in range(count)]
        cameras = _cameras(file, rows.shape[1])
    if len(labels) != count or len(cameras) != rows.shape[1]:
        raise LabelledError(f"{path}: labels and cameras must be as many as the probabilities have")
    place = {label: i for i, label in enumerate(labels)}
    names = [str(each) for each in truth]
    unknown = sorted(set(names) - set(place))
    if unknown:
        raise LabelledError(f"{path}: truth {unknown[0]} is none of the labels")
    return _checked(path, Labelled(rows, np.array([place[name] for name in names]), cameras, tuple(labels)))


def _cameras(file: Any, count: int) -> tuple[str, ...]:
    if "cameras" not in file.files:
        return tuple(f"cam{i}" for i in range(count))
    return tuple(str(each) for each in file["cameras"])


def _lines(path: Path) -> Iterator[_LabelledFinding]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        classes = [name for name in reader.fieldnames or [] if name not in COLUMNS]
        if not classes or not set(COLUMNS) <= set(reader.fieldnames or []):
            raise LabelledError(f"{path}: its first line must be {','.join(COLUMNS)} and the names of the classes")
        for line in reader:
            values = {name: float(line[name] or "nan") for name in classes}
            yield _LabelledFinding(line["instant"], line["camera"], line["truth"], values)


def _recorded(path: Path, truth: Path) -> Iterator[_LabelledFinding]:
    """Read results and who knows better; results of one instant carry its time."""
    with truth.open(newline="", encoding="utf-8") as file:
        known = {(line["camera"], int(line["sequence"])): line["truth"] for line in _having(truth, file)}
    with path.open("rb") as results:
        for line in results:
            result = codec.decode(topics.MULTI_RESULT, line)
            opinion = read(result.edge) if result.edge else None
            value, name = result.prediction.value, known.get((result.camera, result.sequence))
            if opinion is None or opinion.rest or name is None or not isinstance(value, dict):
                continue
            said = dict(zip(opinion.names, opinion.probabilities.tolist(), strict=True))
            yield _LabelledFinding(str(value.get("instant")), result.camera, name, said)


def _having(path: Path, lines: Iterable[str]) -> csv.DictReader[str]:
    reader = csv.DictReader(lines)
    missing = {"camera", "sequence", "truth"} - set(reader.fieldnames or [])
    if missing:
        raise LabelledError(f"{path}: its first line must have {', '.join(sorted(missing))}")
    return reader


def _table(path: Path, lines: Iterator[_LabelledFinding]) -> Labelled:
    said = list(lines)
    cameras = tuple(sorted({each.camera for each in said}))
    labels = tuple(dict.fromkeys(name for each in said for name in each.probabilities))
    truths = {each.instant: each.truth for each in said}
    if len(truths) * len(cameras) * len(labels) > MAX_NUMBERS:
        raise LabelledError(f"{path}: holds more than {MAX_NUMBERS} numbers: give a part of it")
    at = {instant: i for i, instant in enumerate(truths)}
    place = {label: i for i, label in enumerate(labels)}
    rows = np.full((len(at), len(cameras), len(labels)), np.nan)
    for each in said:
        if each.truth not in place or truths[each.instant] != each.truth:
            raise LabelledError(
                f"{path}: instant {each.instant} has truth {each.truth}, no class or not the only truth"
            )
        row = [each.probabilities.get(label, 0.0) for label in labels]
        rows[at[each.instant], cameras.index(each.camera)] = row
    return _checked(path, Labelled(rows, np.array([place[name] for name in truths.values()], int), cameras, labels))


def _checked(path: Path, made: Labelled) -> Labelled:
    sums = made.rows.sum(axis=2, keepdims=True)
    if (
        not made.truth.size
        or np.isnan(sums).all()
        or np.isinf(sums).any()
        or (made.rows < 0).any()
        or (sums == 0).any()
    ):
        raise LabelledError(f"{path}: holds no findings, or probabilities that are negative, infinite or all 0")
    return Labelled(made.rows / sums, made.truth, made.cameras, made.labels)
