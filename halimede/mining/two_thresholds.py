"""TwoThresholds: hard when a two-class model's probability is between two thresholds.

From "Inference offloading for cost-sensitive binary classification at the edge" (Moothedath et al., arXiv 2509.15674).
If a miss costs more than a false alarm, the thresholds are not symmetric, and no rule on the confidence alone has them.
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

#: the name of the rule
TWO_THRESHOLDS = "TwoThresholds"


@register(TWO_THRESHOLDS)
@dataclass(frozen=True, slots=True)
class TwoThresholds(TwoThresholdsParameters, ByHardness):
    """Hard when ``low`` <= p <= ``high``, for the probability p of the class ``positive``.

    An easy sample gets the class of its side: ``positive``, or the other class, ``negative``. A hard one that stays
    here is positive from ``answer`` on (None: from the middle between both thresholds).
    """

    @property
    def cut(self) -> float:
        """0: the hardness at both thresholds."""
        return 0.0

    def hardness(self, prediction: Prediction, /) -> float:
        """The distance of p to the nearer threshold; negative outside of both. Raises MiningError for other classes."""
        p = self.probability(prediction)
        return min(p - self.low, self.high - p)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameters for a cut: both thresholds move by it towards ``answer``, and never pass it.

        A negative cut moves them apart, within 0 to 1.
        """
        low, high = min(self.low + cut, self.between), max(self.high - cut, self.between)
        return {"low": repr(max(low, 0.0)), "high": repr(min(high, 1.0)), "answer": repr(self.between)}

    def probability(self, prediction: Prediction) -> float:
        """Return the probability of the class ``positive``, by its label and score. Raises MiningError for others."""
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
        """Return a prediction with the class that ``answer`` gives it; a prediction of other classes unchanged."""
        try:
            p = self.probability(prediction)
        except MiningError:
            return prediction
        return self.with_class(prediction, is_positive=p >= self.between)

    def with_class(self, prediction: Prediction, *, is_positive: bool) -> Prediction:
        """Return a prediction with the label ``positive`` or ``negative``, and the score of that label."""
        label = self.positive if is_positive else self.negative
        if label == prediction.label:
            return prediction
        return msgspec.structs.replace(prediction, label=label, score=1 - top_score(prediction))
