"""Maps the coordinates of a prediction (boxes, landmarks, corners of lines of text) to another picture's pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from halimede.inference.model import Array
from halimede.messages import Box, PicturePoint, Prediction, TextLine


def map_coordinates(prediction: Prediction, convert: Callable[[Array], Array]) -> Prediction:
    """Return a prediction with all coordinates mapped; ``convert`` maps ``[n, 2]`` float64 points. Labels stay."""
    if not (prediction.boxes or prediction.landmarks or prediction.lines):
        return prediction
    return msgspec.structs.replace(
        prediction,
        boxes=prediction.boxes and map_boxes(prediction.boxes, convert),
        landmarks=prediction.landmarks and [_map_points(points, convert) for points in prediction.landmarks],
        lines=prediction.lines and [_map_line(line, convert) for line in prediction.lines],
    )


def map_boxes(boxes: Iterable[Box], convert: Callable[[Array], Array]) -> list[Box]:
    """Return boxes whose corners are mapped by ``convert``, which maps ``[n, 2]`` float64 points."""
    before = list(boxes)
    rows = convert(corner_rows(before).reshape(-1, 2)).reshape(-1, 4).tolist()
    return [Box(x1, y1, x2, y2, box.score, box.label) for box, (x1, y1, x2, y2) in zip(before, rows, strict=True)]


def corner_rows(boxes: Iterable[Box]) -> Array:
    """Return the corners of boxes, ``[n, 4]`` float64: x1, y1, x2, y2."""
    return np.array([[box.x1, box.y1, box.x2, box.y2] for box in boxes], np.float64).reshape(-1, 4)


def _map_points(points: Iterable[PicturePoint], convert: Callable[[Array], Array]) -> list[PicturePoint]:
    """Return points mapped by ``convert``."""
    rows = np.array([[point.x, point.y] for point in points], np.float64)
    return [PicturePoint(x, y) for x, y in convert(rows.reshape(-1, 2)).tolist()]


def _map_line(line: TextLine, convert: Callable[[Array], Array]) -> TextLine:
    """Return a line of text with its corners, if it has any, mapped by ``convert``."""
    return msgspec.structs.replace(line, corners=line.corners and _map_points(line.corners, convert))
