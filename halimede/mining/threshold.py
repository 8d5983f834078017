"""Threshold (Sedna): hard when the boxes are unsure on average."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.api.mining import ThresholdParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold
from halimede.mining.registry import register
from halimede.mining.scores import box_scores, empty_hardness


@register("Threshold")
@dataclass(frozen=True, slots=True)
class Threshold(ThresholdParameters, BelowThreshold):
    """Hard when the mean score of the boxes is below ``threshold``.

    A classification counts as one box with its top score. ``empty`` (``hard``, ``easy`` or ``sample(p)``) decides for a
    frame without boxes.
    """

    threshold_field = "threshold"

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the mean score: -1 to 0; without boxes a number beyond that, by ``empty``.

        Raises MiningError for a prediction without any score.
        """
        scores = box_scores(prediction)
        return -math.fsum(scores) / len(scores) if scores else empty_hardness(self.empty)
