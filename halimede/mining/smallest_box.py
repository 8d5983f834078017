"""SmallestBox: hard when a frame contains a small object.

Small objects are easily missed, and one detected small object indicates more of them (Cao et al., "Edge-cloud
collaborated object detection via difficult-case discriminator", ICDCS 2023, arXiv 2108.12858). COCO calls objects below
32 x 32 pixels small (Lin et al., ECCV 2014, arXiv 1405.0312).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.api.mining import MOST_SIDE, SmallestBoxParameters
from halimede.messages import Box, Prediction
from halimede.mining.miner import BelowThreshold, MiningError
from halimede.mining.registry import register
from halimede.mining.scores import empty_hardness, own_scores


@register("SmallestBox")
@dataclass(frozen=True, slots=True)
class SmallestBox(SmallestBoxParameters, BelowThreshold):
    """Hard when sqrt(width * height) of the smallest box is below ``threshold_side``, in pixels of the frame.

    Boxes with a score below ``score`` do not count; ``empty`` (``hard``, ``easy`` or ``sample(p)``) decides for a frame
    without other boxes. A prediction that is no detection raises MiningError.
    """

    threshold_field = "threshold_side"
    largest_threshold = MOST_SIDE

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the side of a square with the area of the smallest box; without boxes a number beyond, by ``empty``.

        Raises MiningError, also for a box whose corners are no numbers.
        """
        pairs = zip(prediction.boxes or (), own_scores(prediction), strict=True)
        sides = [side(box) for box, score in pairs if score >= self.score]
        return -min(*sides, MOST_SIDE) if sides else empty_hardness(self.empty)


def side(box: Box) -> float:
    """Return the side of a square with the box's area, in pixels. Raises MiningError for corners without numbers."""
    try:
        length = math.sqrt(abs((box.x2 - box.x1) * (box.y2 - box.y1)))
    except (TypeError, ValueError) as error:
        raise MiningError("a box has corners that are no numbers") from error
    if math.isnan(length):
        raise MiningError("a box has corners that are NaN")
    return length
