"""CloudOnly (Sedna): uploads every sample, for measuring the big model and the link to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halimede.api.mining import CloudOnlyParameters
from halimede.messages import Prediction
from halimede.mining.registry import register

if TYPE_CHECKING:
    from halimede.mining.pre_inference import Image


@register("CloudOnly")
@dataclass(frozen=True, slots=True)
class CloudOnly(CloudOnlyParameters):
    """A ``Miner`` and ``PreInferenceMiner`` for which every sample is hard.

    With a budget, the samples above it are answered by the small model, degraded, since there is no cut to move.
    """

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it ignores the prediction)
        """Return True: each sample is hard."""
        return True

    def foresee(self, image: Image, /) -> bool:  # noqa: ARG002 (it ignores the sample)
        """Return True: each sample is hard."""
        return True
