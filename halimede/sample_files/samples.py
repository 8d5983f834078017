"""Samples of pictures as the readers of COCO and VOC return them: where the picture is, and its boxes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LabelledBox:
    """An object in a picture: its class, and its upper left and lower right corner in pixels.

    Attributes:
        label: the name of the class.
        is_left_out: a detector is not compared with it, because it is a difficult object.

    """

    label: str
    x1: float
    y1: float
    x2: float
    y2: float
    is_left_out: bool = False


@dataclass(frozen=True, slots=True)
class PictureSample:
    """The path of a picture, and the objects in it."""

    picture: Path
    boxes: list[LabelledBox]
