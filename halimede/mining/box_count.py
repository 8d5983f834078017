"""BoxCount: hard when a frame contains many objects.

Small models miss objects in crowded scenes and small ones (Cao et al., "Edge-cloud collaborated object detection via
difficult-case discriminator", ICDCS 2023, arXiv 2108.12858, which uses the number of objects and their areas).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.api.mining import MOST_BOXES, BoxCountParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness
from halimede.mining.registry import register
from halimede.mining.scores import empty_hardness, own_scores


@register("BoxCount")
@dataclass(frozen=True, slots=True)
class BoxCount(BoxCountParameters, ByHardness):
    """Hard when the boxes with score >= ``score`` are ``threshold_count`` or more.

    ``empty`` (``hard``, ``easy`` or ``sample(p)``) decides for a frame without any such box. A prediction that is no
    detection raises MiningError.
    """

    @property
    def cut(self) -> float:
        """``threshold_count``: the number of boxes from which a frame is hard."""
        return float(self.threshold_count)

    def hardness(self, prediction: Prediction, /) -> float:
        """The number of boxes with score >= ``score``; without them a number beyond all others, by ``empty``."""
        count = sum([score >= self.score for score in own_scores(prediction)])
        return float(count) if count else empty_hardness(self.empty)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut, rounded up to a whole number from 1 on."""
        return {"threshold_count": str(math.ceil(min(max(cut, 1), MOST_BOXES)))}
