"""Computes the cut of a rule: for a share of uploads, a limit on the risk, a deadline, or costs. Pure.

A sample is uploaded if its hardness is the cut or more. The limit on the risk holds with a chosen probability, by Learn
then Test: Angelopoulos, Bates, Candès, Jordan and Lei, "Learn then test: calibrating predictive algorithms to achieve
risk control", arXiv 2110.01052. The risk is the share of all samples that stay at the edge although it is wrong and the
cloud right. Each cut is the hypothesis "its risk is over the limit"; the p-value of a 0/1 loss is the binomial tail,
P(Bin(n, limit) <= losses), which is exact and hence tighter than Hoeffding-Bentkus; cuts are tested in a fixed sequence
from the strictest (all samples are uploaded: no risk) on, and the last one that is rejected is used.

A higher cut keeps more samples and can only add losses. So p-values rise along the sequence, which may therefore
contain every number: to pass the first cut whose risk is over the limit, that cut itself must be rejected, which
happens with probability 1 - ``confidence`` at most. The samples must be ones that the rule was not fitted on.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector

#: share of uploaded samples that must be answered in time
IN_TIME = 0.95
#: shares of uploads that are tried
SHARE_STEPS = 200


class UploadPath(Struct, kw_only=True):
    """The path of an uploaded sample. Times are milliseconds.

    ``edge_ms``, ``cloud_ms``: of the models. ``link_ms``: a round trip without data; ``link_kbps``: the speed in
    kbit/s. ``per_second``: the rate of samples at the edge; 0: so few that none waits.
    """

    edge_ms: float = 0.0
    cloud_ms: float = 0.0
    link_ms: float
    link_kbps: float
    per_second: float = 0.0


def share_in_time(sizes: Vector, path: UploadPath, deadline_ms: float) -> float:
    """Return the largest share of uploads, 0..1, for which 95 % of them are answered within the deadline.

    ``sizes``: bytes of each sample. A single sample takes the sum of its parts. At a high rate samples wait for the
    slowest part (link or model), a queue with constant service time s and load rho: P(wait > t) is about rho * exp(-2
    (1 - rho) t / s) (M/D/1 in heavy traffic; Kingman 1962).
    """
    sending = sizes * 8 / path.link_kbps
    spare = deadline_ms - (path.edge_ms + path.link_ms + path.cloud_ms + sending)
    feasible = float(np.mean(spare >= 0))
    if not feasible or path.per_second <= 0:
        return feasible
    slowest = max(path.cloud_ms, float(sending[spare >= 0].mean()))
    median_spare = float(np.median(spare[spare >= 0]))
    for step in range(SHARE_STEPS, 0, -1):
        share = feasible * step / SHARE_STEPS
        load = path.per_second * share * slowest / 1000
        if load < 1 and load * math.exp(-2 * (1 - load) * median_spare / max(slowest, 1e-9)) <= 1 - IN_TIME:
            return share
    return 0.0


#: default probability with which a limit holds, for the true risk; a few hundred samples, whose own risk also varies by
#: chance, then stay within it in 19 of 20 cases
CONFIDENCE = 0.99


def cut_for_risk(
    hardness: Vector, losses: NDArray[np.bool_], limit: float, confidence: float = CONFIDENCE
) -> float | None:
    """Return the highest cut whose risk is at most ``limit`` with probability ``confidence``; None: there is none.

    ``hardness``, ``losses``: ``(n,)``; a loss is a sample for which the edge is wrong and the cloud right. Infinity: no
    uploads are needed. There is no cut for fewer samples than ``least_samples``.
    """
    allowed = losses_allowed(len(hardness), limit, confidence)
    if allowed < 0:
        return None
    costly = np.sort(hardness[np.asarray(losses, bool)])
    return float(costly[allowed]) if allowed < len(costly) else math.inf


def losses_allowed(samples: int, limit: float, confidence: float = CONFIDENCE) -> int:
    """Return the most losses with which a risk over ``limit`` is still rejected; -1: not even with none."""
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


def least_samples(limit: float, confidence: float = CONFIDENCE) -> int:
    """Return the least number of samples for a limit over 0: so many without a loss reject a risk over it."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - limit)) if limit < 1 else 1


