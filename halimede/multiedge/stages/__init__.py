"""The stages that come with halimede, one file each: what an application of one's own is put together from.

They read their settings from the application's parameters, so that a list of classes is an application.
"""

from halimede.multiedge.stages.classify import Classify
from halimede.multiedge.stages.common import pixels
from halimede.multiedge.stages.crop import Crop
from halimede.multiedge.stages.detect import Detect
from halimede.multiedge.stages.embed import Embed, vectors
from halimede.multiedge.stages.motion import Motion

__all__ = ["Classify", "Crop", "Detect", "Embed", "Motion", "pixels", "vectors"]
