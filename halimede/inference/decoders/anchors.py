"""The anchors of SSD models: boxes at fixed places, which the model's numbers move and resize to what it detects.

The spec's option ``log`` says how numbers are read. With it they are relative to the anchor's size, and sizes are
logarithms (SSD: Single Shot MultiBox Detector, Liu et al., 2016, arXiv 1512.02325, equation 2 and section 2.2, with its
published variances). Without it anchors are the middles of cells, several to a cell, and numbers are pixels of the
model's input (BlazeFace, Bazarevsky et al., 2019, arXiv 1907.05047, section 3.2). Pure, except for the file of anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halimede.api.processing import Anchors
from halimede.inference.model import Array, ModelError, SampleError

#: SSD's factors of the numbers for middle x, middle y, width and height
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2])
#: most bytes of a file of anchors
MAX_BYTES = 16 * 1024**2
#: the field of the spec that errors name
FIELD = "spec.postprocess.boxes.anchors"


class LoadedAnchors(Anchors, kw_only=True):
    """The spec's anchors with the content of their file: ``values``, ``[boxes, 4]`` float64.

    A row is middle x, middle y, width and height, in fractions of the input's width and height.
    """

    values: Array


@dataclass(frozen=True, slots=True)
class AnchorBoxes:
    """The anchors of a model whose input has a fixed size.

    Attributes:
        boxes: ``[n, 4]``, middle x, middle y, width, height, in fractions of the input's width and height.
        size: width and height of the model's input in pixels.
        log: the model's numbers are relative to the anchors, with sizes as logarithms; else they are pixels.
        source: where the anchors come from, for errors.

    """

    boxes: Array
    size: tuple[int, int]
    log: bool
    source: str

    def decode(self, values: Array) -> Array:
        """Return middles and sizes, ``[n, 4]`` in pixels of the input, of the model's numbers ``[n, 4 or more]``.

        Raises SampleError for another number of boxes, and for sizes that are infinite.
        """
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
        """Return the landmarks, ``[n, points, 2]`` in pixels of the input, which the columns after the first four have.

        None with ``log``, or if there are no further columns.
        """
        count = (values.shape[1] - 4) // 2
        if self.log or not count:
            return None
        middles = self.boxes[:, np.newaxis, :2] * np.asarray(self.size, np.float64)
        return np.asarray(values[:, 4 : 4 + 2 * count].reshape(-1, count, 2) + middles)


def anchor_boxes(anchors: Anchors, size: tuple[int, int]) -> AnchorBoxes:
    """Return the anchors for an input of this width and height: of their file, or the middles of cells of a grid."""
    if isinstance(anchors, LoadedAnchors):
        return AnchorBoxes(anchors.values, size, anchors.log, f"of {anchors.file}")
    grid = cell_middles(anchors.strides, anchors.per_cell, *size)
    source = f"strides {anchors.strides}, perCell {anchors.per_cell}, input {size[0]} x {size[1]}"
    return AnchorBoxes(grid, size, anchors.log, source)


def cell_middles(strides: Sequence[int], per_cell: int, width: int, height: int) -> Array:
    """Return ``per_cell`` anchors for each cell of each layer: its middle, and a size of 1; ``[n, 4]`` in fractions.

    A layer is a grid with cells of ``stride`` pixels over an input of ``width`` and ``height``. Successive layers of
    the same stride are one layer with as many times ``per_cell`` anchors.
    """
    layers: list[tuple[int, int]] = []
    for stride in strides:
        count = per_cell
        if layers and layers[-1][0] == stride:
            count += layers.pop()[1]
        layers.append((stride, count))
    return np.concatenate([_layer(stride, count, width, height) for stride, count in layers])


def _layer(stride: int, count: int, width: int, height: int) -> Array:
    """Return ``count`` anchors for each cell of a layer, row by row."""
    columns, rows = -(-width // stride), -(-height // stride)
    y, x = np.mgrid[0:rows, 0:columns]
    middles = np.stack([(x + 0.5) / columns, (y + 0.5) / rows], axis=-1).reshape(-1, 2)
    return np.concatenate([np.repeat(middles, count, axis=0), np.ones((rows * columns * count, 2))], axis=1)


def load_anchors(anchors: Anchors, folder: Path) -> Anchors:
    """Return anchors with the content of their file in the model's folder, if they have one. Raises ModelError."""
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
    """Return the numbers of a file: NumPy's format (.npy), else text, comma-separated, one row a line.

    Raises OSError, ValueError, MemoryError.
    """
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    if not path.stat().st_size:
        raise ValueError("it is empty")
    return np.loadtxt(path, delimiter=",", ndmin=2)
