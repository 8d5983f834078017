"""Adapts two thresholds to a running stream, for the least cost of misses, false alarms and uploads.

Each pair of thresholds on a grid has a weight, and each sample is decided by a pair that is drawn by weight. The next
tier's answer to an uploaded sample shows what each pair would have cost; to learn about the samples that the edge
answers, some are audited. A sample that is uploaded with probability q counts 1 / q times, so that the estimates are
those of all samples. A pair's weight falls exponentially with its estimated cost (Moothedath et al., "Inference
offloading for cost-sensitive binary classification at the edge", arXiv 2509.15674, algorithm H2T2; exponential weights
with importance weighting: Auer, Cesa-Bianchi, Freund and Schapire 2002). Each pair also gets a small share of all
weights, from which it recovers after a change of the stream (fixed share: Herbster and Warmuth 1998).

The share of audits falls as t^(-1/3) and the rate of learning as t^(-2/3) with the number of samples t. So the cost
exceeds that of the best fixed pair by the order of t^(2/3). Both stay constant after ``HORIZON`` samples, for streams
that change for ever. The next tier's answers count as true.

Pure: no clock, and the random source is an argument. A decision takes a bisection, an answer ``CELLS`` operations.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from halimede.api.deferral import Costs
from halimede.messages import Prediction
from halimede.mining import MiningError
from halimede.mining.two_thresholds import TwoThresholds

#: thresholds to choose from, apart from 0 and 1: equally spaced logits, because small probabilities matter if a miss is
#: dear
LIMITS = [1 / (1 + math.exp(-step / 2)) for step in range(-11, 12)]
BINS = len(LIMITS) + 1
CELLS = (BINS + 1) ** 2
#: factors of the share of audits and of the rate of learning, and samples after which both stay constant
AUDITS, RATE, HORIZON = 0.3, 32.0, 100_000
#: weight of the first pair, such as that of the calibration; all pairs share what is left
FIRST = 0.9


class ThresholdState(Struct, kw_only=True, frozen=True):
    """What a restarted worker continues from: the mean thresholds, and the samples that were decided."""

    low: float
    high: float
    samples: int = 0


class ThresholdDraw(Struct, frozen=True, gc=False):
    """The decision about one sample: the edge's answer, whether it is uploaded, and what ``learn`` needs.

    ``observed``: the probability with which the sample is uploaded, as an audit or otherwise.
    """

    prediction: Prediction
    is_up: bool
    bin: int
    observed: float


class AdaptiveThresholds:
    """The thresholds of one worker. Call ``draw`` for each sample, and ``learn`` for each answer of the next tier."""

    def __init__(
        self, rule: TwoThresholds, costs: Costs, chance: Callable[[], float], *, state: ThresholdState | None = None
    ) -> None:
        self.rule = rule
        self._chance = chance
        most = max(costs.miss, costs.alarm)
        self._miss, self._alarm, self._upload = costs.miss / most, costs.alarm / most, costs.upload / most
        state = state or ThresholdState(low=rule.low, high=rule.high)
        self._samples = state.samples
        numbers = np.arange(BINS + 1)
        pairs = (numbers[:, None] <= numbers).astype(np.float64)
        #: weight of each pair on start, and the share that each gets: all of them equally
        self._equal = pairs / pairs.sum()
        self._weights = (1 - FIRST) * self._equal
        low, high = sorted(bisect_right(LIMITS, value) for value in (state.low, state.high))
        self._weights[low, high] += FIRST
        self._negative: list[float] = []
        self._positive: list[float] = []
        self._sum()

    @property
    def audit_share(self) -> float:
        """The share of the edge's answers to audit now."""
        return min(1.0, AUDITS / math.cbrt(self._time))

    @property
    def state(self) -> ThresholdState:
        """The means of both thresholds by weight."""
        values = np.array([0.0, *LIMITS, 1.0])
        low, high = self._weights.sum(axis=1) @ values, self._weights.sum(axis=0) @ values
        return ThresholdState(low=float(low), high=float(high), samples=self._samples)

    def draw(self, prediction: Prediction, audit_share: float) -> ThresholdDraw | None:
        """Decide about a sample; None: the prediction is not one of the two classes, so the rule alone decides."""
        try:
            p = self.rule.probability(prediction)
        except MiningError:
            return None
        self._samples += 1
        number = bisect_right(LIMITS, p)
        negative, positive = self._negative[number], self._positive[number]
        up = max(0.0, 1 - negative - positive)
        drawn = self._chance()
        is_up = drawn < up
        is_positive = positive >= negative if is_up else drawn >= up + negative
        answer = self.rule.with_class(prediction, is_positive=is_positive)
        return ThresholdDraw(answer, is_up, number, up + (1 - up) * audit_share)

    def learn(self, draw: ThresholdDraw, label: str | None) -> None:
        """Weigh all pairs by the next tier's answer to a sample that was uploaded or audited."""
        if label is None or draw.observed <= 0:
            return
        is_positive = label == self.rule.positive
        rate = RATE / math.cbrt(self._time) ** 2 / draw.observed
        missed = (self._miss if is_positive else 0.0) - self._upload
        false = (0.0 if is_positive else self._alarm) - self._upload
        weights, number = self._weights, draw.bin
        least = min(missed, false, 0.0)  # factors are 1 at most, so that no weight overflows
        weights[number + 1 :, :] *= math.exp(rate * (least - missed))
        weights[:, : number + 1] *= math.exp(rate * (least - false))
        weights[: number + 1, number + 1 :] *= math.exp(rate * least)
        total = float(weights.sum())
        share = 1 / (self._time + 1)
        if total > 0:
            weights *= (1 - share) / total
            weights += share * self._equal
        else:
            weights[:] = self._equal
        self._sum()

    @property
    def _time(self) -> int:
        return min(max(self._samples, 1), HORIZON)

    def _sum(self) -> None:
        """Compute for each bin the weights of all pairs that answer the negative class, and the positive one."""
        below = np.cumsum(self._weights.sum(axis=1))
        self._negative = (1 - below[:BINS]).clip(0, 1).tolist()
        self._positive = np.cumsum(self._weights.sum(axis=0))[:BINS].clip(0, 1).tolist()
