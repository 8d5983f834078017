"""Calibrates for the least expected cost of errors and uploads, with a bound of a chosen probability. Pure.

Two thresholds on the probability of a two-class model: below the lower one the edge answers the negative class, above
the upper one the positive class, and between them the sample is uploaded (Moothedath et al., "Inference offloading for
cost-sensitive binary classification at the edge", arXiv 2509.15674). The pair with the least cost on the samples is
selected; sums from both ends give the costs of all pairs at once. Otherwise a few missed samples would decide alone, so
half of each sample's cost is that of its class, and half the expected cost by its calibrated probability (Platt 1999).

The bound is of held-out samples, so it needs no correction for the search: Waudby-Smith and Ramdas, "Estimating means
of bounded random variables by betting", JRSS B 86 (2024), arXiv 2010.09686. Its bets are made before a sample is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.api.deferral import Costs
from halimede.calibration.blocks import Indices
from halimede.calibration.candidates import Candidate
from halimede.calibration.deferral import fit_head, predict
from halimede.calibration.measurement import bootstrap
from halimede.calibration.temperature import Vector
from halimede.calibration.thresholds import between, cut_for_costs
from halimede.evaluation.costs import error_costs, most_cost
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.rules import final_answers
from halimede.messages import Prediction
from halimede.mining import MiningError, create
from halimede.mining.two_thresholds import TWO_THRESHOLDS, TwoThresholds

#: share of the calibrated probability in how positive a sample counts, and the pull of the calibration's weights to 0
SMOOTHING, PULL = 0.5, 0.1
#: lower bound of probabilities before logarithms
MIN_PROBABILITY = 1e-9
#: halvings of the interval in which the bound is
HALVINGS = 50


class PricedSamples:
    """Samples with the cost of each answer: of the edge's, which a rule may decide, and of the next tier's ``up``.

    All costs are ``(n,) float64`` in the user's unit.
    """

    def __init__(
        self, data: LabelledSamples, edge: Sequence[Prediction], up: Sequence[Prediction], costs: Costs
    ) -> None:
        self.costs = costs
        self.data = data
        self.edge = edge
        #: the costs of uploaded samples, with those of the upload
        self.uploaded = error_costs(data, up, costs) + costs.upload

    def kept_costs(self, candidate: Candidate) -> Vector:
        """Return the cost of each answer of the edge by a rule, if the sample is not uploaded."""
        return error_costs(self.data, answers_by(candidate, self.edge), self.costs)

    def cut(self, candidate: Candidate, hardness: Vector) -> float:
        """Return the cut of a rule with the least cost; 0 for two thresholds, which have it already."""
        if candidate.rule == TWO_THRESHOLDS:
            return 0.0
        return cut_for_costs(hardness, self.kept_costs(candidate), self.uploaded)

    def cost(self, candidate: Candidate, hardness: Vector, cut: float, audit_share: float = 0.0) -> Vector:
        """Return the expected cost of each sample at a cut.

        A kept sample also costs ``audit_share`` of an upload: its audit.
        """
        alone = self.kept_costs(candidate) + audit_share * self.costs.upload
        return np.where(hardness >= cut, self.uploaded, alone)

    def two_thresholds(self, labels: Sequence[str]) -> Candidate | None:
        """Return the two thresholds with the least cost; None: no class to find, or no answers of a two-class model.

        ``labels`` are those of the model, empty if they are not known.
        """
        classes = set(labels) or {str(answer.label) for answer in self.edge} | set(self.data.truths or ())
        negative = sorted(classes - {self.costs.positive})
        if self.data.truths is None or not self.costs.positive or len(negative) != 1:
            return None
        names = {"positive": self.costs.positive, "negative": negative[0]}
        miner = TwoThresholds(self.costs.positive, negative[0], low=0, high=1)
        try:
            probabilities = np.array([miner.probability(answer) for answer in self.edge])
        except MiningError:
            return None
        positive = _smooth(probabilities, np.array(self.data.truths, object) == self.costs.positive)
        uploaded = (1 - SMOOTHING) * self.uploaded + SMOOTHING * self.uploaded.mean()
        low, answer, high = least_cost_thresholds(
            probabilities, self.costs.miss * positive, self.costs.alarm * (1 - positive), uploaded
        )
        return Candidate(TWO_THRESHOLDS, {**names, "low": repr(low), "high": repr(high), "answer": repr(answer)})


def _smooth(probabilities: Vector, is_positive: NDArray[np.bool_]) -> Vector:
    """Return how positive each sample counts: the mean of its class and of its calibrated probability."""
    clipped = probabilities.clip(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    logits = np.log(clipped / (1 - clipped))[:, np.newaxis]
    head = fit_head(logits, is_positive.astype(np.float64), PULL)
    return (1 - SMOOTHING) * is_positive + SMOOTHING * predict(head, logits)


def answers_by(candidate: Candidate, predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Return the edge's answers to samples that are not uploaded: only two thresholds change the class."""
    if candidate.rule != TWO_THRESHOLDS:
        return predictions
    return final_answers(create(candidate.rule, candidate.parameters), predictions)


