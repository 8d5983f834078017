"""The models of the demo, and the samples that it begins with: ``python -m examples.learning_loop.train``.

The small model knows digits as they are written, and the big one also their mirror images, which are the drift.
``models/`` gets both as ONNX, a part of the samples for the calibration, and those of the stream before the drift.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.digits.data import load, to_png
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron

FOLDER = Path(__file__).parent / "models"
CALIBRATE, BEFORE = "calibrate.npz", "before"
CLASSES, PIXELS = 10, 64
#: samples that train the small model; the others of the half are for the calibration
SMALL = 500
#: standard deviation of the noise of a camera, and how often each sample of the calibration is seen with another one
NOISE, TIMES = 0.03, 4

Rows = NDArray[np.float32]


def drifted(rows: Rows) -> Rows:
    """Return what a camera sees after the drift: a mirror image."""
    return np.ascontiguousarray(rows.reshape(-1, 8, 8)[:, :, ::-1]).reshape(rows.shape)


def noisy(rows: Rows, chance: np.random.Generator) -> Rows:
    """Return rows as a camera sees them."""
    return (rows + chance.normal(0, NOISE, rows.shape)).clip(0, 1).astype(np.float32)


def main() -> None:
    """Train and write."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    digits, chance = load(), np.random.default_rng(0)
    rows, labels = digits.train_x, digits.train_y
    seen = np.concatenate([noisy(rows, chance) for _ in range(TIMES)])
    every = TrainingData(np.concatenate([seen, drifted(seen)]), np.concatenate([labels] * 2 * TIMES), CLASSES)
    small = TrainingData(noisy(rows[:SMALL], chance), labels[:SMALL], CLASSES)
    for name, hidden, data in (("small", "24", small), ("big", "256", every)):
        trainer = Perceptron(hidden=hidden, epochs="30")
        first = trainer.initial_weights((PIXELS,), CLASSES)
        trainer.export(trainer.train(data, first)[0], FOLDER / f"{name}.onnx")
    for number, (row, label) in enumerate(zip(small.samples, small.labels, strict=True)):
        path = FOLDER / BEFORE / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_png(row))
    rest = np.concatenate([noisy(rows[SMALL:], chance) for _ in range(TIMES)])
    pictures = np.rint(rest * 240).astype(np.uint8).reshape(-1, 8, 8)
    np.savez(FOLDER / CALIBRATE, x=pictures, y=np.concatenate([labels[SMALL:]] * TIMES).astype(str))


if __name__ == "__main__":
    main()
