"""Agreement of several small models: where they answer differently, the big model should answer.

"Agreement-based cascading for efficient inference" (ABC, arXiv 2407.02348): it needs no training and no labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from halimede.api.mining import AgreementParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness, MiningError, just_over
from halimede.mining.registry import register
from halimede.mining.scores import checked, ratio


def has_votes(prediction: Prediction) -> bool:
    """Whether a prediction has the votes of several models, as an ``EnsembleModel`` gives them."""
    value: Any = prediction.value
    if not isinstance(value, dict):
        return False
    votes, scores = value.get("votes"), value.get("scores")
    return isinstance(votes, list) and isinstance(scores, list) and 0 < len(votes) == len(scores)


@register("Agreement")
@dataclass(frozen=True, slots=True)
class Agreement(AgreementParameters, ByHardness):
    """Hard when the mean score of the majority < ``threshold_agreement``: another vote has the score 0."""

    @property
    def cut(self) -> float:
        """The hardness at the threshold."""
        return just_over(-self.threshold_agreement)

    def hardness(self, prediction: Prediction, /) -> float:
        """The negative mean score of the majority, from -1 (all are certain of one class) to 0."""
        if not has_votes(prediction):
            raise MiningError("the answer has no votes: answer by an EnsembleModel, or use another rule")
        votes, scores = prediction.value["votes"], prediction.value["scores"]
        numbers = checked("score", scores)
        sums = {label: math.fsum(n for n, vote in zip(numbers, votes, strict=True) if vote == label) for label in votes}
        majority = max(sums, key=lambda label: (votes.count(label), sums[label]))
        return -sums[majority] / len(votes)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut."""
        return {"threshold_agreement": ratio(just_over(-cut))}
