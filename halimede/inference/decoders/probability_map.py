"""Reads boxes of text from a map of probabilities: each connected region above a threshold is a line of text. Pure.

The model is trained on shrunk regions, so each region is grown by ``area * unclip / perimeter`` on all sides. Source:
Real-time Scene Text Detection with Differentiable Binarization (Liao et al., 2020, arXiv 1911.08947), section 3.4.
Unlike there, a region is its upright box, and its score is the mean of its cells.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from halimede.inference.connected_regions import regions
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, SampleError
from halimede.inference.postprocess import SCORE_SLACK

#: defaults, as in PaddleOCR: the probability above which a cell is text, and the factor of a region's growth
THRESHOLD, UNCLIP = 0.3, 1.6
#: least side of a region in cells: smaller ones are noise
LEAST_SIDE = 3


class TextRegions(NamedTuple):
    """The lines of text of one sample, from top to bottom.

    Attributes:
        boxes: corners ``[n, 4]`` float64 in pixels of the model's input.
        scores: ``[n]`` float64, the mean probability of each region.

    """

    boxes: Array
    scores: Array


def read_probabilities(
    values: Array, geometry: Geometry | None, *, threshold: float = THRESHOLD, unclip: float = UNCLIP
) -> TextRegions:
    """Return the lines of text in a map of probabilities ``[1, h, w]`` or ``[h, w]``.

    ``geometry``: the mapping to the model's input; the map must have the size of that input. None: the size is not
    checked. ``threshold``: the probability, 0..1, above which a cell is text. ``unclip``: how much regions grow. Raises
    SampleError for other shapes and values.
    """
    map_ = values[0] if values.ndim == 3 and len(values) == 1 else values
    if map_.ndim != 2 or not map_.size:
        raise SampleError(
            f"the model gives {list(values.shape)} for one sample, which is no map of probabilities [1, h, w]: "
            "check spec.postprocess.output and boxes.decode"
        )
    if geometry and map_.shape != (geometry.y.size, geometry.x.size):
        raise SampleError(
            f"the model gives a map of {list(map_.shape)} for an input of {[geometry.y.size, geometry.x.size]}: "
            "boxes.decode db reads maps as large as the input"
        )
    if map_.max() > 1 + SCORE_SLACK or map_.min() < 0:
        text = f"from {map_.min():.4g} to {map_.max():.4g}, which are no probabilities"
        raise SampleError(f"the model gives a map {text}: set spec.postprocess.activation to sigmoid")
    parts = regions(map_ > threshold, weights=map_)
    table = np.array([(p.x1, p.y1, p.x2, p.y2, p.weight / p.area) for p in parts], np.float64).reshape(-1, 5)
    table = table[(table[:, 2:4] - table[:, :2]).min(axis=1, initial=np.inf) >= LEAST_SIDE]
    table = table[np.lexsort((table[:, 0], table[:, 1]))]
    boxes, sides = table[:, :4], table[:, 2:4] - table[:, :2]
    growth = sides.prod(axis=1, keepdims=True) * unclip / np.maximum(2 * sides.sum(axis=1, keepdims=True), 1)
    return TextRegions(boxes + growth * [-1, -1, 1, 1], table[:, 4])
