"""Two thresholds on a two-class model's probability: they answer on both sides, and upload what is between.

"Inference offloading for cost-sensitive binary classification at the edge" (Moothedath et al., arXiv 2509.15674). Where
a miss costs more than a false alarm, the thresholds are not symmetric, and no rule on the confidence alone gives them.
`halimede calibrate --costs` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from halimede.api.mining import TwoThresholdsParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness, MiningError
from halimede.mining.registry import register
from halimede.mining.scores import top_score

TWO_THRESHOLDS = "TwoThresholds"


@register(TWO_THRESHOLDS)
@dataclass(frozen=True, slots=True)
class TwoThresholds(TwoThresholdsParameters, ByHardness):
    """Hard when ``low`` <= p <= ``high``, for the probability p of the class ``positive``."""

    @property
    def cut(self) -> float:
        """The hardness at both thresholds."""
        return 0.0

    def hardness(self, prediction: Prediction, /) -> float:
        """The distance to the nearer threshold; negative outside of both."""
        p = self.probability(prediction)
        return min(p - self.low, self.high - p)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameters for a cut: both thresholds move to or from ``answer``, and never pass it."""
        low, high = min(self.low + cut, self.between), max(self.high - cut, self.between)
        return {"low": repr(max(low, 0.0)), "high": repr(min(high, 1.0)), "answer": repr(self.between)}

    def probability(self, prediction: Prediction) -> float:
        """Return the probability of the class ``positive``, by label and score. Raises MiningError."""
        score = top_score(prediction)
        if prediction.label == self.positive:
            return score
        if prediction.label == self.negative:
            return 1 - score
        raise MiningError(
            f"the model answers {prediction.label}, which is neither {self.positive} nor {self.negative}: correct these"
            " parameters, or use another rule"
        )

    def final_answer(self, prediction: Prediction) -> Prediction:
        """Return a prediction with the class that the thresholds give; one that they cannot judge stays."""
        try:
            p = self.probability(prediction)
        except MiningError:
            return prediction
        return self.with_class(prediction, is_positive=p >= self.between)

    def with_class(self, prediction: Prediction, *, is_positive: bool) -> Prediction:
        """Return a prediction of one of both classes as one of the other, with its score, if it is not of this one."""
        label = self.positive if is_positive else self.negative
        if label == prediction.label:
            return prediction
        return msgspec.structs.replace(prediction, label=label, score=1 - top_score(prediction))
