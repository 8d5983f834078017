"""A board that shows one handwritten digit after the other, seen by three cameras that each see it badly.

The same digit is on all three pictures of an instant; dirt, darkness and blur are each camera's own. So one camera
alone is often wrong, and what they say together is mostly right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from examples.digits import data as digits
from examples.multi_edge.pictures import BICUBIC, Picture

CAMERAS = ("west", "mid", "east")
SIDE = 96
SEED = 66


@dataclass(frozen=True)
class Shown:
    """Which digits the board shows, frame by frame: images of 64 values in 0..1, and what they are."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def show(count: int, *, seed: int = SEED, training: bool = False) -> Shown:
    """Draw digits: of the half that the models never saw, unless it is for training."""
    split = digits.load()
    x, y = (split.train_x, split.train_y) if training else (split.test_x, split.test_y)
    chosen = np.random.default_rng(seed).choice(len(x), count, replace=count > len(x))
    return Shown(x[chosen], y[chosen])


def views(camera: str, shown: Shown, *, seed: int = SEED) -> Iterator[Picture]:
    """Yield what a camera sees of the board, [SIDE, SIDE, 3] each."""
    draw = np.random.default_rng((seed, CAMERAS.index(camera)))
    for image in shown.images:
        yield _seen(camera, image, draw)


def belt(count: int, number: int) -> Iterator[Picture]:
    """Yield digits that can be read well, for a camera above a belt."""
    shown = show(count, seed=SEED + 1 + number)
    for image in shown.images:
        yield np.repeat(_large(image).astype(np.uint8)[..., None], 3, axis=2)


def _seen(camera: str, image: NDArray[np.float32], draw: np.random.Generator) -> Picture:
    whole = _large(image, angle=float(draw.normal(0, 7)))
    if camera == "west":  # rain: drops cover parts of it
        for _ in range(int(draw.integers(5, 9))):
            x, y, r = draw.integers(8, SIDE - 8), draw.integers(8, SIDE - 8), draw.integers(6, 15)
            yy, xx = np.ogrid[:SIDE, :SIDE]
            whole[(xx - x) ** 2 + (yy - y) ** 2 < r * r] = float(draw.integers(90, 200))
        whole += draw.normal(0, 22, whole.shape)
        cast = (0.92, 1.0, 1.08)
    elif camera == "mid":  # dusk: little light, much noise
        whole = whole * float(draw.uniform(0.34, 0.54)) + _coarse(draw, 8) * 30 + draw.normal(0, 26, whole.shape) + 18
        cast = (1.0, 0.96, 0.86)
    else:  # it moves: blur along a line, and too much light
        whole = (
            _smeared(whole, int(draw.integers(32, 50)), draw) * 1.25
            + _coarse(draw, 7) * 16
            + 30
            + draw.normal(0, 14, whole.shape)
        )
        cast = (1.06, 1.0, 0.9)
    return np.clip(whole[..., None] * cast, 0, 255).astype(np.uint8)


def _large(image: NDArray[np.float32], angle: float = 0.0) -> NDArray[np.float64]:
    small = Image.fromarray((image.reshape(8, 8) * 225).astype(np.uint8))
    whole = small.resize((SIDE - 16, SIDE - 16), BICUBIC)
    board = Image.new("L", (SIDE, SIDE), 12)
    board.paste(whole.rotate(angle, BICUBIC), (8, 8))
    return np.asarray(board.filter(ImageFilter.GaussianBlur(1)), dtype=np.float64)


def _coarse(draw: np.random.Generator, cells: int) -> NDArray[np.float64]:
    noise = Image.fromarray(draw.standard_normal((cells, cells)).astype(np.float32))
    return np.asarray(noise.resize((SIDE, SIDE), BICUBIC), dtype=np.float64)


def _smeared(whole: NDArray[np.float64], length: int, draw: np.random.Generator) -> NDArray[np.float64]:
    slope = float(draw.uniform(-1.2, 1.2))
    steps = np.linspace(-length / 2, length / 2, 12)
    moved = [np.roll(whole, (round(slope * step), round(step)), axis=(0, 1)) for step in steps]
    return np.asarray(np.mean(moved, axis=0))
