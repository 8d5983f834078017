"""Entropy: hard when the class probabilities are spread out.

The rule of early exits (Teerapittayanon et al., "BranchyNet", ICPR 2016, arXiv 1709.01686).
"""

from __future__ import annotations

from dataclasses import dataclass

from halimede.api.mining import EntropyParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness
from halimede.mining.registry import register
from halimede.mining.scores import distribution, entropy, ratio


@register("Entropy")
@dataclass(frozen=True, slots=True)
class Entropy(EntropyParameters, ByHardness):
    """Hard when -sum(p ln p) / ln K >= ``threshold_entropy``, for K class probabilities p.

    The entropy (Shannon 1948) over its maximum: 0 for a certain answer, 1 for equal probabilities, for any K. It orders
    samples as CrossEntropy does, but large numbers are hard. A single p counts as p and 1 - p. Boxes raise MiningError.
    """

    @property
    def cut(self) -> float:
        """``threshold_entropy``: the entropy from which a sample is hard."""
        return self.threshold_entropy

    def hardness(self, prediction: Prediction, /) -> float:
        """The entropy over its maximum, 0 to 1. Raises MiningError without class probabilities."""
        return entropy(distribution(prediction))

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut, bounded by 0 and 1."""
        return {"threshold_entropy": ratio(cut)}
