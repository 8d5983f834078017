"""Fusion: several sources see one scene, and their predictions for one instant become one answer.

``time_window.py`` puts findings together by when the pictures were taken, ``class_distribution.py`` reads what they
say and makes one answer of it, ``joint.py`` is what a worker runs. ``calibration.py`` finds weights and temperatures
from labelled findings. Nothing in here knows a topic, and only monotonic time decides how long something
waits.
"""

from halimede.multiedge.fusion.class_distribution import Named
from halimede.multiedge.fusion.joint import Fusion, FusionSettings, parse

__all__ = ["Fusion", "FusionSettings", "Named", "parse"]
