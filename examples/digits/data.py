"""The digits that ship with scikit-learn: 1,797 real handwritten images of 8 x 8 pixels, 17 grey levels.

Half trains the models, the other half is what the cameras see; no image is in both.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

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


def load() -> Split:
    """Return the fixed split."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.5, random_state=SEED, stratify=labels
    )
    return Split(train_x, train_y, test_x, test_y)


def to_png(image: NDArray[np.float32]) -> bytes:
    """Return one image (64 values in 0..1) as an 8 x 8 greyscale PNG."""
    pixels = np.rint(image * 16 * LEVEL).astype(np.uint8).reshape(8, 8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()
