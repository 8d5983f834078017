"""Intervals of differences: of two models on the same samples, on different samples, and of sums over strata.

All are score intervals, which hold for few samples and for shares near 0 and 1. Pure, and without numpy: GM uses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Annotated

from msgspec import Meta, Struct

from halimede.stats.agreement import Z95, Estimate, wilson

Number = Annotated[int, Meta(ge=0)]


class PairedCounts(Struct, kw_only=True, frozen=True):
    """How often two models were right on the same samples: both, one of them alone, or neither."""

    both: Number = 0
    candidate: Number = 0
    present: Number = 0
    neither: Number = 0

    @property
    def samples(self) -> int:
        """The number of samples."""
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
    """Return the standard deviations of a two-sided interval: 1.96 for 0.95."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def spent(confidence: float, attempt: int) -> float:
    """Return the confidence of test number ``attempt`` (from 1), so that all tests together have ``confidence``.

    The error 1 - confidence is divided into parts 1/2, 1/6, 1/12, ..., 1/(k(k+1)), which add up to 1 (Bonferroni).
    """
    return 1 - (1 - confidence) / (attempt * (attempt + 1))


def paired(counts: PairedCounts, z: float = Z95) -> Estimate:
    """Return the candidate's gain in accuracy on samples that both models answered.

    Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    Statistics in Medicine 17 (1998), method 10: two Wilson intervals, combined with the correlation of the answers.
    """
    of = counts.samples
    if not of:
        return Estimate(0.0, -1.0, 1.0)
    new, old = counts.both + counts.candidate, counts.both + counts.present
    (new_low, new_high), (old_low, old_high) = wilson(new, of, z), wilson(old, of, z)
    phi = _correlation(counts)
    new_share, old_share = new / of, old / of
    below = _combined(new_share - new_low, old_high - old_share, phi)
    above = _combined(new_high - new_share, old_share - old_low, phi)
    value = (counts.candidate - counts.present) / of
    return Estimate(value, max(-1.0, value - below), min(1.0, value + above))


def weighted_sum(parts: Iterable[tuple[float, Estimate]]) -> Estimate:
    """Return the interval of a sum of independent estimates, each with its weight, which may be negative.

    The method of variance estimates recovery: Zou and Donner, "Construction of confidence limits about effect
    measures", Statistics in Medicine 27 (2008). For two shares and the weights 1 and -1 it is Newcombe's interval of a
    difference; for paired differences of strata it is the interval of their weighted mean.
    """
    value = below = above = 0.0
    for weight, part in parts:
        low, high = weight * part.low, weight * part.high
        value += weight * part.value
        below += (weight * part.value - min(low, high)) ** 2
        above += (max(low, high) - weight * part.value) ** 2
    return Estimate(value, value - math.sqrt(below), value + math.sqrt(above))


def share(hits: int, of: int, z: float = Z95) -> Estimate:
    """Return a share with its Wilson interval; 0.5 from 0 to 1 without samples."""
    return Estimate(hits / of if of else 0.5, *wilson(hits, of, z))


def _correlation(counts: PairedCounts) -> float:
    """Return the correlation phi of the two models' hits; Newcombe's correction reduces a positive one."""
    a, b, c, d = counts.both, counts.candidate, counts.present, counts.neither
    product = (a + b) * (c + d) * (a + c) * (b + d)
    if not product:
        return 0.0
    excess = float(a * d - b * c)
    if excess > 0:
        excess = max(0.0, excess - counts.samples / 2)
    return excess / math.sqrt(product)


def _combined(some: float, other: float, phi: float) -> float:
    """Return the distance of a difference's limit from two distances of its terms' limits."""
    return math.sqrt(max(0.0, some * some - 2 * phi * some * other + other * other))
