"""Confidence intervals of differences between two models' accuracies, on the same samples or on different ones.

The gate, which decides whether a trained candidate replaces the present model, compares both with them. All are score
intervals, which hold for few samples and for shares near 0 and 1. They need no numpy, because GM uses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Annotated

from msgspec import Meta, Struct

from halimede.stats.agreement import Z95, Estimate, wilson

#: a count, at least 0
Number = Annotated[int, Meta(ge=0)]


class PairedCounts(Struct, kw_only=True, frozen=True):
    """Samples that both models answered, by which model was right: both, only one of the two, or neither."""

    both: Number = 0
    candidate: Number = 0
    present: Number = 0
    neither: Number = 0

    @property
    def samples(self) -> int:
        """The sum of all four counts."""
        return self.both + self.candidate + self.present + self.neither

    def __add__(self, other: PairedCounts) -> PairedCounts:
        """Return the counts of both sets of samples."""
        return PairedCounts(
            both=self.both + other.both,
            candidate=self.candidate + other.candidate,
            present=self.present + other.present,
            neither=self.neither + other.neither,
        )


def z_of(confidence: float) -> float:
    """Return the standard deviations on each side of a two-sided interval: 1.96 for a ``confidence`` (0..1) of 0.95."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def attempt_confidence(confidence: float, attempt: int) -> float:
    """Return the confidence of test number ``attempt`` (from 1), so that all tests together have ``confidence``.

    The error 1 - confidence is divided into parts 1/2, 1/6, 1/12, ..., 1/(k(k+1)), which add up to 1 (Bonferroni).
    """
    return 1 - (1 - confidence) / (attempt * (attempt + 1))


def paired_gain(counts: PairedCounts, z: float = Z95) -> Estimate:
    """Return the candidate's accuracy minus the present model's (-1..1); 0 from -1 to 1 without samples.

    Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    Statistics in Medicine 17 (1998), method 10: two Wilson intervals, combined with the correlation of the answers.
    """
    total = counts.samples
    if not total:
        return Estimate(0.0, -1.0, 1.0)
    new, old = counts.both + counts.candidate, counts.both + counts.present
    (new_low, new_high), (old_low, old_high) = wilson(new, total, z), wilson(old, total, z)
    phi = _correlation(counts)
    new_share, old_share = new / total, old / total
    below = _limit_distance(new_share - new_low, old_high - old_share, phi)
    above = _limit_distance(new_high - new_share, old_share - old_low, phi)
    value = (counts.candidate - counts.present) / total
    return Estimate(value, max(-1.0, value - below), min(1.0, value + above))


def weighted_sum(terms: Iterable[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted sum of independent estimates with its interval. ``terms``: (weight, estimate) pairs.

    A weight may be negative: the weights 1 and -1 give a difference.

    The method of variance estimates recovery: Zou and Donner, "Construction of confidence limits about effect
    measures", Statistics in Medicine 27 (2008). For two shares and the weights 1 and -1 it is Newcombe's interval of a
    difference; for paired differences of strata it is the interval of their weighted mean.
    """
    value = below = above = 0.0
    for weight, estimate in terms:
        low, high = weight * estimate.low, weight * estimate.high
        value += weight * estimate.value
        below += (weight * estimate.value - min(low, high)) ** 2
        above += (max(low, high) - weight * estimate.value) ** 2
    return Estimate(value, value - math.sqrt(below), value + math.sqrt(above))


def share(hits: int, total: int, z: float = Z95) -> Estimate:
    """Return the share ``hits / total`` with its Wilson interval; 0.5 from 0 to 1 without samples."""
    return Estimate(hits / total if total else 0.5, *wilson(hits, total, z))


def _correlation(counts: PairedCounts) -> float:
    """Return the correlation phi (-1..1) of the two models' right answers; Newcombe reduces positive ones."""
    a, b, c, d = counts.both, counts.candidate, counts.present, counts.neither
    product = (a + b) * (c + d) * (a + c) * (b + d)
    if not product:
        return 0.0
    excess = float(a * d - b * c)
    if excess > 0:
        excess = max(0.0, excess - counts.samples / 2)
    return excess / math.sqrt(product)


def _limit_distance(first: float, second: float, phi: float) -> float:
    """Return how far a limit of a difference lies from its value.

    ``first``, ``second``: how far the corresponding limits of the two shares lie from theirs. ``phi``: the correlation.
    """
    return math.sqrt(max(0.0, first * first - 2 * phi * first * second + second * second))
