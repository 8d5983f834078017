"""Scenes with handwritten digits whose boxes are known: a made-up task on real writing.

The digits are those that ship with scikit-learn. They are parted once, by hand of a fixed seed, into those that models
are fitted on, those that their scores are tuned on, those that a rule is calibrated on and those that all are tested
on; no digit is in two of these, and each has scenes of its own. Scenes differ in how many digits they hold (also none),
in how large and how bright these are, and in blur, noise and strokes that are no digits: some are easy for any
detector, some for none.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from sklearn.datasets import load_digits

LABELS = tuple("0123456789")
#: sides of a scene, and of the digits in it
SIDE, SMALLEST, LARGEST = 96, 10.0, 25.0
#: share of scenes without any digit, and the most that are tried to be put into one
NONE, MOST = 0.05, 8
SEED = 7

Part: TypeAlias = Literal["fit", "tune", "calibrate", "test"]
Floats: TypeAlias = NDArray[np.float64]

#: which share of the digits is whose, and where the seeds of its scenes begin
SHARES: dict[Part, tuple[float, float]] = {
    "fit": (0.0, 0.42),
    "tune": (0.42, 0.5),
    "calibrate": (0.5, 0.7),
    "test": (0.7, 1.0),
}
SEEDS: dict[Part, int] = {"fit": 1_000_000, "tune": 2_000_000, "calibrate": 3_000_000, "test": 4_000_000}


@dataclass(frozen=True)
class Scene:
    """A grey picture ``[SIDE, SIDE]`` (uint8), boxes ``[n, 4]`` as x1, y1, x2, y2 in pixels, and the digits in them."""

    picture: NDArray[np.uint8]
    boxes: Floats
    labels: NDArray[np.int64]


def digits(part: Part) -> tuple[Floats, NDArray[np.int64]]:
    """Return one part's digits, ``[n, 8, 8]`` in 0..1, and which they are."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(labels))
    first, last = (round(share * len(labels)) for share in SHARES[part])
    mine = order[first:last]
    return images[mine].reshape(-1, 8, 8) / 16, labels[mine]


def scenes(part: Part, count: int) -> list[Scene]:
    """Return the first scenes of a part: always the same ones."""
    images, labels = digits(part)
    return [_scene(np.random.default_rng(SEEDS[part] + i), images, labels) for i in range(count)]


def write(folder: Path, shown: list[Scene]) -> None:
    """Write scenes as PNG files, and their boxes as COCO's ``annotations.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for i, scene in enumerate(shown):
        name = f"{i:04}.png"
        Image.fromarray(scene.picture).save(folder / name)
        images.append({"id": i + 1, "file_name": name, "width": SIDE, "height": SIDE})
        for (x1, y1, x2, y2), label in zip(scene.boxes.tolist(), scene.labels.tolist(), strict=True):
            box, area = [x1, y1, x2 - x1, y2 - y1], (x2 - x1) * (y2 - y1)
            entry = {"id": len(annotations) + 1, "image_id": i + 1, "category_id": label + 1, "bbox": box}
            annotations.append({**entry, "area": area, "iscrowd": 0})
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(LABELS)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(document))


def _scene(draw: np.random.Generator, images: Floats, labels: NDArray[np.int64]) -> Scene:
    hard = draw.random()  # one number makes a scene harder in all ways at once, as a bad day does
    ground = draw.uniform(25, 80) + np.add.outer(*draw.uniform(-0.25, 0.25, (2, 1)) * np.arange(SIDE))
    whole = _strokes(draw, ground, count=int(draw.integers(0, 3 + round(4 * hard))))
    boxes: list[tuple[int, int, int, int]] = []
    found: list[int] = []
    least = SMALLEST + (LARGEST - SMALLEST) * 0.6 * (1 - hard)
    most = LARGEST - (LARGEST - SMALLEST) * 0.4 * hard
    for _ in range(0 if draw.random() < NONE else int(draw.integers(1, 3 + round((MOST - 1) * hard)))):
        side = round(draw.uniform(least, most))
        edge = side // 8 + 2
        x, y = draw.integers(edge, SIDE - edge - side, 2).tolist()
        near = any(x < b[2] + edge and b[0] < x + side + edge and y < b[3] + edge and b[1] < y + side + edge
                   for b in boxes)  # fmt: skip
        which = int(draw.integers(len(labels)))
        ink = draw.uniform(55, 110) + 70 * (1 - hard)
        if near:
            continue
        digit = Image.fromarray(images[which].astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC)
        whole[y : y + side, x : x + side] += ink * np.clip(np.asarray(digit), 0, 1)
        boxes.append((x, y, x + side, y + side))
        found.append(int(labels[which]))
    clean = Image.fromarray(np.clip(np.rint(whole), 0, 255).astype(np.uint8))
    blurred = clean.filter(ImageFilter.GaussianBlur(draw.uniform(0, 0.3 + hard)))
    noisy = np.asarray(blurred) + draw.normal(0, 2 + 20 * hard, whole.shape)
    picture = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return Scene(picture, np.array(boxes, np.float64).reshape(-1, 4), np.array(found, np.int64))


def _strokes(draw: np.random.Generator, ground: Floats, count: int) -> Floats:
    """Draw lines and arcs, which are no digits, over the ground."""
    mask = Image.new("L", (SIDE, SIDE))
    pen = ImageDraw.Draw(mask)
    for _ in range(count):
        x, y = draw.uniform(0, SIDE, 2)
        dx, dy = draw.uniform(-22, 22, 2)
        ink, width = int(draw.integers(50, 140)), int(draw.integers(1, 3))
        if draw.random() < 0.5:
            pen.line((x, y, x + dx, y + dy), fill=ink, width=width)
        else:
            begin = int(draw.integers(0, 360))
            pen.arc((x, y, x + abs(dx) + 4, y + abs(dy) + 4), begin, begin + 120, fill=ink, width=width)
    return np.asarray(ground + np.asarray(mask, np.float64))
