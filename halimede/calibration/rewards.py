"""Fits a rule that estimates, from a prediction of boxes or texts, the reward of uploading its sample. Pure.

The reward is what the upload adds to the accuracy of all samples. A gain is another thing: that the big model's own
answer to the sample is better. The fit is a ridge regression. A few hundred frames are few, and their rewards vary much
more than any description of boxes can predict. On such data a linear function was better than gradient-boosted trees,
both with these few frames and with fifty times more. Of several strengths of the ridge penalty, the one is used whose
out-of-fold order of the samples uploads the most reward. The hardness of the fitted samples is out of fold, too: from
regressions that were fitted without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from halimede.calibration.deferral import Hits, folds
from halimede.calibration.temperature import Vector
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining.calibration_file import MAX_CLASS_NAME, MAX_REWARD_CLASSES, RewardRule
from halimede.mining.reward import expected_reward, reward_features

#: strengths of the ridge penalty to try
PENALTIES = np.logspace(0, 5, 16)
#: random divisions into folds by which the penalties are compared
REPEATS = 8
#: features with a smaller deviation are ignored
MIN_SPREAD = 1e-9
#: least number of gains
LEAST_GAINS = 5
#: text of an error: what to do
GAINS_FIX = (
    "samples where the big model's answer is better than the small one's are too few to learn from,"
    f" {LEAST_GAINS} are needed at least: give more data, or calibrate another --rule"
)


@dataclass(frozen=True, slots=True)
class FittedReward:
    """The rule (its cut is still 0), and the hardness of the samples by regressions that were fitted without them."""

    rule: RewardRule
    hardness: Vector


def fit_reward(
    answers: Literal["boxes", "texts"], predictions: Sequence[Prediction], rewards: Vector, gains: Hits
) -> FittedReward:
    """Return the rule fitted on predictions whose uploads have the rewards.

    ``gains``: whether the big model's answer is better, for each sample.
    Raises InvalidFieldError (``--data``) for too few gains, MiningError for predictions of another kind than
    ``answers``.
    """
    if np.count_nonzero(gains) < LEAST_GAINS:
        raise InvalidFieldError("--data", int(np.count_nonzero(gains)), GAINS_FIX)
    classes = _frequent_classes(predictions)
    features = np.array([reward_features(answers, classes, prediction) for prediction in predictions])
    estimates = [_out_of_fold(features, rewards, gains, seed) for seed in range(REPEATS)]
    uploaded_by_penalty = np.sum([[uploaded_reward(row, rewards) for row in rows] for rows in estimates], axis=0)
    best = int(uploaded_by_penalty.argmax())
    biases, weights = _fit_ridges(features, rewards)
    rule = RewardRule(
        answers=answers,
        classes=classes,
        bias=float(biases[best]),
        weights=weights[best].tolist(),
        lows=features.min(axis=0).tolist(),
        highs=features.max(axis=0).tolist(),
        cut=0.0,
    )
    unseen = estimates[0][best]
    return FittedReward(rule, unseen / (1 + np.abs(unseen)))  # bounded as ``expected_reward`` bounds it


def uploaded_reward(hardness: Vector, rewards: Vector) -> float:
    """Return the area under the Qini curve: the mean, over all shares of uploads, of the reward of the hardest samples.

    The reward of a share is the sum of its rewards, divided by the number of all samples.
    """
    number = len(rewards)
    return float(rewards[np.argsort(-hardness, kind="stable")] @ np.arange(number, 0, -1)) / number**2


def rewards_by(rule: RewardRule, predictions: Sequence[Prediction]) -> Vector:
    """Return the hardness of each prediction by a rule: its bounded reward.

    Raises MiningError for a prediction of another kind.
    """
    return np.array([expected_reward(rule, prediction) for prediction in predictions])


def _frequent_classes(predictions: Sequence[Prediction]) -> list[str]:
    """Return the classes of boxes that have features of their own, the most frequent ones; none if there is only one.

    With a single class these features would repeat those of all boxes.
    """
    counts = Counter(str(box.label) for prediction in predictions for box in prediction.boxes or ())
    names = [name for name, _ in counts.most_common(MAX_REWARD_CLASSES) if len(name) <= MAX_CLASS_NAME]
    return sorted(names) if len(names) > 1 else []


def _out_of_fold(features: Vector, rewards: Vector, gains: Hits, seed: int) -> Vector:
    """Return the estimated rewards of samples by regressions fitted without their fold: ``[penalties, samples]``."""
    estimates = np.zeros((len(PENALTIES), len(rewards)))
    for fold in folds(gains, seed):
        fitted = features[~fold]
        biases, weights = _fit_ridges(fitted, rewards[~fold])
        bounded = np.clip(features[fold], fitted.min(axis=0), fitted.max(axis=0))
        estimates[:, fold] = weights @ bounded.T + biases[:, np.newaxis]
    return estimates


def _fit_ridges(features: Vector, rewards: Vector) -> tuple[Vector, Vector]:
    """Return the biases, and the rows of weights, one for each penalty.

    They minimize the squared errors + penalty * |weights of standardised features|^2.
    """
    middle, spread = features.mean(axis=0), features.std(axis=0)
    scale = np.where(spread > MIN_SPREAD, 1 / np.maximum(spread, MIN_SPREAD), 0.0)
    samples_basis, singular, features_basis = np.linalg.svd((features - middle) * scale, full_matrices=False)
    shrunk = singular / (singular**2 + PENALTIES[:, np.newaxis])
    weights = (shrunk * (samples_basis.T @ (rewards - rewards.mean()))) @ features_basis * scale
    return rewards.mean() - weights @ middle, weights
