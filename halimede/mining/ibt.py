"""IBT, "image and box thresholds" (Sedna): hard when too large a share of the boxes is unsure."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import IBTParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness
from halimede.mining.registry import register
from halimede.mining.scores import box_scores, empty_hardness, ratio


@register("IBT")
@dataclass(frozen=True, slots=True)
class IBT(IBTParameters, ByHardness):
    """Hard when (boxes with score <= ``threshold_box``) / boxes >= 1 - ``threshold_img``.

    A classification counts as one box with its top score. ``empty`` (``hard``, ``easy`` or ``sample(p)``) decides for a
    frame without boxes.
    """

    @property
    def cut(self) -> float:
        """1 - ``threshold_img``: the share of unsure boxes from which a frame is hard."""
        return 1 - self.threshold_img

    def hardness(self, prediction: Prediction, /) -> float:
        """The share of unsure boxes, 0 to 1; without boxes a number beyond that, by ``empty``.

        Raises MiningError for a prediction without any score.
        """
        scores = box_scores(prediction)
        if not scores:
            return empty_hardness(self.empty)
        return sum([score <= self.threshold_box for score in scores]) / len(scores)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut, bounded by 0 and 1."""
        return {"threshold_img": ratio(1 - cut)}
