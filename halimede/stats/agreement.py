"""How often a service's answers are the big model's, estimated from audits: the same at a worker and at GM.

Of easy samples a fixed share, drawn by chance, goes up as well. Each easy sample has the same probability to be drawn,
so that the share of agreement among the audited ones is the Horvitz-Thompson estimate (1952; as a ratio: Hájek 1971)
of that among all easy ones. The other stratum, samples that the big model answered, is known without any estimate.
"""

from __future__ import annotations

import math

import msgspec

from halimede.messages import TaskInfo

#: standard deviations of a normal distribution around its mean that hold 95 % of it
Z95 = 1.959964


class Estimate(msgspec.Struct, frozen=True):
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(agreed: int, of: int, z: float = Z95) -> tuple[float, float]:
    """Return the interval of a share (Wilson 1927): it holds for few samples and for shares near 0 and 1, too."""
    if of == 0:
        return 0.0, 1.0
    share, extra = agreed / of, z * z / of
    centre = (share + extra / 2) / (1 + extra)
    half = z / (1 + extra) * math.sqrt(share * (1 - share) / of + extra / (4 * of))
    return min(share, max(0.0, centre - half)), max(
        share, min(1.0, centre + half)
    )  # rounding aside, it holds the share


def agreement(*, easy: int, audited: int, agreed: int, asked: int = 0, overruled: int = 0) -> Estimate | None:
    """Estimate the share of answers that are what the big model says; None without any audit.

    ``easy`` samples were answered here, ``audited`` of them by both, ``agreed`` of these alike. ``asked`` were answered
    by the big model, in ``overruled`` cases with another word after a mixture. Degraded answers are left out: nobody
    knows what the big model would have said of them, and they are not drawn by chance.
    """
    if not audited or not easy:
        return None
    low, high = wilson(agreed, audited)
    known, total = asked - overruled, asked + easy
    value, low, high = ((known + easy * share) / total for share in (agreed / audited, low, high))
    return Estimate(value, low, high)


def agreement_of(info: TaskInfo) -> Estimate | None:
    """Estimate it from what workers have counted."""
    return agreement(
        easy=max(0, info.inference_number - info.hard_example_number),
        audited=info.audited,
        agreed=min(info.audit_agreed, info.audited),
        asked=info.cloud_inference_number,
        overruled=min(info.overruled, info.cloud_inference_number),
    )
