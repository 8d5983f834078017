"""The stages that halimede provides as building blocks of applications.

They read their settings from the application's parameters, so that a list of classes is an application.
"""

from halimede.inference.crops import pixels
from halimede.multiedge.stages.model_stages import Classify, Crop, Detect, Embed, vectors
from halimede.multiedge.stages.motion import Motion

__all__ = ["Classify", "Crop", "Detect", "Embed", "Motion", "pixels", "vectors"]
