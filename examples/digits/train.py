"""Train the small and the big model on half of the digits and write both as ONNX files, with pictures to try them on.

    python -m examples.digits.train

The small one is what fits on any camera; the big one is better and slower. The margin below which a sample counts as
hard is read from the training half alone (cross-validated), so that about a fifth of the samples goes to the cloud.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.svm import SVC

from examples.digits import data

HERE = Path(__file__).parent
MODELS, PICTURES = "models", "pictures"
#: where a checkout has them
FOLDER = HERE / MODELS
UPLOAD = 0.2


def main(folder: Path = HERE) -> None:
    """Train, export into ``models`` and ``pictures`` of a folder, and say what came out."""
    # skl2onnx still reads two attributes that scikit-learn 1.9 deprecates
    warnings.filterwarnings("ignore", category=FutureWarning, module="sklearn")
    split = data.load()
    small = LogisticRegression(C=0.05, max_iter=1000)
    # probabilities by cross-validated Platt scaling: what SVC(probability=True) did before scikit-learn 1.9
    big = CalibratedClassifierCV(SVC(C=10), ensemble=False)
    (folder / MODELS).mkdir(exist_ok=True)
    for name, model in (("small", small), ("big", big)):
        model.fit(split.train_x, split.train_y)
        onnx = to_onnx(model, split.train_x[:1], options={id(model): {"zipmap": False}})
        path = folder / MODELS / f"{name}.onnx"
        path.write_bytes(onnx.SerializeToString())
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB, accuracy on the other half "
              f"{model.score(split.test_x, split.test_y):.4f}")  # fmt: skip
    guesses = np.sort(cross_val_predict(small, split.train_x, split.train_y, cv=5, method="predict_proba"), axis=1)
    margin = float(np.quantile(guesses[:, -1] - guesses[:, -2], UPLOAD))
    write_pictures(split, folder / PICTURES)
    print(f"margin for about {UPLOAD:.0%} upload, from the training half: {margin:.2f}")


def write_pictures(split: data.Split, folder: Path) -> None:
    """Write a hundred pictures of the other half, named by number and truth, and one as a camera would send it."""
    folder.mkdir(exist_ok=True)
    for i in range(100):
        (folder / f"{i:03}-is-{split.test_y[i]}.png").write_bytes(data.to_png(split.test_x[i]))
    with Image.open(io.BytesIO(data.to_png(split.test_x[0]))) as picture:
        picture.resize((64, 64)).convert("RGB").save(folder / "camera.jpg", quality=95)


if __name__ == "__main__":
    main()