def _log_probability(k: int, n: int, p: float) -> float:
    """Return the logarithm of the probability of k successes in n trials with the probability p."""
    log_combinations = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log_combinations + k * math.log(p) + (n - k) * math.log1p(-p)


def cut_for_budget(hardness: Vector, ratio: float) -> float:
    """Return the cut at which the share of samples with ``hardness >= cut`` is nearest to ``ratio`` (0..1).

    It is in the middle between two samples; 0 if the rule can judge none. A sample that the rule cannot judge is
    infinitely hard: it is always uploaded. Samples of equal hardness are uploaded together or not at all.
    """
    judged = np.sort(hardness[np.isfinite(hardness)])[::-1]
    if not len(judged):
        return 0.0
    target = ratio * len(hardness) - (len(hardness) - len(judged))
    counts = _counts_at_cuts(judged)
    return _cut_at(judged, int(counts[np.abs(counts - target).argmin()]))


def cut_for_costs(hardness: Vector, alone: Vector, uploaded: Vector) -> float:
    """Return the cut with the least sum of costs of samples: ``alone`` if the edge answers, ``uploaded`` if they go up.

    All are ``(n,)``. The cut is infinite if no sample is worth an upload, and minus infinite if each is, so that unseen
    samples are treated alike. It is 0 if the rule can judge none.
    """
    is_judged = np.isfinite(hardness)
    order = np.argsort(-hardness[is_judged], kind="stable")
    judged = hardness[is_judged][order]
    if not len(judged):
        return 0.0
    counts = _counts_at_cuts(judged)
    saved = np.concatenate([[0.0], np.cumsum((alone - uploaded)[is_judged][order])])
    count = int(counts[saved[counts].argmax()])
    if count in {0, len(judged)}:
        return math.inf if count == 0 else -math.inf
    return _cut_at(judged, count)


def _cut_at(judged: Vector, count: int) -> float:
    """Return the cut from which on ``count`` samples are, of those in descending order."""
    if count == 0:
        return math.nextafter(float(judged[0]), math.inf)
    if count == len(judged):
        return float(judged[-1])
    return between(float(judged[count]), float(judged[count - 1]))


def reachable_shares(hardness: Vector, ratio: float) -> tuple[float, float]:
    """Return the nearest shares below and above ``ratio`` that a cut can reach: samples between are equally hard."""
    judged = np.sort(hardness[np.isfinite(hardness)])[::-1]
    unjudged = len(hardness) - len(judged)
    counts = _counts_at_cuts(judged) + unjudged
    target = ratio * len(hardness)
    below, above = counts[counts <= target], counts[counts >= target]
    low = below.max() if len(below) else unjudged
    return float(low) / max(1, len(hardness)), float(above.min() if len(above) else low) / max(1, len(hardness))


def _counts_at_cuts(judged: Vector) -> NDArray[np.int64]:
    """Return the numbers of uploaded samples at which a cut is possible: the next sample is easier."""
    ends = np.flatnonzero(np.diff(judged) < 0) + 1
    return np.concatenate([[0], ends, [len(judged)]])


def between(low: float, high: float) -> float:
    """Return the number in the middle; ``high`` if no number is between both."""
    middle = low / 2 + high / 2
    return middle if low < middle <= high else high


def quantiles(hardness: Vector, steps: int) -> list[float]:
    """Return ``steps + 1`` quantiles of the judged samples at equal steps from 0 to 1; empty without such samples."""
    judged = hardness[np.isfinite(hardness)]
    return np.quantile(judged, np.linspace(0, 1, steps + 1)).tolist() if len(judged) else []
