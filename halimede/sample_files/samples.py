"""Samples of pictures as the readers yield them: where the picture is, and its boxes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LabelledBox:
    """An object in a picture, by its corners in pixels.

    ``is_left_out``: nothing to compare a detector with, a crowd or a difficult object.
    """

    label: str
    left: float
    top: float
    right: float
    bottom: float
    is_left_out: bool = False


@dataclass(frozen=True, slots=True)
class PictureSample:
    """A picture and the objects in it."""

    picture: Path
    boxes: list[LabelledBox]
