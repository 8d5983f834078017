"""Reads a node's samples for training, with the classes and the pre-processing of the Model that is trained.

A part of the samples is held out: they evaluate weights and are never trained on. A sample is held out by its content,
never by its position, so a new sample does not change which other ones are held out.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halimede.api.model import ModelSpec
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.evaluation.data import read_labelled
from halimede.inference import SampleError, preprocess
from halimede.inference.decoding import decoding_of
from halimede.picture_files import changed_ns, files_below
from halimede.training.trainer import TrainingData

#: about one of so many samples is held out
HELD_OUT_ONE_OF = 5
#: samples whose files changed so shortly before they were read are read again: clocks of files are coarse
RECENT_NS = 2_000_000_000
#: the least samples to train on
LEAST_SAMPLES = 2


class TrainingDataError(HalimedeError):
    """The samples cannot be trained on. ``reason``: in one word, such as ``DatasetEmpty``, for conditions."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NodeData:
    """The samples of a node: those to train on (at least LEAST_SAMPLES), and those that are held out (perhaps none)."""

    train: TrainingData
    held_out: TrainingData


class SampleCache:
    """The samples that were read last. They are read again if their file, or a file in their folder, has changed."""

    def __init__(self) -> None:
        self._key: object = None
        self._data: NodeData | None = None

    def read(self, path: Path, spec: ModelSpec, until_ns: float = math.inf) -> NodeData:
        """Return what ``read_data`` returns for these arguments. Raises TrainingDataError."""
        began = time.time_ns()
        files = _fingerprint(path, until_ns)
        if self._data is None or self._key != (path, spec, files):
            self._key, self._data = None, None
            data = read_data(path, spec, until_ns)
            newest = max((changed for _, _, _, changed in files), default=0)
            if newest > began - RECENT_NS or files != _fingerprint(path, until_ns):
                return data  # a change at the same time would not be noticed
            self._key, self._data = (path, spec, files), data
        return self._data


def newest_ns(path: Path) -> int:
    """Return the time of the last change in a data set in ns since 1970: at least now, later if clocks differ."""
    return max([time.time_ns(), *map(changed_ns, files_below(path) if path.is_dir() else [])])


def _fingerprint(path: Path, until_ns: float) -> list[tuple[str, int, int, int]]:
    """Return (path, inode, size, time of the last change) of all files of a data set: any write changes one of them."""
    fingerprint = []
    for file in files_below(path, until_ns) if path.is_dir() else [path]:
        with contextlib.suppress(OSError):
            stat = file.stat()
            fingerprint.append((str(file), stat.st_ino, stat.st_size, stat.st_ctime_ns))
    return fingerprint


def read_data(path: Path, spec: ModelSpec, until_ns: float = math.inf) -> NodeData:
    """Return the labelled samples of a data set, in one of the forms of ``halimede evaluate --data``.

    ``until_ns``: files of a folder that changed later (nanoseconds since 1970) are not read. Raises TrainingDataError.
    """
    if not spec.labels:
        raise TrainingDataError("DatasetInvalid", "spec.labels of the Model is empty: list its classes in their order")
    try:
        pictures = read_labelled(path, spec.labels, until_ns=until_ns)
    except InvalidFieldError as error:
        empty = "no sample" in str(error) or "no such file" in str(error)
        raise TrainingDataError("DatasetEmpty" if empty else "DatasetInvalid", str(error)) from error
    if pictures.truths is None:
        advice = pictures.class_advice or "put them into class folders"
        raise TrainingDataError("DatasetInvalid", f"{path}: its samples have no classes: {advice}")
    index = {label: number for number, label in enumerate(spec.labels)}
    if strange := sorted(set(pictures.truths) - index.keys()):
        raise TrainingDataError("DatasetInvalid", f"{path}: class {strange[0]!r} is not in spec.labels of the Model")
    decoding = decoding_of(spec.decode, spec.preprocess)
    try:
        rows = [preprocess.apply(spec.preprocess, pictures.image(i, decoding)) for i in range(len(pictures))]
    except SampleError as error:
        raise TrainingDataError("DatasetInvalid", f"{path}: {error}") from error
    if len({row.shape for row in rows}) > 1:
        raise TrainingDataError("DatasetInvalid", f"{path}: its samples have several shapes: add a resize to the Model")
    return split(np.stack(rows), np.array([index[truth] for truth in pictures.truths]), len(spec.labels))


def split(samples: np.ndarray, labels: np.ndarray, classes: int) -> NodeData:
    """Divide samples, ``(n, ...)`` with the indices of their classes ``(n,)``, into training set and held-out ones.

    Raises TrainingDataError for too few samples, or a single class.
    """
    out = np.array([_is_held_out(sample) for sample in samples], dtype=bool)
    train, held_out = (
        TrainingData(samples[chosen], labels[chosen].astype(np.int64), classes) for chosen in (~out, out)
    )
    if len(train) < LEAST_SAMPLES:
        raise TrainingDataError("DatasetEmpty", f"{len(train)} samples to train on: {LEAST_SAMPLES} are needed")
    if len(set(train.labels.tolist())) == 1:
        raise TrainingDataError("DatasetOneClass", "all samples have one class: nothing can be learned from it alone")
    return NodeData(train, held_out)


def _is_held_out(sample: np.ndarray) -> bool:
    """Whether a sample is held out, by its content."""
    return hashlib.sha256(np.ascontiguousarray(sample).tobytes()).digest()[0] % HELD_OUT_ONE_OF == 0
