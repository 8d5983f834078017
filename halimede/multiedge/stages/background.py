"""What a camera that stands still sees when nothing moves, and by how much a picture differs from it. Pure NumPy.

The background is, for each cell, the median of a few pictures taken over time (so that neither what passes nor what
was there at first stays in it for long). Before it is compared it is put into the light of the picture at hand: a
gain and an offset, each with a slope across and down the picture, fitted to the cells that do not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Plane: TypeAlias = NDArray[np.floating[Any]]

#: pictures that the median is of, and how many there must be before anything is compared
KEPT, LEAST = 9, 5
#: of the sorted pictures, those between which half of them lie
LOW, HIGH = 2, 6
#: cells that a fit of the light looks at
FITTED = 4096
#: makes the median of absolute deviations the standard deviation of normal noise
NORMAL = 1.4826
#: gains within which two lights can be compared
GAINS = (0.2, 5.0)
WHITE = 255.0


@dataclass(frozen=True, slots=True)
class Difference:
    """How a picture differs from the background: by how much, in grey levels, what is too much, and the noise."""

    moved: Plane
    limit: Plane
    noise: float


class Background:
    """The background of one camera. ``memory``: how many pictures the median reaches back."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._kept: list[Plane] = []
        self._middle: Plane | None = None
        self._spread: Plane | None = None
        self._seen = 0
        self._since = 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The size of its pictures; None before the first one."""
        return self._kept[0].shape if self._kept else None

    @property
    def ready(self) -> bool:
        """Whether enough pictures are known to compare with."""
        return self._middle is not None

    def compare(self, picture: Plane, threshold: float) -> Difference | None:
        """Compare a picture with the background; None while that is not known, or the light is too different."""
        if self._middle is None or self._spread is None:
            return None
        light = fit_light(self._middle, picture)
        if light is None:
            return None
        gain, offset = light
        expected = np.clip(self._middle * gain + offset, 0, WHITE)
        moved = np.abs(picture - expected)
        noise = NORMAL * float(np.median(moved))
        flicker = np.minimum(3 * self._spread * gain, 2 * threshold)
        return Difference(moved, np.maximum(flicker, max(threshold, 4 * noise)), noise)

    def learn(self, picture: Plane) -> None:
        """Take notice of a picture. At first each one is kept, later one of ever more, until ``memory`` is reached."""
        self._seen += 1
        self._since += 1
        if self._kept and self._since < min(max(1, self._memory // KEPT), max(1, self._seen // 3)):
            return
        if self._middle is not None:
            light = fit_light(self._middle, picture)
            if light is None:
                return
            gain, offset = light
            picture = (picture - offset) / gain
        self._since = 0
        self._kept = [*self._kept[-KEPT + 1 :], picture]
        if len(self._kept) >= LEAST:
            ordered = _sorted(self._kept)
            self._middle = ordered[len(ordered) // 2]
            self._spread = ordered[HIGH * len(ordered) // KEPT] - ordered[LOW * len(ordered) // KEPT]


def fit_light(background: Plane, picture: Plane) -> tuple[Plane, Plane] | None:
    """Return by which gain and offset (planes) a background becomes the picture, where nothing moves.

    A least squares fit that leaves out what it fits badly (what moves) and cells that are black or white, where light
    is lost. Returns None when the light is too different to tell.
    """
    height, width = picture.shape
    stride = max(1, int(np.sqrt(height * width / FITTED)))
    cells = (slice(stride // 2, None, stride), slice(stride // 2, None, stride))
    down, across = (
        axis.ravel()
        for axis in np.meshgrid(*(np.linspace(-1, 1, size) for size in picture[cells].shape), indexing="ij")
    )
    known, seen = background[cells].ravel(), picture[cells].ravel()
    middle = float(np.median(known))
    contrast = [float(np.median(np.abs(values - np.median(values)))) for values in (known, seen)]
    gain = contrast[1] / contrast[0] if min(contrast) > 1 else 1.0
    gain = float(np.clip(gain, *GAINS))
    centred = (known - middle) / WHITE
    columns = np.stack([centred, centred * across, centred * down, np.ones_like(known), across, down], axis=1)
    # where the background has no contrast but its noise, nothing is learnt of the gain: it stays near to the start
    weight = np.diag([2e-4, 2e-4, 2e-4, 1e-5, 1e-3, 1e-3]) * len(known)
    start = np.array([gain * WHITE, 0, 0, float(np.median(seen)), 0, 0])
    factors, lit = start, (seen > 0) & (seen < WHITE)
    for _ in range(4):
        rest = np.abs(seen - columns @ factors)
        fits = lit & (rest <= max(2.0, 3 * NORMAL * float(np.median(rest))))
        chosen = columns[fits]
        factors = np.linalg.solve(chosen.T @ chosen + weight, chosen.T @ seen[fits] + weight @ start)
    if not GAINS[0] <= factors[0] / WHITE <= GAINS[1]:
        return None
    rows, cols = np.linspace(-1, 1, height)[:, np.newaxis], np.linspace(-1, 1, width)[np.newaxis]
    gains = np.clip((factors[0] + factors[1] * cols + factors[2] * rows) / WHITE, *GAINS)
    offsets = factors[3] + factors[4] * cols + factors[5] * rows - gains * middle
    return gains.astype(np.float32), offsets.astype(np.float32)


def _sorted(planes: list[Plane]) -> list[Plane]:
    """Sort a few planes cell by cell: whole planes at a time, which is quicker than a sort of each cell."""
    ordered = list(planes)
    for turn in range(len(ordered)):
        for i in range(turn % 2, len(ordered) - 1, 2):
            ordered[i], ordered[i + 1] = np.minimum(ordered[i], ordered[i + 1]), np.maximum(ordered[i], ordered[i + 1])
    return ordered
