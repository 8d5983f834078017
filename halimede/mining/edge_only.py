"""EdgeOnly (Sedna): uploads no sample, for sites that must not send samples, and for measuring the small model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halimede.api.mining import EdgeOnlyParameters
from halimede.messages import Prediction
from halimede.mining.registry import register

if TYPE_CHECKING:
    from halimede.mining.pre_inference import Image


@register("EdgeOnly")
@dataclass(frozen=True, slots=True)
class EdgeOnly(EdgeOnlyParameters):
    """Every sample is easy, and only audits are uploaded, not even samples that the small model fails on."""

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it ignores the prediction)
        """Whether the sample is hard."""
        return False

    def foresee(self, image: Image, /) -> bool:  # noqa: ARG002 (it ignores the sample)
        """Whether the sample is hard."""
        return False
