"""Estimates from audits how often a service's answers agree with the big model's; used by workers and GM alike.

An audit sends an easy sample, which the edge answered alone, to the big model as well. Each easy sample has the same
probability of an audit. So the share of agreement among the audited samples is the Horvitz-Thompson estimate (1952; as
a ratio: Hájek 1971) of the share among all easy samples. Hard samples need no estimate: the big model answered them.
"""

from __future__ import annotations

import math

import msgspec

from halimede.messages import TaskInfo

#: standard deviations around the mean of a normal distribution that contain 95 % of it
Z95 = 1.959964


class Estimate(msgspec.Struct, frozen=True):
    """A share (0..1) or a difference of shares (-1..1), with the limits of its interval (usually of 95 %)."""

    value: float
    low: float
    high: float


def wilson(agreed: float, total: float, z: float = Z95) -> tuple[float, float]:
    """Return the limits of the interval of the share ``agreed / total``; 0 and 1 without samples.

    ``z``: standard deviations on each side. The method (Wilson 1927) is valid also for few samples and for shares near
    0 and 1.
    """
    if total == 0:
        return 0.0, 1.0
    share, extra = agreed / total, z * z / total
    centre = (share + extra / 2) / (1 + extra)
    half = z / (1 + extra) * math.sqrt(share * (1 - share) / total + extra / (4 * total))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return min(share, low), max(share, high)  # except for rounding, the interval contains the share


def agreement(*, easy: int, audited: int, agreed: int, uploaded: int = 0, overruled: int = 0) -> Estimate | None:
    """Estimate the share of answers that agree with the big model's; None without any audit.

    Degraded samples (hard ones that the edge answered alone) are not counted: the big model's answer to them is
    unknown, and they are not a random choice.

    Args:
        easy: easy samples, which the edge answered alone.
        audited: the easy samples that the big model answered as well.
        agreed: the audited samples with equal answers of both models.
        uploaded: samples that the big model answered.
        overruled: the uploaded samples whose answer the edge's mixing changed.

    """
    if not audited or not easy:
        return None
    low, high = wilson(agreed, audited)
    matching, total = uploaded - overruled, uploaded + easy
    value, low, high = ((matching + easy * share) / total for share in (agreed / audited, low, high))
    return Estimate(value, low, high)


def agreement_of(info: TaskInfo) -> Estimate | None:
    """Estimate the agreement from the counts that workers report; None without any audit."""
    return agreement(
        easy=max(0, info.inference_number - info.hard_example_number),
        audited=info.audited,
        agreed=min(info.audit_agreed, info.audited),
        uploaded=info.cloud_inference_number,
        overruled=min(info.overruled, info.cloud_inference_number),
    )
