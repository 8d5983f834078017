"""Threshold (Sedna): hard when the boxes are unsure on average."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.messages import Prediction
from halimede.mining.registry import register
from halimede.mining.scores import Empty, Ratio, box_scores, empty_is_hard


@register("Threshold")
@dataclass(frozen=True, slots=True)
class Threshold:
    """Hard when the mean score of the boxes is below ``threshold``.

    A classification counts as one box with its top score. ``empty`` decides on a frame without boxes.
    """

    threshold: Ratio = 0.5
    empty: Empty = "hard"

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard."""
        scores = box_scores(prediction)
        if not scores:
            return empty_is_hard(self.empty)
        return math.fsum(scores) / len(scores) < self.threshold
