"""MaxProbability: hard when the probability of the best class is too low.

The optimal rule for calibrated probabilities (Chow, "On optimum recognition error and reject tradeoff", 1970), and the
usual baseline otherwise (Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136).
"""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import MaxProbabilityParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold
from halimede.mining.registry import register
from halimede.mining.scores import top_score


@register("MaxProbability")
@dataclass(frozen=True, slots=True)
class MaxProbability(MaxProbabilityParameters, BelowThreshold):
    """Hard when the highest class probability is below ``threshold_probability``.

    A prediction with only a score is judged by its score. Boxes raise MiningError.
    """

    threshold_field = "threshold_probability"

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the highest probability: -1 to 0. Raises MiningError without a score or class probabilities."""
        return -top_score(prediction)
