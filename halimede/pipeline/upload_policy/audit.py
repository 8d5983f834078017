"""Selects easy samples for audits, and compares the two answers of an audit.

``halimede.stats.agreement`` evaluates the counts: GM makes estimates from them as well.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Prediction

#: overlap from which two boxes show one object (as in PASCAL VOC, Everingham et al. 2010)
SAME_BOX = 0.5
#: most audits in progress: they wait outside the pipeline and hold their frames
AT_ONCE = 8
#: most boxes of one answer that are compared, by score: an answer may have thousands
MOST_BOXES = 200


class Audits:
    """Selects easy samples at random with probability ``share``. ``chance`` returns numbers from 0 up to 1.

    ``least`` returns a share that changes while the worker runs: the larger one counts, but of it at most ``most``.
    """

    def __init__(
        self,
        share: float,
        chance: Callable[[], float],
        least: Callable[[], float] = lambda: 0.0,
        most: float = 1.0,
    ) -> None:
        self.share = share
        #: audits in progress
        self.open = 0
        self._chance = chance
        self._least = least
        self._most = most

    def present(self) -> float:
        """Return the share that counts now."""
        return max(self.share, min(self._least(), self._most))

    def draw(self) -> bool:
        """Whether the next sample is audited, independent of its content."""
        share = self.present()
        return share > 0 and self._chance() < share and self.open < AT_ONCE


def agrees(edge: Prediction, cloud: Prediction) -> bool:
    """Whether two answers agree: label, boxes (each matches one of the same label), or value."""
    if edge.boxes is not None or cloud.boxes is not None:
        return _same_boxes(edge.boxes or [], cloud.boxes or [])
    if edge.label is not None or cloud.label is not None:
        return edge.label == cloud.label
    return bool(edge.value == cloud.value)


def _same_boxes(some: list[Box], others: list[Box]) -> bool:
    """Match each box, by descending score, with the nearest unmatched box of the same label."""
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
