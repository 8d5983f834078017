"""Fusion: several sources see one scene, and their predictions for one instant become one answer.

``time_window.py`` groups findings by capture time, ``class_distribution.py`` reads and combines their predictions,
``joint.py`` runs in a worker. ``calibration.py`` finds weights and temperatures from labelled findings. No module here
uses a topic, and only monotonic time decides how long something waits.
"""

from halimede.multiedge.fusion.class_distribution import Named
from halimede.multiedge.fusion.joint import Fusion, FusionSettings, parse

__all__ = ["Fusion", "FusionSettings", "Named", "parse"]
