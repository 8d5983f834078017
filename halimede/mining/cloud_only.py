"""CloudOnly (Sedna): every sample goes up. For measuring the big model, and the link to it."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.messages import Prediction
from halimede.mining.registry import register


@register("CloudOnly")
@dataclass(frozen=True, slots=True)
class CloudOnly:
    """Every sample is hard."""

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return True
