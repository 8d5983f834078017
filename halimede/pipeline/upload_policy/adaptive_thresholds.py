"""Adapts two thresholds to a running stream, for the least cost of misses, false alarms and uploads.

Below the lower threshold the edge answers with the negative class, above the upper one with the positive class, and
between them the sample is uploaded. Each pair of thresholds on a grid has a weight, and each sample is decided by a
pair that is drawn by weight. The next tier's answer to an uploaded sample shows what each pair would have cost; to
learn about the samples that the edge answers, some are audited. A sample that is uploaded with probability q counts
1 / q times, so that the estimates are those of all samples. A pair's weight falls exponentially with its estimated cost
(Moothedath et al., "Inference offloading for cost-sensitive binary classification at the edge", arXiv 2509.15674,
algorithm H2T2; exponential weights with importance weighting: Auer, Cesa-Bianchi, Freund and Schapire 2002). Each pair
also gets a small share of all weights, from which it recovers after a change of the stream (fixed share: Herbster and
Warmuth 1998).

The share of audits falls as t^(-1/3) and the rate of learning as t^(-2/3) with the number of samples t. So the cost
exceeds that of the best fixed pair by the order of t^(2/3). Both stay constant after HORIZON samples, for streams that
change for ever. The next tier's answers count as true.

Pure: no clock, and the random source is an argument. A decision takes a bisection, an answer one operation a pair.
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

#: probabilities to choose thresholds from, in addition to 0 and 1: equally spaced logits, because small probabilities
#: matter if a miss is dear
LIMITS = [1 / (1 + math.exp(-step / 2)) for step in range(-11, 12)]
#: intervals of probability between thresholds
BINS = len(LIMITS) + 1
#: factors of the share of audits and of the rate of learning, and samples after which both stay constant
AUDITS, RATE, HORIZON = 0.3, 32.0, 100_000
#: weight, 0..1, of the first pair, such as that of the calibration; all pairs share the rest
FIRST = 0.9


class ThresholdState(Struct, kw_only=True, frozen=True):
    """What a restarted worker continues from.

    Attributes:
        low: mean of the lower threshold, 0..1.
        high: mean of the upper threshold, 0..1.
        samples: number of samples that were decided.

    """

    low: float
    high: float
    samples: int = 0


class ThresholdDraw(Struct, frozen=True, gc=False):
    """The decision about one sample.

    Attributes:
        prediction: the edge's answer, with the class that the thresholds give.
        is_up: the sample is uploaded because it is between the thresholds.
        bin: number of the interval with the sample's probability, for ``learn``.
        observed: the probability with which the sample is uploaded, as an audit or otherwise.

    """

    prediction: Prediction
    is_up: bool
    bin: int
    observed: float


class AdaptiveThresholds:
    """The thresholds of one worker. Call ``draw`` for each sample, and ``learn`` for each answer of the next tier.

    ``rule``: computes the probability, and has the thresholds to begin with. ``costs``: of a miss, a false alarm and an
    upload. ``chance``: returns random numbers from 0 up to 1. ``state``: what to continue from; None: begin.
    """

    def __init__(
        self, rule: TwoThresholds, costs: Costs, chance: Callable[[], float], *, state: ThresholdState | None = None
    ) -> None:
        self.rule = rule
        self._chance = chance
        most = max(costs.miss, costs.alarm)
        #: costs as fractions of the higher cost of a wrong answer
        self._miss, self._alarm, self._upload = costs.miss / most, costs.alarm / most, costs.upload / most
        state = state or ThresholdState(low=rule.low, high=rule.high)
        self._samples = state.samples
        numbers = np.arange(BINS + 1)
        pairs = (numbers[:, None] <= numbers).astype(np.float64)
        #: weight of each pair on start, and the share that each gets: all of them equally
        self._equal = pairs / pairs.sum()
        #: weight of each pair, by the positions of its lower and of its upper threshold among 0, LIMITS and 1
        self._weights = (1 - FIRST) * self._equal
        low, high = sorted(bisect_right([*LIMITS, 1.0], value) for value in (state.low, state.high))
        self._weights[low, high] += FIRST
        #: for each bin: the weight of all pairs that answer the negative class, and the positive one
        self._negative: list[float] = []
        self._positive: list[float] = []
        self._sum()

    @property
    def audit_share(self) -> float:
        """The fraction of the edge's answers to audit now."""
        return AUDITS / math.cbrt(self._time)

    @property
    def state(self) -> ThresholdState:
        """The means of both thresholds by weight, and the number of samples."""
        values = np.array([0.0, *LIMITS, 1.0])
        low, high = self._weights.sum(axis=1) @ values, self._weights.sum(axis=0) @ values
        return ThresholdState(low=float(low), high=float(high), samples=self._samples)

    def draw(self, prediction: Prediction, audit_share: float) -> ThresholdDraw | None:
        """Decide about a sample by its prediction; None: the rule cannot read it, and decides alone.

        ``audit_share``: the fraction of the edge's answers that are audited.
        """
        try:
            p = self.rule.probability(prediction)
        except MiningError:
            return None
        self._samples += 1
        number = bisect_right(LIMITS, p)
        negative, positive = self._negative[number], self._positive[number]
        up = 1 - negative - positive  # a rounding error below 0 changes no decision
        drawn = self._chance()
        is_up = drawn < up
        # an uploaded sample gets the class of more weight; of others, the drawn pair decides
        is_positive = positive >= negative if is_up else drawn >= up + negative
        answer = self.rule.with_class(prediction, is_positive=is_positive)
        return ThresholdDraw(answer, is_up, number, up + (1 - up) * audit_share)

    def learn(self, draw: ThresholdDraw, label: str | None) -> None:
        """Weigh all pairs by the label (None: none) that the next tier gave to an uploaded or audited sample."""
        if label is None or draw.observed <= 0:
            return
        is_positive = label == self.rule.positive
        rate = RATE / math.cbrt(self._time) ** 2 / draw.observed
        missed = (self._miss if is_positive else 0.0) - self._upload
        false = (0.0 if is_positive else self._alarm) - self._upload
        weights, number = self._weights, draw.bin
        least = min(missed, false)  # 0 at most, as factors are 1 at most: no weight overflows
        weights[number + 1 :, :] *= math.exp(rate * (least - missed))  # both thresholds are above: negative
        weights[:, : number + 1] *= math.exp(rate * (least - false))  # both are below: positive
        weights[: number + 1, number + 1 :] *= math.exp(rate * least)  # the sample is between them: uploaded
        share = 1 / (self._time + 1)
        weights *= (1 - share) / float(weights.sum())  # above 0: the pairs of the least cost have the factor 1
        weights += share * self._equal
        self._sum()

    @property
    def _time(self) -> int:
        """The number of samples that determines the rates: at least 1, at most HORIZON."""
        return min(max(self._samples, 1), HORIZON)

    def _sum(self) -> None:
        """Set ``_negative`` and ``_positive`` from the weights of all pairs."""
        below = np.cumsum(self._weights.sum(axis=1))
        self._negative = (1 - below[:BINS]).tolist()
        self._positive = np.cumsum(self._weights.sum(axis=0))[:BINS].tolist()
