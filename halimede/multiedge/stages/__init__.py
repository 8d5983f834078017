"""The stages that come with halimede: what an application of one's own is put together from.

They read their settings from the application's parameters, so that a list of classes is an application.
"""

from halimede.multiedge.stages.model_stages import Classify, Crop, Detect, Embed, pixels, vectors
from halimede.multiedge.stages.motion import Motion

__all__ = ["Classify", "Crop", "Detect", "Embed", "Motion", "pixels", "vectors"]
