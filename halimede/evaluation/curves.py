"""How good joint inference is at each share of samples that goes up: a rule's curve, and what bounds it.

A rule puts samples in an order, the hardest first; at upload ratio r the first r of them get the next tier's answer.
So one run of both models gives the whole curve, whatever cut the rule has. Pure; numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from halimede.inference import Array

#: points of a curve at most, but for its beginning
POINTS = 200


class Point(TypedDict):
    """``accuracy`` of the joint answers when the share ``upload_ratio`` of all samples goes up; both 0 to 1."""

    upload_ratio: float
    accuracy: float


def curve(hardness: Array, edge_right: Array, cloud_right: Array, joint_right: Array | None = None) -> list[Point]:
    """Return a rule's curve from upload ratio 0 to 1.

    All arrays have one number a sample: ``hardness`` (the higher, the sooner it goes up; infinite is allowed), and
    whether the answer is right (0 or 1) of the edge, and of the cloud; ``joint_right`` in its place where an uploaded
    sample is answered by both together. Samples of equal hardness go up in random order: the curve is its mean, a
    straight line between what two cuts can do.
    """
    edge = np.asarray(edge_right, np.float64)
    up = np.asarray(cloud_right if joint_right is None else joint_right, np.float64)
    level = np.unique(-np.asarray(hardness, np.float64), return_inverse=True)[1]
    gain = up - edge
    # within a group of equals each counts as their mean
    each = np.bincount(level, gain) / np.bincount(level)
    gained = np.concatenate([[0.0], np.cumsum(each[np.sort(level)])])
    number = len(edge)
    return [
        Point(upload_ratio=round(count / number, 6), accuracy=round(float(edge.sum() + gained[count]) / number, 6))
        for count in steps(number)
    ]


def oracle(edge_right: Array, up_right: Array) -> list[Point]:
    """Return the best curve of all orders: first those that only the cloud gets right, last those that it spoils."""
    edge, up = np.asarray(edge_right, np.float64), np.asarray(up_right, np.float64)
    return curve(up - edge, edge, up)


def chance(edge_right: Array, up_right: Array) -> list[Point]:
    """Return the curve of samples that go up at random: the straight line between the ends, in the mean."""
    return curve(np.zeros(len(edge_right)), edge_right, up_right)


def steps(number: int, points: int = POINTS) -> list[int]:
    """Return the counts of samples at which a curve has points: none, all, and about equal steps between them."""
    counts: list[int] = np.unique(np.rint(np.linspace(0, number, min(number, points) + 1)).astype(int)).tolist()
    return counts


def at(points: Sequence[Point], ratio: float) -> float:
    """Return the accuracy at an upload ratio, on the line between the points beside it."""
    ratios, values = ([point[key] for point in points] for key in ("upload_ratio", "accuracy"))
    return float(np.interp(ratio, ratios, values))
