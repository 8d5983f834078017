"""Train three models of rising size on half of the digits, and choose by that half alone who asks whom.

    python -m examples.tiers.train

The device sees 4 x 4 pixels, the gate in between has a small network, the cloud a support vector machine. All margins
are read from cross-validated answers on the training half, three shufflings of it. To a gate nearby the device sends
three quarters of its samples; without one, half of them to the cloud. The gate's margin is half-way from the surest of
its mistakes that the cloud would have mended to certainty: at that mistake itself, as many new samples would have a
worse one every other time.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from examples.digits import data

FOLDER = Path(__file__).parent / "models"
#: shares of samples that leave the device: to the gate, and where there is none to the cloud
TO_GATE, TO_CLOUD = 0.75, 0.5
FOLDS, SHUFFLES = 5, 3
#: what a pixel full of ink is in a picture
WHITE = 16 * data.LEVEL
Rows = NDArray[np.float32]


def tiny(images: Rows) -> Rows:
    """Return 4 x 4 pixels a row, as a worker's preprocessing makes them of the pictures."""
    pictures = np.rint(images * WHITE).astype(np.uint8).reshape(-1, 8, 8)
    small = [Image.fromarray(picture).resize((4, 4), Image.Resampling.BILINEAR) for picture in pictures]
    return np.stack([np.asarray(each, np.float32).ravel() for each in small]) / np.float32(WHITE)


def models() -> dict[str, Any]:
    """Return the models, not trained yet, from the smallest to the largest."""
    return {
        "device": LogisticRegression(C=1, max_iter=1000),
        "gate": MLPClassifier((64,), alpha=1.0, learning_rate_init=0.01, max_iter=60, random_state=0),
        "cloud": CalibratedClassifierCV(SVC(C=10), ensemble=False),
    }


def main() -> None:
    """Train, export, and say what came out."""
    split = data.load()
    train(split)
    device, gate, alone = margins(split)
    print(f"margins, from the training half: device {device:.2f}, gate {gate:.2f}; without a gate: device {alone:.2f}")


def train(split: data.Split) -> None:
    """Train the models and write them as ONNX files."""
    # skl2onnx still reads two attributes that scikit-learn 1.9 deprecates
    warnings.filterwarnings("ignore", category=FutureWarning, module="sklearn")
    FOLDER.mkdir(exist_ok=True)
    for name, model in models().items():
        rows = seen_by(name, split.train_x)
        with _quickly():
            model.fit(rows, split.train_y)
        onnx = to_onnx(model, rows[:1], options={id(model): {"zipmap": False}})
        path = FOLDER / f"{name}.onnx"
        path.write_bytes(onnx.SerializeToString())
        print(f"{path.name}: {path.stat().st_size / 1024:.1f} KiB")


def margins(split: data.Split) -> tuple[float, float, float]:
    """Return below which margins device and gate ask, and the device without a gate, as the training half says."""
    device: list[NDArray[np.float64]] = []
    gate = 0.0
    for seed in range(SHUFFLES):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        with _quickly():
            small, middle = (
                cross_val_predict(
                    models()[name], seen_by(name, split.train_x), split.train_y, cv=folds, method="predict_proba"
                )
                for name in ("device", "gate")
            )
            # its labels alone matter: they need no probabilities
            big = cross_val_predict(SVC(C=10), split.train_x, split.train_y, cv=folds)
        device.append(np.quantile(margin(small), [TO_GATE, TO_CLOUD]))
        worse = (middle.argmax(axis=1) != split.train_y) & (big == split.train_y)
        gate = max(gate, float(margin(middle)[worse].max(initial=0.0)))
    to_gate, to_cloud = np.mean(device, axis=0)
    return float(to_gate), (1 + gate) / 2, float(to_cloud)


@contextlib.contextmanager
def _quickly() -> Iterator[None]:
    """Fit on one core, where these small models are done soonest, and without a word on steps that are enough."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def seen_by(name: str, images: Rows) -> Rows:
    """Return the rows as a model gets them."""
    return tiny(images) if name == "device" else images


def margin(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much the best class leads the second, for each row."""
    best = np.sort(probabilities, axis=1)
    return np.asarray(best[:, -1] - best[:, -2])


if __name__ == "__main__":
    main()
