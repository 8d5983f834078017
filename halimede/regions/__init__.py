"""Regions of a frame: which parts of it are uploaded, one picture of them, and the answer in the frame's pixels.

``find_regions`` selects them, ``lay_out`` arranges them, and ``SentRegions`` joins the big model's answer about them
with the small model's answer about the rest.
"""

from __future__ import annotations

from halimede.regions.joint_answer import SentRegions
from halimede.regions.layout import RegionLayout, RegionPlacement, lay_out
from halimede.regions.selection import BLOCK, MAX_REGIONS, FrameRegion, find_regions

__all__ = [
    "BLOCK",
    "MAX_REGIONS",
    "FrameRegion",
    "RegionLayout",
    "RegionPlacement",
    "SentRegions",
    "find_regions",
    "lay_out",
]
