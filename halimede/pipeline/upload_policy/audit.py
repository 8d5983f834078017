"""Selects easy samples for audits, and compares the two answers of an audit.

An audit asks the next tier about a sample that the edge answers, to measure how often both agree. Workers count that,
and ``halimede.stats.agreement`` makes estimates from the counts.
"""

from __future__ import annotations

from collections.abc import Callable

from halimede.inference.boxes import overlaps
from halimede.inference.coordinates import corner_rows
from halimede.messages import Box, Prediction

#: intersection over union from which two boxes show one object (as in PASCAL VOC, Everingham et al. 2010)
SAME_BOX = 0.5
#: most audits in progress, because they wait outside the pipeline and hold their frames
MAX_OPEN_AUDITS = 8
#: most boxes of an answer that are compared, those with the best scores
MOST_BOXES = 200


class Audits:
    """Selects easy samples for audits at random.

    ``chance``: returns random numbers from 0 up to 1. ``least``: returns a further fraction, which may change while
    the worker runs.

    Attributes:
        share: least fraction of easy samples to audit.
        open: number of audits in progress, which the caller counts.

    """

    def __init__(self, share: float, chance: Callable[[], float], least: Callable[[], float] = lambda: 0.0) -> None:
        self.share = share
        self.open = 0
        self._chance = chance
        self._least = least

    def present(self) -> float:
        """Return the fraction of easy samples to audit now: the larger of ``share`` and ``least``."""
        return max(self.share, self._least())

    def must_audit(self) -> bool:
        """Whether the next easy sample is audited: by chance, and not with too many audits in progress."""
        return self._chance() < self.present() and self.open < MAX_OPEN_AUDITS


def is_same_answer(edge: Prediction, cloud: Prediction) -> bool:
    """Whether two answers agree: in their boxes if either has ``boxes``, else in their label, else in their value."""
    if edge.boxes is not None or cloud.boxes is not None:
        return _has_same_boxes(edge.boxes or [], cloud.boxes or [])
    if edge.label is not None or cloud.label is not None:
        return edge.label == cloud.label
    return bool(edge.value == cloud.value)


def _has_same_boxes(edge: list[Box], cloud: list[Box]) -> bool:
    """Whether both have as many boxes, and each of ``edge`` matches another one of ``cloud``.

    A box, by descending score, matches the unmatched box of its label that it overlaps most, by SAME_BOX or more.
    """
    if len(edge) != len(cloud):
        return False
    unmatched = sorted(cloud, key=lambda box: -box.score)[:MOST_BOXES]
    for box in sorted(edge, key=lambda box: -box.score)[:MOST_BOXES]:
        alike = [i for i, other in enumerate(unmatched) if other.label == box.label]
        if not alike:
            return False
        shared = overlaps(corner_rows([box])[0], corner_rows(unmatched[i] for i in alike))
        best = int(shared.argmax())
        if shared[best] < SAME_BOX:
            return False
        del unmatched[alike[best]]
    return True
