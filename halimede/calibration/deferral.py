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

ROUNDS = 50
SETTLED = 1e-8
#: longest step: Newton's may be unbounded for perfectly separable samples
LONGEST = 5.0
#: features with a smaller deviation are ignored
STILL = 1e-9


def fit_head(features: Vector, hits: Vector, pull: float) -> Head:
    """Fit P(hit | features): least negative log likelihood + pull / 2 * |weights|^2.

    ``features`` ``[samples, features]``, ``hits`` 0 or 1 each. The weights of standardised features are pulled to 0;
    the returned weights are for the original features.
    """
    middle, spread = features.mean(axis=0), features.std(axis=0)
    scale = np.where(spread > STILL, 1 / np.maximum(spread, STILL), 0.0)
    x = np.concatenate([(features - middle) * scale, np.ones((len(features), 1))], axis=1)
    ridge = np.full(x.shape[1], pull)
    ridge[-1] = 1e-6
    weights = np.zeros(x.shape[1])
    for _ in range(ROUNDS):
        p = sigmoid(x @ weights)
        slope = x.T @ (p - hits) + ridge * weights
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(curvature, slope)
        longest = float(np.abs(step).max())
        weights -= step * min(1.0, LONGEST / longest) if longest > 0 else 0.0
        if longest < SETTLED:
            break
    own = weights[:-1] * scale
    return Head(bias=float(weights[-1] - own @ middle), weights=own.tolist())


def predict(head: Head, features: Vector) -> Vector:
    """Return the probability of a hit for each row."""
    return sigmoid(features @ np.array(head.weights) + head.bias)


def sigmoid(values: Vector) -> Vector:
    """Return 1 / (1 + exp(-values)), without overflow."""
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1 / (1 + small), small / (1 + small)))


Hits = NDArray[np.bool_]

FOLDS = 5
#: strengths of the pull to 0 to try
PULLS = (3.0, 10.0, 30.0, 100.0)
#: least numbers of samples with a gain, and with a loss
LEAST_GAINS, LEAST_LOSSES = 5, 10
LEAST_FIX = (
    "samples where the big model is right and the small one wrong are too few to learn from, {least} are needed at"
    " least: give more data, or calibrate --rule Margin"
)


@dataclass(frozen=True, slots=True)
class Learnt:
    """The rule (its cut is still 0), and the hardness of the samples by heads that were fitted without them."""

    rule: LearnedRule
    hardness: Vector


def fit_learned(predictions: Sequence[Prediction], gains: Hits, losses: Hits, *, seed: int = 0) -> Learnt:
    """Fit the rule on predictions that the next tier corrects (``gains``) or spoils (``losses``).

    Raises InvalidFieldError (``--data``) for too few gains, MiningError for predictions without class probabilities.
    """
    if np.count_nonzero(gains) < LEAST_GAINS:
        raise InvalidFieldError("--data", int(np.count_nonzero(gains)), LEAST_FIX.format(least=LEAST_GAINS))
    length = embedding_of(predictions)
    features = np.array([features_of(prediction, length) for prediction in predictions])
    parts = list(folds(gains, FOLDS, seed))
    gain, up = _fitted(features, gains, parts)
    loss, down = _fitted(features, losses, parts) if np.count_nonzero(losses) >= LEAST_LOSSES else (None, None)
    classes = len(predictions[0].probabilities or []) if predictions else 0
    rule = LearnedRule(classes=max(classes, 2), embedding=length, gain=gain, loss=loss, cut=0.0)
    return Learnt(rule, up if down is None else up - down)


def hardness_by(rule: LearnedRule, predictions: Sequence[Prediction]) -> Vector:
    """Return the hardness of all samples. Raises MiningError."""
    features = np.array([features_of(prediction, rule.embedding) for prediction in predictions])
    return predict(rule.gain, features) - (predict(rule.loss, features) if rule.loss else 0.0)


def embedding_of(predictions: Sequence[Prediction]) -> int:
    """Return the number of penultimate features of each prediction; 0 if the numbers differ."""
    lengths = {len(prediction.embeddings or b"") // 2 for prediction in predictions}
    return lengths.pop() if len(lengths) == 1 else 0


def folds(hits: Hits, count: int, seed: int) -> Iterator[Hits]:
    """Yield the samples of each of ``count`` parts of equal size, with equally many hits."""
    chance = np.random.default_rng(seed)
    part = np.zeros(len(hits), np.int64)
    order = np.concatenate([chance.permutation(np.flatnonzero(hits)), chance.permutation(np.flatnonzero(~hits))])
    part[order] = np.arange(len(hits)) % count
    for number in range(count):
        yield part == number


def _fitted(features: Vector, hits: Hits, parts: Sequence[Hits]) -> tuple[Head, Vector]:
    """Return the head of the best pull, and out-of-fold predictions for each part."""
    wanted = hits.astype(np.float64)
    tried = []
    for pull in PULLS:
        said = np.zeros(len(hits))
        for part in parts:
            said[part] = predict(fit_head(features[~part], wanted[~part], pull), features[part])
        cost = -np.log(np.where(hits, said, 1 - said).clip(min=1e-12)).mean()
        tried.append((float(cost), pull, said))
    _, pull, said = min(tried, key=lambda each: each[0])
    return fit_head(features, wanted, pull), said
