"""The two data sets of ``bench.loop`` and their four kinds of drift, drawn without end from a random source.

``digits``: the 1,797 images of scikit-learn (8 x 8). Their images are parted between the first training, calibration,
the stream and the test, so that no model is tested on an image that it was trained on. Each draw is turned, moved and
brightened a little. ``strokes``: digits of 16 x 16 pixels, drawn from strokes with random shape, slant and width; there
are as many as needed, and no image is in two parts.

Drifts: ``light`` (half the contrast, brighter), ``rotation`` (30 degrees), ``noise`` (blurred, on a worn
sensor with a fixed pattern of too bright and too dark pixels) and ``style`` (another handwriting, and half of the
classes four times as frequent). Random noise of every frame is no such drift: it destroys information, and no training
wins that back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Part = Literal["first", "calibration", "stream", "test"]
BEFORE = "as before"
DRIFTS = ("light", "rotation", "noise", "style")
CLASSES = 10
#: how much more frequent half of the classes become, the slant of the other handwriting, and the sensor's fixed noise
PRIOR, SLANT, WORN = 4.0, 0.4, {8: 0.25, 16: 0.6}


@dataclass(frozen=True)
class Drawn:
    """Samples as rows, their classes, and what they were drawn from (similar samples have the same group)."""

    samples: Floats
    labels: Labels
    groups: list[str]


class DataSet(Protocol):
    """A source of samples of one seed."""

    side: int

    def draw(self, part: Part, kind: str, count: int, chance: np.random.Generator) -> Drawn:
        """Draw samples of a part of the data, after a kind of drift."""


class Digits:
    """The digits of scikit-learn."""

    side = 8

    def __init__(self, seed: int) -> None:
        images, labels = load_digits(return_X_y=True)
        rest = np.arange(len(labels))
        self._images = images.reshape(-1, 8, 8).astype(np.float32) / 16
        self._labels = labels.astype(np.int64)
        self._seed = seed
        self._parts: dict[str, NDArray[np.int64]] = {}
        for part, size in (("test", 450), ("first", 550), ("calibration", 200)):
            rest, self._parts[part] = train_test_split(rest, test_size=size, random_state=seed, stratify=labels[rest])
        self._parts["stream"] = rest

    def draw(self, part: Part, kind: str, count: int, chance: np.random.Generator) -> Drawn:
        """Draw images of a part, each turned, moved and brightened a little."""
        of = self._parts[part]
        weights = prior(kind, self._seed)[self._labels[of]]
        chosen = chance.choice(of, count, p=weights / weights.sum())
        found = warped(self._images[chosen], chance, kind)
        if kind == "style":
            found = 0.5 * found + 0.5 * thick(found)
        return Drawn(finished(found, kind, chance), self._labels[chosen], [f"image {i}" for i in chosen])


#: the strokes of each digit, in a square from 0 to 1; y points down
TEMPLATES: dict[int, list[list[tuple[float, float]]]] = {
    0: [[(0.5, 0.1), (0.25, 0.3), (0.25, 0.7), (0.5, 0.9), (0.75, 0.7), (0.75, 0.3), (0.5, 0.1)]],
    1: [[(0.5, 0.1), (0.5, 0.9)]],
    2: [[(0.27, 0.25), (0.5, 0.1), (0.73, 0.28), (0.27, 0.9), (0.75, 0.9)]],
    3: [[(0.28, 0.15), (0.6, 0.1), (0.72, 0.3), (0.45, 0.48), (0.74, 0.68), (0.55, 0.9), (0.27, 0.82)]],
    4: [[(0.62, 0.9), (0.62, 0.1), (0.25, 0.62), (0.8, 0.62)]],
    5: [[(0.72, 0.1), (0.3, 0.1), (0.3, 0.45), (0.6, 0.45), (0.73, 0.68), (0.55, 0.9), (0.27, 0.85)]],
    6: [[(0.65, 0.1), (0.35, 0.4), (0.28, 0.7), (0.5, 0.9), (0.72, 0.72), (0.5, 0.52), (0.3, 0.66)]],
    7: [[(0.25, 0.1), (0.75, 0.1), (0.42, 0.9)]],
    8: [
        [
            (0.5, 0.48),
            (0.3, 0.3),
            (0.5, 0.1),
            (0.7, 0.3),
            (0.5, 0.48),
            (0.27, 0.7),
            (0.5, 0.9),
            (0.73, 0.7),
            (0.5, 0.48),
        ]
    ],
    9: [[(0.7, 0.32), (0.5, 0.48), (0.3, 0.3), (0.5, 0.1), (0.7, 0.3), (0.62, 0.9)]],
}
#: the other handwriting: an open four, a seven with a bar, a one with flag and foot, and so on
OTHERS: dict[int, list[list[tuple[float, float]]]] = {
    **TEMPLATES,
    1: [[(0.3, 0.32), (0.52, 0.1), (0.52, 0.9)], [(0.32, 0.9), (0.72, 0.9)]],
    2: [[(0.27, 0.15), (0.73, 0.12), (0.7, 0.5), (0.3, 0.55), (0.28, 0.88), (0.75, 0.88)]],
    4: [[(0.3, 0.1), (0.27, 0.52), (0.75, 0.52)], [(0.68, 0.1), (0.68, 0.9)]],
    6: [[(0.3, 0.1), (0.3, 0.9), (0.7, 0.9), (0.7, 0.5), (0.3, 0.5)]],
    7: [[(0.25, 0.1), (0.75, 0.1), (0.42, 0.9)], [(0.35, 0.5), (0.72, 0.5)]],
    9: [[(0.7, 0.5), (0.3, 0.5), (0.3, 0.1), (0.7, 0.1), (0.7, 0.9), (0.35, 0.9)]],
}
#: lines of a digit, and different images in the stream of a kind
LINES, STREAM = 9, 2000


class Strokes:
    """Digits of strokes, made by the random source; ``seed`` chooses the classes that become frequent."""

    side = 16

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._stream: dict[str, Drawn] = {}

    def draw(self, part: Part, kind: str, count: int, chance: np.random.Generator) -> Drawn:
        """Make new digits; the stream repeats one of STREAM images of its kind."""
        if part == "stream":
            if kind not in self._stream:
                self._stream[kind] = self._made(kind, STREAM, np.random.default_rng([self._seed, len(kind)]))
            of = self._stream[kind]
            chosen = chance.integers(STREAM, size=count)
            return Drawn(of.samples[chosen], of.labels[chosen], [f"{kind} {i}" for i in chosen])
        return self._made(kind, count, chance)

    def _made(self, kind: str, count: int, chance: np.random.Generator) -> Drawn:
        weights = prior(kind, self._seed)
        labels = chance.choice(CLASSES, count, p=weights / weights.sum())
        starts, ends = segments(OTHERS if kind == "style" else TEMPLATES)
        jitter = chance.normal(0, 0.035, (count, *starts.shape[1:3], 2)).astype(np.float32)
        begin, end = starts[labels] + jitter[:, :, :], ends[labels] + np.roll(jitter, -1, axis=1)
        images = rendered(begin, end, chance.uniform(0.03, 0.06, count).astype(np.float32), self.side)
        rows = finished(warped(images, chance, kind), kind, chance)
        return Drawn(rows, labels.astype(np.int64), [""] * count)


def segments(templates: dict[int, list[list[tuple[float, float]]]]) -> tuple[Floats, Floats]:
    """Return begin and end of each digit's lines, repeated up to a common number: [digits, lines, 1, 2]."""
    begins, ends = [], []
    for digit in range(CLASSES):
        lines = [pair for stroke in templates[digit] for pair in pairwise(stroke)]
        lines = [lines[i % len(lines)] for i in range(LINES)]
        begins.append([[line[0]] for line in lines])
        ends.append([[line[1]] for line in lines])
    return np.array(begins, np.float32), np.array(ends, np.float32)


