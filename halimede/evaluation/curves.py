"""Computes the accuracy of joint inference by the share of uploaded samples: a rule's curve, and its bounds.

A rule orders samples, the hardest first. At upload ratio r, the first share r of the samples gets the next tier's
answer. So one run of both models gives the whole curve, for any cut of the rule. Pure; uses only numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from halimede.inference import Array

#: most points of a curve, without its first
POINTS = 200


class Point(TypedDict):
    """One point of a curve: ``accuracy`` of the joint answers if the share ``upload_ratio`` is uploaded; both 0..1."""

    upload_ratio: float
    accuracy: float


def curve(hardness: Array, edge_right: Array, cloud_right: Array, joint_right: Array | None = None) -> list[Point]:
    """Return a rule's curve from upload ratio 0 to 1.

    All arrays have one number for each sample, and at least one: ``hardness`` (the higher, the sooner it is uploaded;
    infinite is allowed), and whether the answers of edge and cloud are right (0 or 1). ``joint_right`` replaces
    ``cloud_right`` if both models answer an uploaded sample together. Samples of equal hardness are uploaded in random
    order: the curve is the mean of all orders, a straight line between the results of two cuts.
    """
    edge = np.asarray(edge_right, np.float64)
    up = np.asarray(cloud_right if joint_right is None else joint_right, np.float64)
    level = np.unique(-np.asarray(hardness, np.float64), return_inverse=True)[1]
    gain = up - edge
    # within a group of equal hardness each sample counts as the mean
    mean_gain = np.bincount(level, gain) / np.bincount(level)
    gained = np.concatenate([[0.0], np.cumsum(mean_gain[np.sort(level)])])
    number = len(edge)
    return [
        Point(upload_ratio=round(count / number, 6), accuracy=round(float(edge.sum() + gained[count]) / number, 6))
        for count in steps(number)
    ]


def oracle(edge_right: Array, up_right: Array) -> list[Point]:
    """Return the best possible curve, from whether the answers are right if kept and if uploaded (0 or 1 a sample).

    Samples that only the cloud answers right are uploaded first, and those that only the edge answers right last.
    """
    edge, up = np.asarray(edge_right, np.float64), np.asarray(up_right, np.float64)
    return curve(up - edge, edge, up)


def chance(edge_right: Array, up_right: Array) -> list[Point]:
    """Return the mean curve of random uploads, from the arrays of ``oracle``: the straight line between the ends."""
    return curve(np.zeros(len(edge_right)), edge_right, up_right)


def steps(number: int, points: int = POINTS) -> list[int]:
    """Return the numbers of uploaded samples at the points of a curve: from 0 to ``number`` in about equal steps.

    ``points``: most steps, so there are at most ``points`` + 1 numbers.
    """
    counts: list[int] = np.unique(np.rint(np.linspace(0, number, min(number, points) + 1)).astype(int)).tolist()
    return counts


def accuracy_at(points: Sequence[Point], ratio: float) -> float:
    """Return the accuracy of a curve at an upload ratio, interpolated between the nearest points."""
    ratios, values = ([point[key] for point in points] for key in ("upload_ratio", "accuracy"))
    return float(np.interp(ratio, ratios, values))
