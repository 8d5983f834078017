"""CrossEntropy (Sedna): hard when the class probabilities are spread out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.messages import Prediction
from halimede.mining.registry import register
from halimede.mining.scores import Ratio, distribution


@register("CrossEntropy")
@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Hard when 1 + sum(p ln p) / ln K < ``threshold_cross_entropy``, for K class probabilities p.

    The left side is 1 for a certain answer and 0 for equal probabilities: one minus the entropy (Shannon 1948) over
    its maximum. p ln p is 0 where p is 0, its limit. A single p counts as p and 1 - p. Boxes raise MiningError.
    """

    threshold_cross_entropy: Ratio = 0.5

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard."""
        probabilities = distribution(prediction)
        negative_entropy = math.fsum(p * math.log(p) for p in probabilities if p > 0)
        return 1 + negative_entropy / math.log(len(probabilities)) < self.threshold_cross_entropy
