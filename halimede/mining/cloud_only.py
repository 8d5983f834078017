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
    """Every sample is hard. A budget has no cut to move: samples above it are answered here, degraded."""

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it ignores the prediction)
        """Whether the sample is hard."""
        return True

    def foresee(self, image: Image, /) -> bool:  # noqa: ARG002 (it ignores the sample)
        """Whether the sample is hard."""
        return True
