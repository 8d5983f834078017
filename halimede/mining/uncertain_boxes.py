"""UncertainBoxes: hard when too many of the detected objects may be false.

The detector's form of uncertainty sampling (Lewis and Gale, SIGIR 1994). Unlike the rule IBT, it ignores boxes with a
score below ``low``: a detector without its own threshold returns hundreds of such boxes, and they are noise.
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

    ``empty`` (``hard``, ``easy`` or ``sample(p)``) decides for a frame without boxes of score ``low`` or more. A
    prediction that is no detection raises MiningError.
    """

    @property
    def cut(self) -> float:
        """``threshold_share``: the share of uncertain boxes from which a frame is hard."""
        return self.threshold_share

    def hardness(self, prediction: Prediction, /) -> float:
        """The share of uncertain boxes, 0 to 1; without boxes a number beyond that, by ``empty``."""
        scores = [score for score in own_scores(prediction) if score >= self.low]
        return sum([score < self.high for score in scores]) / len(scores) if scores else empty_hardness(self.empty)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut, bounded by 0 and 1."""
        return {"threshold_share": ratio(cut)}
