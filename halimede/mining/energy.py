"""Energy: hard when the energy of a sample's class scores is high.

From Liu et al., "Energy-based out-of-distribution detection", NeurIPS 2020, arXiv 2010.03759.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from halimede.api.mining import MOST_ENERGY, EnergyParameters
from halimede.messages import Prediction
from halimede.mining.miner import ByHardness
from halimede.mining.registry import register
from halimede.mining.scores import distribution, raw_scores

#: temperature for probabilities; at 1 their energy is constant
PROBABILITY_TEMPERATURE = 0.5


@register("Energy")
@dataclass(frozen=True, slots=True)
class Energy(EnergyParameters, ByHardness):
    """Hard when the energy -T ln(sum(exp(f / T))) >= ``threshold_energy``, for class scores f and ``temperature`` T.

    With ``logits: true`` f are the model's raw outputs (activation none), and T is 1 by default: samples of an unknown
    kind have low scores for all classes, hence a high energy.

    Otherwise f = ln p of the class probabilities p. They add up to 1, so that their energy at T = 1 is 0 for every
    sample; below 1 it is (1 - T) times their Rényi entropy of order 1/T (at the default T = 0.5: -ln(sum(p^2)) / 2), 0
    for a certain answer and (1 - T) ln K for equal probabilities. A single p counts as p and 1 - p. Boxes raise
    MiningError.
    """

    @property
    def cut(self) -> float:
        """``threshold_energy``: the energy from which a sample is hard."""
        return self.threshold_energy

    def hardness(self, prediction: Prediction, /) -> float:
        """The energy: 0 to (1 - T) ln K for probabilities, any number for logits. Raises MiningError without them."""
        if self.logits:
            temperature = self.temperature or 1.0
            scores = raw_scores(prediction)
            top = max(scores)
            return -top - temperature * math.log(math.fsum([math.exp((score - top) / temperature) for score in scores]))
        temperature = self.temperature or PROBABILITY_TEMPERATURE
        values = distribution(prediction)
        top = max(values)  # factor it out of the sum, which would otherwise be 0 for many classes at a low temperature
        return -math.log(top) - temperature * math.log(math.fsum([(p / top) ** (1 / temperature) for p in values]))

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut, within its range."""
        return {"threshold_energy": repr(min(max(cut, -MOST_ENERGY), MOST_ENERGY))}
