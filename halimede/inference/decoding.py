"""Decides at which scale a JPEG is decoded for a model: never smaller than its first step with a size needs.

libjpeg-turbo decodes at 1/2, 1/4 and 1/8 by a smaller inverse transform of each block, which saves most of the work.
This module only computes the scale; ``halimede.frames.encodings`` decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halimede.api.processing import (
    Cast,
    Channels,
    DecodeMode,
    Fit,
    Grayscale,
    Letterbox,
    Normalize,
    ProcessingStep,
    Resize,
    Scale,
)
from halimede.inference.geometry import fit_letterbox, scaled_side, scaled_size
from halimede.inference.model import SampleError

#: by what the sides of a picture may be divided, the smallest picture first
SCALES = (8, 4, 2)
#: steps that compute each pixel from that pixel alone: they may run before or after a change of the size
POINTWISE = (Cast, Channels, Grayscale, Normalize, Scale)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the pictures of a model are decoded at a smaller scale.

    Attributes:
        target: the step that determines the size in pixels that is needed at least.
        grey: only the brightness of the pixels is needed, so one channel is decoded.

    """

    target: Resize | Fit | Letterbox
    grey: bool = False

    def scale(self, width: int, height: int) -> int:
        """Return by what the sides of a picture of this size in pixels are divided: 1, 2, 4 or 8.

        ``target`` makes the same size of the smaller picture as of the whole one. If it cannot be applied, the result
        is 1.
        """
        try:
            size = _size(self.target, width, height)
        except SampleError:  # the step itself reports it
            return 1
        for scale in SCALES:
            side = scaled_side(width, scale), scaled_side(height, scale)
            if side[0] >= size[0] and side[1] >= size[1] and _size(self.target, *side) == size:
                return scale
        return 1


def decoding_of(mode: DecodeMode, steps: Sequence[ProcessingStep]) -> Decoding | None:
    """Return how pictures are decoded for these steps of pre-processing; None: whole, in their own colours.

    ``mode``: exact: always whole; scaled: smaller where a step with a size allows it.
    """
    if mode == "exact":
        return None
    grey = False
    for step in steps:
        if isinstance(step, Resize | Fit | Letterbox):
            return Decoding(step, grey)
        if not isinstance(step, POINTWISE):
            return None
        grey = grey or isinstance(step, Grayscale)
    return None


def _size(step: Resize | Fit | Letterbox, width: int, height: int) -> tuple[int, int]:
    """Return the width and height that a step makes of a picture, without margins. Raises SampleError."""
    if isinstance(step, Letterbox):
        return fit_letterbox(step, width, height)[:2]
    return scaled_size(step, width, height)
