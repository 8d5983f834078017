"""Margin: hard when the two best classes are close (margin sampling, Scheffer, Decomain and Wrobel, IDA 2001)."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import MarginParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness, just_over
from halimede.mining.registry import register
from halimede.mining.scores import distribution, ratio


@register("Margin")
@dataclass(frozen=True, slots=True)
class Margin(MarginParameters, ByHardness):
    """Hard when the highest class probability leads the second by less than ``threshold_margin``.

    A single p counts as p and 1 - p. Boxes raise MiningError.
    """

    @property
    def cut(self) -> float:
        """Just over minus ``threshold_margin``."""
        return just_over(-self.threshold_margin)

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the lead."""
        values = distribution(prediction)
        values.sort()
        return values[-2] - values[-1]

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut."""
        return {"threshold_margin": ratio(just_over(-cut))}
