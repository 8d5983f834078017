"""Margin: hard when the two best classes are close (margin sampling, Scheffer, Decomain and Wrobel, IDA 2001)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from halimede.messages import Prediction
from halimede.mining.registry import register
from halimede.mining.scores import Ratio, distribution


@register("Margin")
@dataclass(frozen=True, slots=True)
class Margin:
    """Hard when the highest class probability leads the second by less than ``threshold_margin``.

    A single p counts as p and 1 - p. Boxes raise MiningError.
    """

    threshold_margin: Ratio = 0.5

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard."""
        first, second = heapq.nlargest(2, distribution(prediction))
        return first - second < self.threshold_margin
