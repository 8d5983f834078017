"""Random (Sedna): uploads a share of all samples, chosen at random. The baseline of the other algorithms."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halimede.api.mining import RandomParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold
from halimede.mining.registry import register

if TYPE_CHECKING:
    from halimede.mining.pre_inference import Image


@register("Random")
@dataclass(slots=True)
class Random(RandomParameters, BelowThreshold):
    """Hard if a uniform random number from 0..1 is below ``random_ratio``; with a ``seed``, not None, runs repeat.

    It is a ``PreInferenceByNumber`` as well: it can judge samples before inference (mining-then-inference).
    """

    threshold_field = "random_ratio"

    _source: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._source = random.Random(self.seed)  # noqa: S311 (not a secret)

    def hardness(self, prediction: Prediction, /) -> float:  # noqa: ARG002 (it ignores the prediction)
        """Minus the random number: a new one at each call."""
        return -self._source.random()

    def foresee(self, image: Image, /) -> bool:
        """Whether the sample is hard: by a new random number at each call."""
        return self.foreseen(image) >= self.cut

    def foreseen(self, image: Image, /) -> float:  # noqa: ARG002 (it ignores the sample)
        """Minus the random number: a new one at each call."""
        return -self._source.random()
