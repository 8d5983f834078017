"""UncertainBoxes: hard when too many of the detected objects may be false.

The detector's form of uncertainty sampling (Lewis and Gale, SIGIR 1994). Unlike IBT it ignores boxes with scores so low
that they are noise, which a detector without its own threshold returns by the hundred.
"""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import UncertainBoxesParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness
from halimede.mining.registry import register
from halimede.mining.scores import empty_hardness, own_scores, ratio


@register("UncertainBoxes")
@dataclass(frozen=True, slots=True)
class UncertainBoxes(UncertainBoxesParameters, ByHardness):
    """Hard when (boxes with ``low`` <= score < ``high``) / (boxes with ``low`` <= score) >= ``threshold_share``.

    ``empty`` defines the result for a frame without boxes of score ``low`` or more. Predictions without boxes raise
    MiningError.
    """

    @property
    def cut(self) -> float:
        """``threshold_share``."""
        return self.threshold_share

    def hardness(self, prediction: Prediction, /) -> float:
        """Share of uncertain boxes."""
        scores = [score for score in own_scores(prediction) if score >= self.low]
        return sum([score < self.high for score in scores]) / len(scores) if scores else empty_hardness(self.empty)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut."""
        return {"threshold_share": ratio(cut)}
