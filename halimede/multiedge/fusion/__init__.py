"""Fusion: several cameras see one scene, and the predictions for their pictures of one instant become one answer.

``joint`` is the joint that a worker runs. It uses ``time_window``, which groups findings by capture time, and
``class_distribution``, which combines their predictions. ``calibration`` is a program that finds the cameras' weights
and temperatures from labelled findings.
"""

from halimede.multiedge.fusion.class_distribution import Named
from halimede.multiedge.fusion.joint import Fusion, FusionSettings, parse

__all__ = ["Fusion", "FusionSettings", "Named", "parse"]
