"""The objects of an answer that count for occupancy."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from halimede.messages import Box, Prediction
from halimede.polygons import Point

#: most characters of a label
MAX_LABEL = 128


class DetectedObject(Struct, frozen=True):
    """An object in a frame.

    Attributes:
        label: its class, in at most 128 characters.
        score: 0 to 1.
        box: in fractions of the picture; None: the answer is about the whole picture.

    """

    label: str
    score: float
    box: Box | None = None

    @property
    def foot(self) -> Point | None:
        """The middle of the lower side of its box: where it stands; None without a box."""
        return None if self.box is None else ((self.box.x1 + self.box.x2) / 2, max(self.box.y1, self.box.y2))


def detected_objects(
    answer: Prediction, size: tuple[int, int], *, min_score: float = 0.0, labels: Collection[str] = ()
) -> list[DetectedObject] | None:
    """Return the objects of an answer with at least ``min_score`` and one of ``labels`` (empty: all).

    ``size``: width and height of the picture in pixels, in which the boxes are. An answer with a label and no boxes is
    one object. None: there is no answer, so that it is unknown what is in the picture.
    """
    if answer.boxes is not None:
        width, height = size
        boxes = [_in_fractions(box, width, height) for box in answer.boxes]
        objects = [DetectedObject(str(box.label), box.score, box) for box in boxes]
    elif answer.label is not None:
        objects = [DetectedObject(answer.label[:MAX_LABEL], 1.0 if answer.score is None else answer.score)]
    else:
        return None
    return [
        detected for detected in objects if detected.score >= min_score and (not labels or detected.label in labels)
    ]


def _in_fractions(box: Box, width: int, height: int) -> Box:
    """Return the part of a box within the picture, in fractions of the picture with 4 decimals.

    Its label has at most ``MAX_LABEL`` characters.
    """
    xs = sorted(min(max(x / width, 0.0), 1.0) for x in (box.x1, box.x2))
    ys = sorted(min(max(y / height, 0.0), 1.0) for y in (box.y1, box.y2))
    return Box(
        round(xs[0], 4), round(ys[0], 4), round(xs[1], 4), round(ys[1], 4), box.score, str(box.label)[:MAX_LABEL]
    )
