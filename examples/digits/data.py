"""The digits that ship with scikit-learn: 1,797 real handwritten images of 8 x 8 pixels, 17 grey levels.

Half trains the models, the other half is what the cameras see; no image is in both.

    python -m examples.digits.data build/digits

writes that other half as pictures in folders that are named by their class: ``calibrate/`` and ``test/``, half of it
each, so that what is chosen on the one can be measured on the other.
"""

from __future__ import annotations

import argparse
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

#: 16 levels of ink become 0..240 in the picture, so that a picture divided by 240 is the data divided by 16, exactly
LEVEL = 15
SEED = 0


@dataclass(frozen=True)
class Split:
    """Images as float32 rows of 64 values in 0..1, and their labels."""

    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]


def load(seed: int = SEED) -> Split:
    """Return the fixed split; another ``seed`` is another one, for figures over many."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.5, random_state=seed, stratify=labels
    )
    return Split(train_x, train_y, test_x, test_y)


def to_png(image: NDArray[np.float32]) -> bytes:
    """Return one image (64 values in 0..1) as an 8 x 8 greyscale PNG."""
    pixels = np.rint(image * 16 * LEVEL).astype(np.uint8).reshape(8, 8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def export(folder: Path, seed: int = SEED) -> dict[str, int]:
    """Write the pictures that no model was trained on; return how many there are in each part."""
    split = load()
    calibrate, test = train_test_split(
        np.arange(len(split.test_y)), test_size=0.5, random_state=seed, stratify=split.test_y
    )
    written: Counter[str] = Counter()
    for part, chosen in (("calibrate", calibrate), ("test", test)):
        for i in sorted(chosen):
            place = folder / part / str(split.test_y[i])
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i:03}.png").write_bytes(to_png(split.test_x[i]))
            written[part] += 1
    return dict(written)


def main() -> None:
    """Write the pictures, and say how many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the folders calibrate and test go")
    folder = parser.parse_args().folder
    for part, count in export(folder).items():
        print(f"{folder / part}: {count} pictures")


if __name__ == "__main__":
    main()
