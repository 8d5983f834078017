"""Faces first: what a detector finds is made unrecognisable before anything else looks at the picture.

    python -m halimede.multiedge.show --entry examples.stages.blur:application
    halimede apply -f examples/digits/1-models.yaml -f examples/stages/blur.yaml
    halimede results -f blur

The stages after ``Pixelate`` see a few cells where the box is, and the picture itself never leaves its node: the
application is not shared with peers. Parameters: ``find`` (motion, or model: the worker's detector), ``cells`` (6): so
many across the shorter side of a box, ``grow`` (0.1): share of its size that is covered around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from halimede.inference import Array
from halimede.multiedge import Application, Item, Parameters, Stage, Tools
from halimede.multiedge.stages import Classify, Detect, Motion, pixels


class Pixelate(Stage):
    """Put a few large cells, each the mean of what was there, in place of every box."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._cells = int(tools.parameters.number("cells", 6, least=1, most=64))
        self._grow = tools.parameters.number("grow", 0.1, least=0, most=2)

    def run(self, items: Sequence[Item]) -> None:
        """Give each item a picture of its own: the one that came in may be read-only."""
        for item in items:
            places = [pixels(box, item.image, self._grow) for box in item.prediction.boxes or []]
            item.image = item.image.copy()
            for left, top, right, bottom in filter(None, places):
                part = item.image[top:bottom, left:right]
                part[:] = coarse(part, self._cells)


def coarse(part: Array, cells: int) -> Array:
    """Return a picture of equal size whose shorter side has ``cells`` different values at most."""
    side = max(1, -(-min(part.shape[:2]) // cells))
    rows, columns = (np.arange(0, size, side) for size in part.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(part.astype(np.float64), rows, axis=0), columns, axis=1)
    heights, widths = np.diff([*rows, part.shape[0]]), np.diff([*columns, part.shape[1]])
    counts = np.multiply.outer(heights, widths).reshape(len(rows), len(columns), *[1] * (part.ndim - 2))
    return np.repeat(np.repeat((sums / counts).astype(part.dtype), heights, axis=0), widths, axis=1)


def application(parameters: Parameters) -> Application:
    """Put it together: source -> find -> pixelate -> classify -> sink."""
    find = {"motion": Motion, "model": Detect}[parameters.text("find", "motion", choices=("motion", "model"))]
    return Application(stages=[find, Pixelate, Classify])
