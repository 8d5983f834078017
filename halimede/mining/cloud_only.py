"""CloudOnly (Sedna): every sample goes up. For measuring the big model, and the link to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halimede.messages import Prediction
from halimede.mining.registry import register

if TYPE_CHECKING:
    from halimede.mining.pre_inference import Image


@register("CloudOnly")
@dataclass(frozen=True, slots=True)
class CloudOnly:
    """Every sample is hard. There is no number that a budget could move: what is over it is answered here, degraded."""

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return True

    def foresee(self, image: Image, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return True
