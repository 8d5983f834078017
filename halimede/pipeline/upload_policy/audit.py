"""Selects the easy samples to audit, and compares both answers of one.

What is made of the counts stands in ``halimede.stats.agreement``: GM estimates from them, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Prediction

#: boxes that overlap by this much are of one thing (as in PASCAL VOC, Everingham et al. 2010)
SAME_BOX = 0.5
#: audits under way at once: they wait beside the loop with their frames
AT_ONCE = 8
#: boxes of one answer that are compared, the surest: an answer may have thousands
MOST_BOXES = 200


class Audits:
    """Draws easy samples by chance, each with probability ``share``. ``chance`` gives numbers from 0 up to 1."""

    def __init__(self, share: float, chance: Callable[[], float]) -> None:
        self.share = share
        #: how many are under way
        self.open = 0
        self._chance = chance

    def draw(self) -> bool:
        """Whether the next sample is audited, independent of its content."""
        return self.share > 0 and self._chance() < self.share and self.open < AT_ONCE


def agrees(edge: Prediction, cloud: Prediction) -> bool:
    """Whether two answers are the same: label, boxes (each with one of the other's, same label), or value."""
    if edge.boxes is not None or cloud.boxes is not None:
        return _same_boxes(edge.boxes or [], cloud.boxes or [])
    if edge.label is not None or cloud.label is not None:
        return edge.label == cloud.label
    return bool(edge.value == cloud.value)


def _same_boxes(some: list[Box], others: list[Box]) -> bool:
    """Match each box, the surest first, with the other answer's nearest free one of its label."""
    if len(some) != len(others):
        return False
    left = sorted(others, key=lambda box: -box.score)[:MOST_BOXES]
    for box in sorted(some, key=lambda box: -box.score)[:MOST_BOXES]:
        alike = [i for i, other in enumerate(left) if other.label == box.label]
        if not alike:
            return False
        shared = overlaps(_corners([box])[0], _corners([left[i] for i in alike]))
        best = int(shared.argmax())
        if shared[best] < SAME_BOX:
            return False
        del left[alike[best]]
    return True


def _corners(boxes: list[Box]) -> Array:
    return np.array([[box.x1, box.y1, box.x2, box.y2] for box in boxes], np.float64)
