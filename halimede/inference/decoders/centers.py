"""Reads boxes from maps of scores, sizes and offsets, each at a quarter of the input's width and height. Pure.

A score that is as high as its eight neighbours is the middle of a box. In CenterNet (Objects as Points, Zhou et al.,
2019, arXiv 1904.07850, section 4), sizes and offsets are in cells, x before y. In CenterFace (Xu et al., 2019, arXiv
1911.03599, section 3.2), sizes are logarithms of cells, y is before x, offsets count from the middle of a cell, and
landmarks are fractions of the box.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from halimede.inference.model import Array, SampleError

#: pixels of the input from cell to cell
STRIDE = 4


class Middles(NamedTuple):
    """The boxes of one sample.

    Attributes:
        boxes: ``[n, 4]`` float64, middle x, middle y, width, height in pixels of the model's input.
        scores: ``[n]``, as in the map.
        classes: ``[n]``, class indices.
        points: landmarks ``[n, points, 2]`` in pixels of the model's input; None: the model gives none.

    """

    boxes: Array
    scores: Array
    classes: Array
    points: Array | None


def read_maps(
    scores: Array, sizes: Array, offsets: Array, points: Array | None = None, *, face: bool, least: float = 0.0
) -> Middles:
    """Return a box for each peak in the scores of a class. Raises SampleError for shapes that do not fit.

    ``scores``: ``[classes, h, w]``. ``sizes``, ``offsets``: ``[2, h, w]``. ``points``: a map of landmarks
    ``[2 * points, h, w]``, in fractions of the box from its corner on. ``face``: read sizes and offsets as CenterFace
    writes them. ``least``: the score from which a peak is a box.
    """
    height, width = scores.shape[-2:] if scores.ndim == 3 else (0, 0)
    if not scores.size or sizes.shape != (2, height, width) or offsets.shape != sizes.shape:
        shapes = f"{list(scores.shape)}, {list(sizes.shape)} and {list(offsets.shape)}"
        raise SampleError(
            f"the model gives {shapes} for one sample, which are no maps of scores [classes, h, w], sizes [2, h, w] "
            "and offsets [2, h, w]: check spec.postprocess.output, boxes.output and boxes.offsets"
        )
    kinds, rows, columns = np.nonzero(is_peak(scores) & (scores >= least))
    size, offset = (np.asarray(values[:, rows, columns], np.float64) for values in (sizes, offsets))
    if face:
        with np.errstate(over="ignore"):  # an infinite size is refused below
            size, offset = np.exp(size[::-1]), offset[::-1] + 0.5
    middles = np.stack([columns, rows]) + offset
    boxes = np.concatenate([middles, size]).T * STRIDE
    if not np.isfinite(boxes).all():
        raise SampleError("the model gives boxes beyond all measure for this sample")
    landmarks = None if points is None else _points(points, boxes, (rows, columns), scores.shape[1:])
    return Middles(boxes, scores[kinds, rows, columns], kinds, landmarks)


def _points(values: Array, boxes: Array, cells: tuple[Array, Array], shape: tuple[int, ...]) -> Array:
    """Return the landmarks of ``boxes``, ``[n, points, 2]`` in pixels. Raises SampleError.

    ``cells``: row and column of each box's peak. ``shape``: height and width of the maps.
    """
    if values.ndim != 3 or len(values) % 2 or values.shape[1:] != shape:
        raise SampleError(
            f"the model gives landmarks {list(values.shape)} for one sample, which are no map [2 * points, h, w]: "
            "check spec.postprocess.boxes.landmarks"
        )
    # [..., ::-1]: y is before x
    shares = np.asarray(values[(slice(None), *cells)], np.float64).T.reshape(len(boxes), len(values) // 2, 2)[..., ::-1]
    corners = boxes[:, :2] - boxes[:, 2:] / 2
    return np.asarray(corners[:, np.newaxis] + shares * boxes[:, np.newaxis, 2:])


def is_peak(scores: Array) -> Array:
    """Return which values of ``[classes, h, w]`` are above 0 and as high as each of their eight neighbours."""
    padded = np.pad(scores, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    columns = np.maximum(np.maximum(padded[:, :-2], padded[:, 1:-1]), padded[:, 2:])
    highest = np.maximum(np.maximum(columns[..., :-2], columns[..., 1:-1]), columns[..., 2:])
    return np.asarray((scores == highest) & (scores > 0))
