"""IBT, "image and box thresholds" (Sedna): hard when too large a share of the boxes is unsure."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.messages import Prediction
from halimede.mining.registry import register
from halimede.mining.scores import Empty, Ratio, box_scores, empty_is_hard


@register("IBT")
@dataclass(frozen=True, slots=True)
class IBT:
    """Hard when (boxes with score <= ``threshold_box``) / boxes >= 1 - ``threshold_img``.

    A classification counts as one box with its top score. ``empty`` decides on a frame without boxes.
    """

    threshold_img: Ratio = 0.5
    threshold_box: Ratio = 0.5
    empty: Empty = "hard"

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard."""
        scores = box_scores(prediction)
        if not scores:
            return empty_is_hard(self.empty)
        unsure = sum(score <= self.threshold_box for score in scores)
        return unsure / len(scores) >= 1 - self.threshold_img
