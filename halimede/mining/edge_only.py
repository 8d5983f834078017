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
    """A ``Miner`` and ``PreInferenceMiner`` for which every sample is easy.

    Only audits (easy samples, to measure the accuracy) are uploaded, and no sample that the small model fails on.
    """

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it ignores the prediction)
        """Return False: no sample is hard."""
        return False

    def foresee(self, image: Image, /) -> bool:  # noqa: ARG002 (it ignores the sample)
        """Return False: no sample is hard."""
        return False
