"""Sharpness: hard when a picture is blurred. It is the only rule that uses the picture itself.

Small models fail first on blurred pictures, and blur can be measured without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halimede.api.mining import BEFORE, MOST_SHARPNESS, SharpnessParameters
from halimede.messages import Prediction
from halimede.mining.miner import BelowThreshold, MiningError
from halimede.mining.registry import register

if TYPE_CHECKING:
    from halimede.mining.pre_inference import Image


@register("Sharpness")
@dataclass(frozen=True, slots=True)
class Sharpness(SharpnessParameters, BelowThreshold):
    """A ``PreInferenceByNumber``: hard when the variance of the grey picture's Laplacian < ``threshold_sharpness``.

    The Laplacian is that of the four neighbours, [[0, 1, 0], [1, -4, 1], [0, 1, 0]], without the outermost pixels; grey
    is the mean of red, green and blue (a fourth channel is ignored), in the picture's own numbers: 0..255 for camera
    pictures. From Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", ICPR 2000 (their LAPV). The
    values depend on camera and scene, and noise looks sharp: choose the threshold with your own pictures. A picture of
    1280 x 720 pixels takes some milliseconds. Works only in mining-then-inference; raises MiningError for data other
    than pictures.
    """

    threshold_field = "threshold_sharpness"
    largest_threshold = MOST_SHARPNESS

    def __call__(self, prediction: Prediction, /) -> bool:  # noqa: ARG002 (it always raises)
        """Raise MiningError: a prediction does not show sharpness."""
        raise MiningError(f"Sharpness looks at the sample itself: set mode to {BEFORE}")

    def foresee(self, image: Image, /) -> bool:
        """Whether the picture is blurred. Raises MiningError for other data."""
        return self.foreseen(image) >= self.cut

    def foreseen(self, image: Image, /) -> float:
        """Minus the variance of the Laplacian. Raises MiningError for data other than pictures."""
        return -variance_of_laplacian(image)


def variance_of_laplacian(image: Image) -> float:
    """Return the sharpness of a picture ``(height, width[, channels])`` of 3 x 3 pixels or more.

    Raises MiningError for another shape, and for elements that are no real numbers.
    """
    import numpy as np  # noqa: PLC0415 (the other algorithms do not need it)

    picture: Any = np.asarray(image)
    if picture.ndim not in {2, 3} or min(picture.shape[:2]) < 3 or picture.dtype.kind not in "uif":
        raise MiningError(f"Sharpness needs a picture of 3 x 3 pixels or more, and is given {list(picture.shape)}")
    if picture.ndim == 3:
        colours = picture[..., :3]
        # ten times as fast as the mean along a short axis
        picture = colours @ np.full(colours.shape[2], 1 / max(colours.shape[2], 1), np.float32)
    grey = picture.astype(np.float32, copy=False)
    inner = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * inner
    return float(laplacian.var(dtype=np.float64))
