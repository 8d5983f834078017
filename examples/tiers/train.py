"""Train three models of rising size on half of the digits, and choose by that half alone who asks whom.

    python -m examples.tiers.train

The device sees 4 x 4 pixels (16 numbers), the gate in between all 64, the cloud has a support vector machine. Both
margins are read from cross-validated answers on the training half, three shufflings of it: the device asks about half
of its samples; the gate keeps what it is surer of than it ever was where it was wrong and the cloud right. So what the
gate keeps should cost nothing.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.svm import SVC

from examples.digits import data

FOLDER = Path(__file__).parent / "models"
#: share of samples that leave the device
UPLOAD = 0.5
FOLDS, SHUFFLES = 5, 3
Rows = NDArray[np.float32]


def tiny(images: Rows) -> Rows:
    """Return 4 x 4 pixels a row, each the mean of four: what resizing a picture to 4 x 4 makes of it."""
    return np.asarray(images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16), np.float32)


def models() -> dict[str, Any]:
    """Return the models, not trained yet, from the smallest to the largest."""
    return {
        "device": LogisticRegression(C=1, max_iter=1000),
        "gate": LogisticRegression(C=1, max_iter=1000),
        "cloud": CalibratedClassifierCV(SVC(C=10), ensemble=False),
    }


def main() -> None:
    """Train, export, and say what came out."""
    split = data.load()
    train(split)
    device, gate = margins(split)
    print(f"margins, from the training half: device {device:.2f}, gate {gate:.2f}")


def train(split: data.Split) -> None:
    """Train the models and write them as ONNX files."""
    # skl2onnx still reads two attributes that scikit-learn 1.9 deprecates
    warnings.filterwarnings("ignore", category=FutureWarning, module="sklearn")
    FOLDER.mkdir(exist_ok=True)
    for name, model in models().items():
        rows = _seen_by(name, split.train_x)
        model.fit(rows, split.train_y)
        onnx = to_onnx(model, rows[:1], options={id(model): {"zipmap": False}})
        path = FOLDER / f"{name}.onnx"
        path.write_bytes(onnx.SerializeToString())
        print(f"{path.name}: {path.stat().st_size / 1024:.1f} KiB")


def margins(split: data.Split) -> tuple[float, float]:
    """Return below which margins device and gate ask, as the training half says."""
    device: list[float] = []
    gate = 0.0
    for seed in range(SHUFFLES):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        small, middle = (
            cross_val_predict(
                models()[name], _seen_by(name, split.train_x), split.train_y, cv=folds, method="predict_proba"
            )
            for name in ("device", "gate")
        )
        # its labels alone matter: they need no probabilities
        big = cross_val_predict(SVC(C=10), split.train_x, split.train_y, cv=folds)
        device.append(float(np.quantile(_margin(small), UPLOAD)))
        worse = (middle.argmax(axis=1) != split.train_y) & (big == split.train_y)
        gate = max(gate, float(_margin(middle)[worse].max(initial=0.0)))
    return float(np.mean(device)), min(gate + 0.01, 1.0)


def _seen_by(name: str, images: Rows) -> Rows:
    return tiny(images) if name == "device" else images


def _margin(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    best = np.sort(probabilities, axis=1)
    return np.asarray(best[:, -1] - best[:, -2])


if __name__ == "__main__":
    main()
