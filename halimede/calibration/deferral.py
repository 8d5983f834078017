"""Fits learned deferral: two logistic regressions on the small model's output, regularized by cross-validation.

Jitkrittum et al., "When does confidence-based cascade deferral suffice?", NeurIPS 2023, arXiv 2307.02764 (post-hoc
deferral). The hardness of the fitted samples is out of fold: from heads that were fitted without them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining.calibration_file import Head, LearnedRule
from halimede.mining.learned import features_of

#: most steps of Newton's method, and the longest change at which it ends
MAX_ITERATIONS = 50
TOLERANCE = 1e-8
#: longest step: Newton's may be unbounded for perfectly separable samples
MAX_STEP = 5.0
#: features with a smaller deviation are ignored
MIN_SPREAD = 1e-9


def fit_head(features: Vector, hits: Vector, pull: float) -> Head:
    """Return a logistic regression of P(hit | features): least negative log likelihood + pull / 2 * |weights|^2.

    ``features`` ``(n, d) float64``, ``hits`` ``(n,)`` of 0 or 1. The weights of standardised features are pulled to 0;
    the returned weights are for the original features.
    """
    middle, spread = features.mean(axis=0), features.std(axis=0)
    scale = np.where(spread > MIN_SPREAD, 1 / np.maximum(spread, MIN_SPREAD), 0.0)
    x = np.concatenate([(features - middle) * scale, np.ones((len(features), 1))], axis=1)
    ridge = np.full(x.shape[1], pull)
    ridge[-1] = 1e-6  # the bias is hardly pulled: only so much that it stays finite
    weights = np.zeros(x.shape[1])
    for _ in range(MAX_ITERATIONS):
        p = sigmoid(x @ weights)
        slope = x.T @ (p - hits) + ridge * weights
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(curvature, slope)
        longest = float(np.abs(step).max())
        weights -= step * min(1.0, MAX_STEP / longest) if longest > 0 else 0.0
        if longest < TOLERANCE:
            break
    unscaled = weights[:-1] * scale
    return Head(bias=float(weights[-1] - unscaled @ middle), weights=unscaled.tolist())


def predict(head: Head, features: Vector) -> Vector:
    """Return the probability of a hit for each row of ``(n, d)`` features: ``(n,)``."""
    return sigmoid(features @ np.array(head.weights) + head.bias)


def sigmoid(values: Vector) -> Vector:
    """Return 1 / (1 + exp(-values)) of each value, without overflow."""
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1 / (1 + small), small / (1 + small)))


#: whether something is so, for each sample: ``(n,) bool``
Hits = NDArray[np.bool_]

#: parts of a cross-validation
FOLDS = 5
#: strengths of the pull to 0 to try
PULLS = (3.0, 10.0, 30.0, 100.0)
#: least numbers of samples with a gain, and with a loss
LEAST_GAINS, LEAST_LOSSES = 5, 10
#: text of an error: what to do; ``least``: the number
GAINS_FIX = (
    "samples where the big model is right and the small one wrong are too few to learn from, {least} are needed at"
    " least: give more data, or calibrate --rule Margin"
)


@dataclass(frozen=True, slots=True)
class FittedDeferral:
    """The rule (its cut is still 0), and the hardness of the samples by heads that were fitted without them."""

    rule: LearnedRule
    hardness: Vector


def fit_learned(predictions: Sequence[Prediction], gains: Hits, losses: Hits) -> FittedDeferral:
    """Return the rule fitted on predictions that the next tier corrects (``gains``) or spoils (``losses``).

    With fewer losses than ``LEAST_LOSSES`` the rule estimates gains alone. Raises InvalidFieldError (``--data``) for
    too few gains, MiningError for predictions without class probabilities.
    """
    if np.count_nonzero(gains) < LEAST_GAINS:
        raise InvalidFieldError("--data", int(np.count_nonzero(gains)), GAINS_FIX.format(least=LEAST_GAINS))
    length = embedding_of(predictions)
    features = np.array([features_of(prediction, length) for prediction in predictions])
    fold_masks = list(folds(gains))
    gain, gain_estimates = _fit_best_head(features, gains, fold_masks)
    has_losses = np.count_nonzero(losses) >= LEAST_LOSSES
    loss, loss_estimates = _fit_best_head(features, losses, fold_masks) if has_losses else (None, None)
    classes = len(predictions[0].probabilities or []) if predictions else 0
    rule = LearnedRule(classes=max(classes, 2), embedding=length, gain=gain, loss=loss, cut=0.0)
    return FittedDeferral(rule, gain_estimates if loss_estimates is None else gain_estimates - loss_estimates)


def hardness_by(rule: LearnedRule, predictions: Sequence[Prediction]) -> Vector:
    """Return the hardness of each prediction by a rule. Raises MiningError for one without class probabilities."""
    features = np.array([features_of(prediction, rule.embedding) for prediction in predictions])
    return predict(rule.gain, features) - (predict(rule.loss, features) if rule.loss else 0.0)


def embedding_of(predictions: Sequence[Prediction]) -> int:
    """Return the number of penultimate features that each prediction has; 0 if the numbers differ."""
    lengths = {len(prediction.embeddings or b"") // 2 for prediction in predictions}
    return lengths.pop() if len(lengths) == 1 else 0


def folds(hits: Hits, seed: int = 0) -> Iterator[Hits]:
    """Yield a mask of the samples of each of ``FOLDS`` folds of equal size, with equally many hits."""
    generator = np.random.default_rng(seed)
    fold_of = np.zeros(len(hits), np.int64)
    order = np.concatenate([generator.permutation(np.flatnonzero(hits)), generator.permutation(np.flatnonzero(~hits))])
    fold_of[order] = np.arange(len(hits)) % FOLDS
    for number in range(FOLDS):
        yield fold_of == number


def _fit_best_head(features: Vector, hits: Hits, fold_masks: Sequence[Hits]) -> tuple[Head, Vector]:
    """Return the head of the best pull, and the out-of-fold estimates of all samples. ``fold_masks``: of ``folds``."""
    targets = hits.astype(np.float64)
    trials = []
    for pull in PULLS:
        estimates = np.zeros(len(hits))
        for fold in fold_masks:
            estimates[fold] = predict(fit_head(features[~fold], targets[~fold], pull), features[fold])
        cost = -np.log(np.where(hits, estimates, 1 - estimates).clip(min=1e-12)).mean()
        trials.append((float(cost), pull, estimates))
    _, pull, estimates = min(trials, key=lambda trial: trial[0])
    return fit_head(features, targets, pull), estimates
