"""The anchors of SSD models, and the boxes that a model's numbers make of them. Pure, except for the file of anchors.

Sources: SSD: Single Shot MultiBox Detector (Liu et al., 2016, arXiv 1512.02325), equations 2 and section 2.2, with the
variances of its published configuration; BlazeFace (Bazarevsky et al., 2019, arXiv 1907.05047), section 3.2: anchors
are the middles of cells, several to a cell, and numbers are pixels of the model's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halimede.api.processing import Anchors
from halimede.inference.model import Array, ModelError, SampleError

#: SSD's variances of a middle and of a size
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2])
#: bytes of a file of anchors
MAX_BYTES = 16 * 1024**2
FIELD = "spec.postprocess.boxes.anchors"


class LoadedAnchors(Anchors, kw_only=True):
    """Anchors of which the file is read: ``values``, [boxes, 4]."""

    values: Array


@dataclass(frozen=True, slots=True)
class AnchorBoxes:
    """Anchors of one input size: ``boxes`` [n, 4] are middles and sizes in shares of it. ``size``: width, height."""

    boxes: Array
    size: tuple[int, int]
    log: bool
    source: str

    def decode(self, values: Array) -> Array:
        """Return middles and sizes in pixels of the model's input, ``[n, 4]``. Raises SampleError."""
        if values.ndim != 2 or values.shape[1] < 4 or len(values) != len(self.boxes):
            raise SampleError(
                f"the model gives {list(values.shape)} for one sample, and {FIELD} has {len(self.boxes)} anchors "
                f"({self.source}), which are no [boxes, 4 or more] of as many boxes: correct the anchors"
            )
        numbers = np.asarray(values[:, :4], np.float64)
        pixels = np.tile(np.asarray(self.size, np.float64), 2)
        middles, sizes = self.boxes[:, :2], self.boxes[:, 2:]
        if not self.log:
            return np.concatenate([numbers[:, :2] + middles * pixels[:2], numbers[:, 2:]], axis=1)
        numbers = numbers * VARIANCES
        with np.errstate(over="ignore"):  # an infinite size is refused below
            shares = np.concatenate([numbers[:, :2] * sizes + middles, np.exp(numbers[:, 2:]) * sizes], axis=1)
        if not np.isfinite(shares).all():
            raise SampleError("the model gives boxes beyond all measure for this sample")
        return np.asarray(shares * pixels)

    def points(self, values: Array) -> Array | None:
        """Return the landmarks behind the four numbers, ``[n, points, 2]``, in pixels of the model's input."""
        count = (values.shape[1] - 4) // 2
        if self.log or not count:
            return None
        middles = self.boxes[:, np.newaxis, :2] * np.asarray(self.size, np.float64)
        return np.asarray(values[:, 4 : 4 + 2 * count].reshape(-1, count, 2) + middles)


def anchor_boxes(anchors: Anchors, size: tuple[int, int]) -> AnchorBoxes:
    """Return the anchors for an input of this width and height."""
    if isinstance(anchors, LoadedAnchors):
        return AnchorBoxes(anchors.values, size, anchors.log, f"of {anchors.file}")
    grid = cell_middles(anchors.strides, anchors.per_cell, *size)
    source = f"strides {anchors.strides}, perCell {anchors.per_cell}, input {size[0]} x {size[1]}"
    return AnchorBoxes(grid, size, anchors.log, source)


def cell_middles(strides: Sequence[int], per_cell: int, width: int, height: int) -> Array:
    """Return the middles of cells, with a size of 1: ``[n, 4]``.

    Layers that follow one another with one stride share cells: the anchors of all of them stand together.
    """
    layers: list[tuple[int, int]] = []
    for stride in strides:
        count = per_cell
        if layers and layers[-1][0] == stride:
            count += layers.pop()[1]
        layers.append((stride, count))
    return np.concatenate([_layer(stride, count, width, height) for stride, count in layers])


def _layer(stride: int, count: int, width: int, height: int) -> Array:
    columns, rows = -(-width // stride), -(-height // stride)
    y, x = np.mgrid[0:rows, 0:columns]
    middles = np.stack([(x + 0.5) / columns, (y + 0.5) / rows], axis=-1).reshape(-1, 2)
    return np.concatenate([np.repeat(middles, count, axis=0), np.ones((rows * columns * count, 2))], axis=1)


def load_anchors(anchors: Anchors, folder: Path) -> Anchors:
    """Return anchors with their file read, if they have one. Raises ModelError."""
    if not anchors.file:
        return anchors
    path, field = folder / anchors.file, f"{FIELD}.file"
    try:
        if not path.is_file():  # opening a pipe would wait
            raise FileNotFoundError
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(f"{field}: {path.name} has more than {MAX_BYTES} bytes: is it a file of anchors?")
        values = _read_numbers(path)
    except OSError as error:
        text = f"{field}: there is no readable file {path.name} in the model's folder"
        raise ModelError(f"{text}: pack it into one archive (tar, tar.gz, zip) with the model") from error
    except (ValueError, MemoryError) as error:  # the latter: a header with a shape that does not fit in memory
        raise ModelError(f"{field}: {path.name} holds no numbers [boxes, 4]: {str(error).splitlines()[0]}") from error
    if values.ndim != 2 or values.shape[1] != 4 or values.dtype.kind not in "uif" or not np.isfinite(values).all():
        text = f"{field}: {path.name} holds {values.dtype} {list(values.shape)}, which are no finite numbers [boxes, 4]"
        raise ModelError(f"{text}: write middle x, middle y, width, height of each anchor, in shares of the input")
    if (smallest := values[:, 2:].min(initial=0)) < 0:
        text = f"{field}: {path.name} has an anchor of the size {smallest:g}, and no size is below 0"
        raise ModelError(f"{text}: write middle x, middle y, width, height of each anchor, not its corners")
    return LoadedAnchors(
        strides=anchors.strides, file=anchors.file, log=anchors.log, values=np.asarray(values, np.float64)
    )


def _read_numbers(path: Path) -> Array:
    """Return the numbers of a file of NumPy's format or of text. Raises OSError, ValueError, MemoryError."""
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    if not path.stat().st_size:
        raise ValueError("it is empty")
    return np.loadtxt(path, delimiter=",", ndmin=2)
