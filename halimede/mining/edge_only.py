"""EdgeOnly (Sedna): no sample goes up. For sites that must not send samples, and for measuring the small model."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.messages import Prediction
from halimede.mining.registry import register


@register("EdgeOnly")
@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Every sample is easy."""

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return False
