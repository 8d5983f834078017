"""CrossEntropy (Sedna): hard when the class probabilities are spread out."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import CrossEntropyParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold
from halimede.mining.registry import register
from halimede.mining.scores import distribution, entropy


@register("CrossEntropy")
@dataclass(frozen=True, slots=True)
class CrossEntropy(CrossEntropyParameters, BelowThreshold):
    """Hard when 1 + sum(p ln p) / ln K < ``threshold_cross_entropy``, for K class probabilities p.

    The left side is 1 for a certain answer and 0 for equal probabilities: one minus the entropy (Shannon 1948) over
    its maximum. p ln p is 0 where p is 0, its limit. A single p counts as p and 1 - p. Boxes raise MiningError.
    """

    threshold_field = "threshold_cross_entropy"

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus (1 + sum(p ln p) / ln K): -1 (certain) to 0. Raises MiningError without class probabilities."""
        return entropy(distribution(prediction)) - 1