def least_cost_thresholds(
    probabilities: Vector, negative: Vector, positive: Vector, uploaded: Vector
) -> tuple[float, float, float]:
    """Return the lower threshold, the one between both from which the answer is positive, and the upper threshold.

    All are ``(n,) float64``: ``probabilities`` of the positive class, and the cost of each sample if it is answered
    ``negative``, answered ``positive`` or ``uploaded``.
    """
    order = np.argsort(probabilities, kind="stable")
    ordered = probabilities[order]
    ends = np.concatenate([[True], np.diff(ordered) > 0, [True]])  # a threshold parts no equal probabilities

    def from_below(values: Vector) -> Vector:
        return np.where(ends, np.concatenate([[0.0], np.cumsum(values[order])]), math.inf)

    below = from_below(negative - uploaded)
    total = float((positive - uploaded).sum())
    above = np.where(ends, total - from_below(positive - uploaded), math.inf)
    upper = int(np.argmin(np.minimum.accumulate(below) + above))
    lower = int(np.argmin(below[: upper + 1]))
    answer = lower + int(np.argmin(from_below(negative - positive)[lower : upper + 1]))
    return _threshold(ordered, lower), _threshold(ordered, answer), _threshold(ordered, upper)


def cost_bound(values: Vector, most: float, confidence: float) -> float:
    """Return a bound on the mean of independent values from 0 to ``most``, which holds with probability ``confidence``.

    A gambler who bets that the mean is below m wins more than 1 / (1 - confidence) with probability 1 - confidence at
    most if it is not below.
    """
    shares = values / most
    number = np.arange(1, len(shares) + 1)
    # the means begin as after one value of 0.5, the variances at 0.25, the largest that shares can have
    means = (0.5 + np.cumsum(shares)) / (1 + number)
    variances = (0.25 + np.cumsum((shares - means) ** 2)) / (1 + number)
    before = np.concatenate([[0.25], variances[:-1]])
    needed = -math.log(1 - confidence)
    stakes = np.minimum(1.0, np.sqrt(2 * needed / len(shares) / before))
    low, high = float(shares.mean()), 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        with np.errstate(divide="ignore"):  # a lost stake of all
            wealth = np.cumsum(np.log1p(-stakes * (shares - middle)))
        low, high = (low, middle) if wealth.max() > needed else (middle, high)
    return high * most


def cost_metrics(
    priced: PricedSamples,
    chosen: tuple[Candidate, Vector, float],
    single: tuple[Candidate, Vector, float] | None,
    *,
    audit_share: float,
    confidence: float,
    blocks: Indices,
) -> Mapping[str, float]:
    """Return by name the mean costs of held-out samples with their intervals, and the bound on that of the chosen rule.

    ``chosen``, ``single``: a rule, its hardness of these samples, and its cut. ``single`` is the best rule with one
    threshold, if the chosen one has two. ``audit_share``: share of kept samples that are uploaded as well.
    ``confidence``: probability with which the bound holds. ``blocks``: the block of each sample.
    """
    cost = priced.cost(*chosen, audit_share)
    alone, is_up = priced.kept_costs(chosen[0]) + audit_share * priced.costs.upload, chosen[1] >= chosen[2]
    means = {
        "cost_edge_only": error_costs(priced.data, priced.edge, priced.costs),
        "cost_cloud_only": priced.uploaded,
        **({"cost_single_threshold": priced.cost(*single, audit_share)} if single else {}),
        "cost": cost,
    }
    metrics: dict[str, float] = {}
    for name, values in means.items():
        metrics[name] = float(values.mean())
        ends = bootstrap(lambda drawn, values=values: float(values[drawn].mean()), blocks)  # type: ignore[misc]
        metrics[f"{name}.low"], metrics[f"{name}.high"] = ends
    if is_up.any() and not is_up.all():

        def below_chance(drawn: Indices) -> float:
            share = float(is_up[drawn].mean())
            return float((1 - share) * alone[drawn].mean() + share * priced.uploaded[drawn].mean() - cost[drawn].mean())

        metrics["cost_below_chance"] = below_chance(np.arange(len(cost)))
        metrics["cost_below_chance.low"], metrics["cost_below_chance.high"] = bootstrap(below_chance, blocks)
    independent = np.bincount(blocks, cost) / np.bincount(blocks)
    most = most_cost(priced.data, priced.costs)
    metrics["cost_bound"] = cost_bound(independent, most, confidence)
    return metrics


def _threshold(ordered: Vector, count: int) -> float:
    """Return the threshold above the ``count`` lowest probabilities."""
    if count == 0:
        return 0.0
    return 1.0 if count == len(ordered) else between(float(ordered[count - 1]), float(ordered[count]))
