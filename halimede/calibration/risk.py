"""A cut that keeps the risk below a limit, with a probability that was chosen: Learn then Test.

Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then test: calibrating predictive algorithms to achieve risk
control", arXiv 2110.01052. The risk is the share of all samples that stay at the edge although it is wrong there and
the cloud right. Each cut is the hypothesis "its risk is over the limit"; the p-value of a 0/1 loss is the binomial
tail, P(Bin(n, limit) <= losses), which is exact and hence tighter than Hoeffding-Bentkus; cuts are tested in a fixed
sequence from the strictest (everything goes up: no risk) on, and the last one that is rejected is taken.

Raising the cut keeps more samples and can only add losses. p-values so rise along the sequence, which may therefore
hold every number: to pass the first cut whose risk is over the limit, that very one has to be rejected, which happens
with probability 1 - ``confidence`` at most. The samples must be ones that the rule was not fitted on. Pure.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector

#: of the risk itself; a few hundred samples, whose own risk varies by chance as much again, then keep it in 19 of 20
CONFIDENCE = 0.99


def cut_for_risk(
    hardness: Vector, loss: NDArray[np.bool_], limit: float, confidence: float = CONFIDENCE
) -> float | None:
    """Return the highest cut whose risk is at most ``limit`` with probability ``confidence``; None: there is none.

    ``loss``: whether the edge is wrong and the cloud right, of each sample. Infinity: nothing has to go up. There is no
    cut where samples are fewer than ``least``.
    """
    allowed = losses_allowed(len(hardness), limit, confidence)
    if allowed < 0:
        return None
    costly = np.sort(hardness[np.asarray(loss, bool)])
    return float(costly[allowed]) if allowed < len(costly) else math.inf


def losses_allowed(samples: int, limit: float, confidence: float = CONFIDENCE) -> int:
    """Return the most losses with which a risk over ``limit`` is still rejected; -1: not even none is enough."""
    if limit >= 1:
        return samples
    if limit <= 0:
        return -1
    tail, count = 0.0, -1
    while count < samples:
        tail += math.exp(_log_probability(count + 1, samples, limit))
        if tail > 1 - confidence:
            break
        count += 1
    return count


def p_value(losses: int, samples: int, limit: float) -> float:
    """Return P(Bin(samples, limit) <= losses): how likely so few losses are where the risk is just the limit."""
    return min(1.0, math.fsum(math.exp(_log_probability(k, samples, limit)) for k in range(losses + 1)))


def least(limit: float, confidence: float = CONFIDENCE) -> int:
    """Return how many samples a limit over 0 needs at least: so many without a loss reject it."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - limit)) if limit < 1 else 1


def _log_probability(k: int, n: int, p: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return ways + k * math.log(p) + (n - k) * math.log1p(-p)
