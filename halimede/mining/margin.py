"""Margin: hard when the two best classes are close (margin sampling, Scheffer, Decomain and Wrobel, IDA 2001)."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import MarginParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold
from halimede.mining.registry import register
from halimede.mining.scores import distribution


@register("Margin")
@dataclass(frozen=True, slots=True)
class Margin(MarginParameters, BelowThreshold):
    """Hard when the highest class probability leads the second by less than ``threshold_margin``.

    A single p counts as p and 1 - p. Boxes raise MiningError.
    """

    threshold_field = "threshold_margin"

    def hardness(self, prediction: Prediction, /) -> float:
        """Minus the lead: -1 to 0. Raises MiningError without class probabilities."""
        second, first = sorted(distribution(prediction))[-2:]
        return second - first
