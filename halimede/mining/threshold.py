"""Threshold (Sedna): hard when the boxes are unsure on average."""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.api.mining import ThresholdParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness, just_over
from halimede.mining.registry import register
from halimede.mining.scores import box_scores, empty_hardness, ratio


@register("Threshold")
@dataclass(frozen=True, slots=True)
class Threshold(ThresholdParameters, ByHardness):
    """Hard when the mean score of the boxes is below ``threshold``.

    A classification counts as one box with its top score. ``empty`` defines the result for a frame without boxes.
    """

    @property
    def cut(self) -> float:
        """Just over minus ``threshold``."""
        return just_over(-self.threshold)

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the mean score."""
        scores = box_scores(prediction)
        return -math.fsum(scores) / len(scores) if scores else empty_hardness(self.empty)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut."""
        return {"threshold": ratio(just_over(-cut))}
