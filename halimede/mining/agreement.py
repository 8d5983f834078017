"""Agreement: hard when several small models answer differently.

From "Agreement-based cascading for efficient inference" (ABC, arXiv 2407.02348). The rule needs no training and no
labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from halimede.api.mining import AgreementParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold, MiningError
from halimede.mining.registry import register
from halimede.mining.scores import unit_floats


def has_votes(prediction: Prediction) -> bool:
    """Whether a prediction has the votes of several models: ``votes`` and ``scores`` in its value (EnsembleModel)."""
    value: Any = prediction.value
    if not isinstance(value, dict):
        return False
    votes, scores = value.get("votes"), value.get("scores")
    return isinstance(votes, list) and isinstance(scores, list) and 0 < len(votes) == len(scores)


@register("Agreement")
@dataclass(frozen=True, slots=True)
class Agreement(AgreementParameters, BelowThreshold):
    """Hard when the mean score of the majority's class is below ``threshold_agreement``.

    A model that votes for another class counts with the score 0.
    """

    threshold_field = "threshold_agreement"

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the mean score: -1 (all models are certain of one class) to 0. Raises MiningError without votes."""
        if not has_votes(prediction):
            raise MiningError("the answer has no votes: answer by an EnsembleModel, or use another rule")
        votes, scores = prediction.value["votes"], prediction.value["scores"]
        numbers = unit_floats("score", scores)
        sums = {label: math.fsum(n for n, vote in zip(numbers, votes, strict=True) if vote == label) for label in votes}
        majority = max(sums, key=lambda label: (votes.count(label), sums[label]))
        return -sums[majority] / len(votes)
