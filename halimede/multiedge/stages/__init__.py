"""The stages that halimede provides as building blocks of applications.

Each reads its settings from the application's parameters: so a list of these classes is enough for an application.
"""

from halimede.inference.crops import pixels
from halimede.multiedge.stages.model_stages import Classify, Crop, Detect, Embed, vectors
from halimede.multiedge.stages.motion import Motion

__all__ = ["Classify", "Crop", "Detect", "Embed", "Motion", "pixels", "vectors"]
