"""The digits of each node: two classes of ten, so that no node alone can learn the others.

Half of the digits is for training, as in examples/digits; the other half is what every model is measured on, and no
node has any of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.digits.data import load
from halimede.api.model import ModelSpec
from halimede.training.data import split
from halimede.training.trainer import TrainingData

CLASSES = 10
NODES = ("edge0", "edge1", "edge2", "edge3", "edge4")
#: the Model that the job trains: rows of 64 numbers in 0..1
MODEL = ModelSpec(url="file:///digits.onnx", format="onnx", labels=[str(digit) for digit in range(CLASSES)])


def digits_of(node: int) -> tuple[int, int]:
    """Return the two digits that a node sees."""
    return 2 * node, 2 * node + 1


def write(folder: Path) -> dict[str, Path]:
    """Write the samples of each node as an npz file; return the files by node."""
    found = load()
    files = {}
    for number, node in enumerate(NODES):
        mine = np.isin(found.train_y, digits_of(number))
        files[node] = folder / node / "digits.npz"
        files[node].parent.mkdir(parents=True, exist_ok=True)
        np.savez(files[node], x=found.train_x[mine], y=found.train_y[mine].astype(str))
    return files


def training_parts() -> list[TrainingData]:
    """Return what each node trains on: its samples without those that it holds out."""
    found = load()
    parts = []
    for number in range(len(NODES)):
        mine = np.isin(found.train_y, digits_of(number))
        parts.append(split(found.train_x[mine], found.train_y[mine], CLASSES).train)
    return parts


def together(parts: list[TrainingData]) -> TrainingData:
    """Return the samples of all nodes in one place, which is what federated training avoids."""
    samples = np.concatenate([part.samples for part in parts])
    return TrainingData(samples, np.concatenate([part.labels for part in parts]), CLASSES)


def unseen() -> TrainingData:
    """Return the half that nobody trains on."""
    found = load()
    return TrainingData(found.test_x, found.test_y, CLASSES)
