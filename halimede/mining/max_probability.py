"""MaxProbability: hard when the probability of the best class is too low.

The optimal rule for correct probabilities (Chow, "On optimum recognition error and reject tradeoff", 1970), and the
usual baseline otherwise (Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136).
"""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import MaxProbabilityParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness, just_over
from halimede.mining.registry import register
from halimede.mining.scores import ratio, top_score


@register("MaxProbability")
@dataclass(frozen=True, slots=True)
class MaxProbability(MaxProbabilityParameters, ByHardness):
    """Hard when the highest class probability is below ``threshold_probability``.

    A prediction with only a score is judged by that. Boxes raise MiningError.
    """

    @property
    def cut(self) -> float:
        """Just over minus ``threshold_probability``."""
        return just_over(-self.threshold_probability)

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the highest probability."""
        return -top_score(prediction)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut."""
        return {"threshold_probability": ratio(just_over(-cut))}
