"""Random (Sedna): a share of all samples goes up, whatever the model says. The baseline for every other algorithm."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from halimede.messages import Prediction
from halimede.mining.registry import register
from halimede.mining.scores import Ratio

Seed = Annotated[int, Meta(ge=0, description="a whole number from 0")]


@register("Random")
@dataclass(slots=True)
class Random:
    """Hard with probability ``random_ratio``; with a ``seed`` the same samples in every run."""

    random_ratio: Ratio = 0.3
    seed: Seed | None = None
    _source: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._source = random.Random(self.seed)  # noqa: S311 (a sample, no secret)

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return self._source.random() < self.random_ratio
