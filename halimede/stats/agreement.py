"""Estimates from audits how often a service's answers agree with the big model's; used by workers and GM alike.

A fixed, random share of the easy samples is sent to the big model as well. Each easy sample has the same probability of
being drawn, so the share of agreement among the audited ones is the Horvitz-Thompson estimate (1952; as a ratio: Hájek
1971) of the share among all easy ones. For the other stratum, the samples that the big model answered, no estimate is
needed.
"""

from __future__ import annotations

import math

import msgspec

from halimede.messages import TaskInfo

#: standard deviations around the mean of a normal distribution that contain 95 % of it
Z95 = 1.959964


class Estimate(msgspec.Struct, frozen=True):
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(agreed: float, of: float, z: float = Z95) -> tuple[float, float]:
    """Return the interval of a share (Wilson 1927), which is valid also for few samples and for shares near 0 and 1."""
    if of == 0:
        return 0.0, 1.0
    share, extra = agreed / of, z * z / of
    centre = (share + extra / 2) / (1 + extra)
    half = z / (1 + extra) * math.sqrt(share * (1 - share) / of + extra / (4 * of))
    return min(share, max(0.0, centre - half)), max(
        share, min(1.0, centre + half)
    )  # except for rounding, it contains the share


def agreement(*, easy: int, audited: int, agreed: int, asked: int = 0, overruled: int = 0) -> Estimate | None:
    """Estimate the share of answers that agree with the big model's; None without any audit.

    ``easy`` samples were answered at the edge, ``audited`` of them by both models, ``agreed`` of these equally.
    ``asked`` were answered by the big model; in ``overruled`` cases mixing changed the answer. Degraded answers are
    left out: the big model's answer to them is unknown, and they are not a random choice.
    """
    if not audited or not easy:
        return None
    low, high = wilson(agreed, audited)
    known, total = asked - overruled, asked + easy
    value, low, high = ((known + easy * share) / total for share in (agreed / audited, low, high))
    return Estimate(value, low, high)


def agreement_of(info: TaskInfo) -> Estimate | None:
    """Estimate the agreement from the counts of workers."""
    return agreement(
        easy=max(0, info.inference_number - info.hard_example_number),
        audited=info.audited,
        agreed=min(info.audit_agreed, info.audited),
        asked=info.cloud_inference_number,
        overruled=min(info.overruled, info.cloud_inference_number),
    )