def rendered(begin: Floats, end: Floats, width: Floats, side: int) -> Floats:
    """Draw lines as soft strokes: the nearer a pixel is to one, the darker."""
    axis = (np.arange(side, dtype=np.float32) + 0.5) / side
    y, x = (each.reshape(-1) for each in np.meshgrid(axis, axis, indexing="ij"))
    found = np.empty((len(begin), side * side), np.float32)
    # parts of this size stay in the processor's cache
    for part in (slice(first, first + 256) for first in range(0, len(begin), 256)):
        nearest = np.full_like(found[part], np.inf)
        for line in range(begin.shape[1]):
            start, way = begin[part, line, 0], end[part, line, 0] - begin[part, line, 0]
            from_x, from_y = x - start[:, :1], y - start[:, 1:]
            length = np.maximum((way**2).sum(-1, keepdims=True), 1e-6)
            along = np.clip((from_x * way[:, :1] + from_y * way[:, 1:]) / length, 0, 1)
            far = (from_x - along * way[:, :1]) ** 2 + (from_y - along * way[:, 1:]) ** 2
            nearest = np.minimum(nearest, far)
        found[part] = 1 / (1 + np.exp((np.sqrt(nearest) - width[part, None]) * 60))
    return found.reshape(-1, side, side)


def prior(kind: str, seed: int) -> NDArray[np.float64]:
    """Return the weight of each class."""
    found = np.ones(CLASSES)
    if kind == "style":
        found[np.random.default_rng(seed).permutation(CLASSES)[: CLASSES // 2]] = PRIOR
    return found


def warped(images: Floats, chance: np.random.Generator, kind: str) -> Floats:
    """Turn, slant and move each image, by bilinear interpolation."""
    count, side = len(images), images.shape[1]
    angle = np.radians(chance.normal(30.0 if kind == "rotation" else 0.0, 4.0, count))
    slant = chance.normal(SLANT if kind == "style" else 0.0, 0.05, count)
    cos, sin = np.cos(angle), np.sin(angle)
    middle = (side - 1) / 2
    y, x = np.meshgrid(np.arange(side) - middle, np.arange(side) - middle, indexing="ij")
    move = chance.normal(0, side * 0.03, (2, count))
    turned_x = cos[:, None, None] * x + sin[:, None, None] * y
    turned_y = -sin[:, None, None] * x + cos[:, None, None] * y
    at_x = turned_x + slant[:, None, None] * turned_y + middle + move[0][:, None, None]
    at_y = turned_y + middle + move[1][:, None, None]
    left, top = np.floor(at_x).astype(int), np.floor(at_y).astype(int)
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    found = np.zeros_like(images)
    rows = np.arange(count)[:, None, None]
    for right in (0, 1):
        for below in (0, 1):
            share = np.abs(1 - right - (at_x - left)) * np.abs(1 - below - (at_y - top))
            column, row = np.clip(left + right + 1, 0, side + 1), np.clip(top + below + 1, 0, side + 1)
            found += (share * padded[rows, row, column]).astype(np.float32)
    return found


def thick(images: Floats) -> Floats:
    """Return each pixel's largest neighbour."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    side = images.shape[1]
    shifts = [padded[:, i : i + side, j : j + side] for i, j in ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))]
    return np.maximum.reduce(shifts)


def blurred(images: Floats, times: int) -> Floats:
    """Blur by the binomial filter 1-2-1, repeatedly."""
    for _ in range(times):
        for axis in (1, 2):
            around = [(0, 0)] * 3
            around[axis] = (1, 1)
            padded = np.pad(images, around, mode="edge")
            low, mid, high = (np.take(padded, np.arange(images.shape[axis]) + i, axis=axis) for i in range(3))
            images = ((low + 2 * mid + high) / 4).astype(images.dtype)
    return images


def finished(images: Floats, kind: str, chance: np.random.Generator) -> Floats:
    """Add what the camera adds, and the drift of light or noise; return rows in 0..1."""
    count, side = len(images), images.shape[1]
    light = chance.normal(1.0, 0.05, (count, 1, 1)).astype(np.float32)
    images = images * light
    if kind == "light":
        images = 0.45 * images + 0.35
    if kind == "noise":
        worn = np.random.default_rng(side).normal(0, WORN[side], (side, side)).astype(np.float32)
        images = blurred(images, 1 if side < 16 else 4) + worn
    noise: Any = chance.normal(0, 0.05 if kind == "noise" else 0.02, images.shape)
    return np.clip(images + noise, 0, 1).astype(np.float32).reshape(count, -1)


SETS: dict[str, type[Digits] | type[Strokes]] = {"digits": Digits, "strokes": Strokes}
