"""EdgeOnly (Sedna): no sample goes up. For sites that must not send samples, and for measuring the small model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halimede.messages import Prediction
from halimede.mining.registry import register

if TYPE_CHECKING:
    from halimede.mining.pre_inference import Image


@register("EdgeOnly")
@dataclass(frozen=True, slots=True)
class EdgeOnly:
    """Every sample is easy, and nothing goes up but audits, not even what the small model fails on."""

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return False

    def foresee(self, image: Image, /) -> bool:  # noqa: ARG002 (it looks at nothing)
        """Whether the sample is hard."""
        return False
