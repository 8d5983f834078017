"""Real pictures to cut objects from: only what ships inside libraries, so that the demo downloads nothing.

scikit-learn brings two photographs (a temple in China, a flower) and 1,797 handwritten digits, matplotlib the portrait
of Grace Hopper. What trains the models and what the cameras see never overlap: the photographs are parted by place,
the digits by image.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from matplotlib import cbook
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from examples.digits import data as digits

Picture = NDArray[np.uint8]
BICUBIC = Image.Resampling.BICUBIC
#: side in pixels of an object as it lies on the plane
SIDE = 56
#: objects of the films: which photograph they are cut from, and where (x, y, side); training leaves these places out
PLACES: dict[str, tuple[str, int, int, int]] = {
    "temple roof": ("china", 145, 25, 125),
    "temple gallery": ("china", 95, 155, 110),
    "tree": ("china", 385, 295, 125),
    "dahlia": ("flower", 245, 155, 125),
    "petals": ("flower", 160, 80, 100),
    "second dahlia": ("flower", 287, 347, 78),
    "portrait": ("hopper", 150, 125, 200),
    "cap badge": ("hopper", 190, 8, 130),
    "stars": ("hopper", 8, 20, 140),
    "ribbons": ("hopper", 315, 465, 125),
}
#: and digits of the test half, on cards of these colours
CARDS = ((3, (236, 198, 98)), (8, (120, 196, 232)))
PHOTOGRAPHS = ("china", "flower", "hopper")


@cache
def photograph(name: str) -> Picture:
    """Return ``china``, ``flower`` or ``hopper`` as [height, width, 3]."""
    if name == "hopper":
        with Image.open(Path(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))) as image:
            return np.asarray(image.convert("RGB"))
    china, flower = load_sample_images().images
    return np.asarray(china if name == "china" else flower, dtype=np.uint8)


@cache
def objects() -> tuple[tuple[str, Picture], ...]:
    """Return the twelve objects of the films: a name for people, and [SIDE, SIDE, 3]."""
    found = []
    for name, (source, x, y, side) in PLACES.items():
        found.append((name, resized(photograph(source)[y : y + side, x : x + side], SIDE)))
    split = digits.load()
    for digit, colour in CARDS:
        image = split.test_x[int(np.flatnonzero(split.test_y == digit)[0])]
        found.append((f"digit {digit}", card(image, colour)))
    return tuple(found)


def training(count: int, seed: int) -> list[Picture]:
    """Cut ``count`` other objects: from the rest of the photographs, and cards with digits of the training half."""
    draw = np.random.default_rng(seed)
    split = digits.load()
    found: list[Picture] = []
    while len(found) < count:
        if draw.random() < 0.25:
            image = split.train_x[int(draw.integers(len(split.train_x)))]
            found.append(card(image, tuple(int(c) for c in draw.integers(90, 250, 3))))
            continue
        source = PHOTOGRAPHS[int(draw.integers(len(PHOTOGRAPHS)))]
        whole, side = photograph(source), int(draw.integers(60, 180))
        x, y = int(draw.integers(whole.shape[1] - side)), int(draw.integers(whole.shape[0] - side))
        if not any(source == place[0] and _overlap((x, y, side), place[1:]) for place in PLACES.values()):
            found.append(resized(whole[y : y + side, x : x + side], SIDE))
    return found


def card(image: NDArray[np.float32], colour: tuple[int, ...]) -> Picture:
    """Return a card of a colour with a handwritten digit in dark ink."""
    ink = np.asarray(Image.fromarray((image.reshape(8, 8) * 255).astype(np.uint8)).resize((SIDE, SIDE), BICUBIC)) / 255
    paper = np.array(colour, dtype=float)
    return np.asarray(paper * (1 - 0.85 * ink[..., None]), dtype=np.uint8)


def resized(picture: Picture, side: int) -> Picture:
    """Scale a square picture."""
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


def _overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    (ax, ay, a_side), (bx, by, b_side) = a, b
    return ax < bx + b_side and bx < ax + a_side and ay < by + b_side and by < ay + a_side
