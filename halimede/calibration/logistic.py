"""Logistic regression in a few lines of NumPy: Newton's method on standardised features. Pure."""

from __future__ import annotations

import numpy as np

from halimede.calibration.temperature import Vector
from halimede.mining.calibration_file import Head

ROUNDS = 50
SETTLED = 1e-8
#: the longest step: Newton's may be endless where samples can be told apart without fault
LONGEST = 5.0
#: features that vary less than this say nothing
STILL = 1e-9


def fit_head(features: Vector, hits: Vector, pull: float) -> Head:
    """Fit P(hit | features): least negative log likelihood + pull / 2 * |weights|^2.

    ``features`` ``[samples, features]``, ``hits`` 0 or 1 each. Weights are of standardised features, pulled to 0;
    those that are returned are of the features as they are.
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
