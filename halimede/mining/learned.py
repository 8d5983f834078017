"""Learned deferral: uploads a sample if the next tier's answer is expected to be the better one.

A confident small model may be wrong where the big one is right, and an unsure one may be unsure where the big model is
no better: its own confidence does not show this. A second, tiny model learns it from labelled samples (Jitkrittum et
al., "When does confidence-based cascade deferral suffice?", NeurIPS 2023, arXiv 2307.02764; post-hoc deferral).
`halimede calibrate` fits it. It needs only the standard library, which is enough for a few dozen numbers. Boxes and
texts have no class probabilities: their estimate is in ``halimede.mining.reward``.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path

from halimede.api.mining import FIELD, LearnedParameters
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining.calibration_file import FORMAT_FIX, Head, LearnedRule, RewardRule, read_artefact
from halimede.mining.miner import ByHardness, MiningError
from halimede.mining.registry import register
from halimede.mining.reward import expected_reward, feature_count
from halimede.mining.scores import distribution

#: the best classes, whose probabilities are separate features
TOP = 5
#: most classes for features of each class: with more, their information is not worth the cost
MAX_ONE_HOT = 256
#: lower bound of probabilities before logarithms
FLOOR = 1e-6


@register("Learned")
@dataclass(slots=True)
class Learned(LearnedParameters, ByHardness):
    """Hard when P(cloud right and edge wrong) - P(edge right and cloud wrong) >= ``cut``, both as fitted.

    For boxes and texts, when the expected reward of an upload is at or over ``cut``. ``calibration`` is the file of
    `halimede calibrate`; with ``calibration`` in the service's spec it is the default. ``cut`` defaults to that of the
    calibration. A prediction of another kind than those of the calibration raises MiningError.
    """

    _rule: LearnedRule | RewardRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        at = f"{FIELD}.parameters.calibration"
        artefact = read_artefact(Path(self.calibration), at)
        rule = artefact.learned or artefact.reward
        if rule is None:
            fix = "it holds no learned rule: calibrate with --rule Learned"
            raise InvalidFieldError(at, self.calibration, fix)
        if reason := _describe_misfit(rule):
            raise InvalidFieldError(at, self.calibration, f"its learned rule {reason}: {FORMAT_FIX}")
        self._rule = rule
        if math.isnan(self.cut):
            self.cut = rule.cut

    def hardness(self, prediction: Prediction, /) -> float:
        """The expected increase of the quality of the answers by the next tier, -1 to 1."""
        if isinstance(self._rule, RewardRule):
            return expected_reward(self._rule, prediction)
        return expected_gain(self._rule, prediction)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut."""
        return {"cut": repr(min(max(cut, -1.0), 1.0))}


def _describe_misfit(rule: LearnedRule | RewardRule) -> str:
    """Return what a rule lacks that was read from a file; empty: nothing."""
    if isinstance(rule, LearnedRule):
        needed = width(rule.classes, rule.embedding)
        has_all = all(len(head.weights) == needed for head in (rule.gain, rule.loss) if head)
        return "" if has_all else f"needs {needed} weights"
    needed = feature_count(rule)
    if not len(rule.weights) == len(rule.lows) == len(rule.highs) == needed:
        return f"needs {needed} weights, lows and highs"
    return "" if all(map(float.__le__, rule.lows, rule.highs)) else "has a feature whose low is over its high"


def expected_gain(rule: LearnedRule, prediction: Prediction) -> float:
    """Return P(cloud right, edge wrong) - P(edge right, cloud wrong). Raises MiningError."""
    features = features_of(prediction, rule.embedding)
    if len(features) != width(rule.classes, rule.embedding):
        raise MiningError(f"the prediction is not one of the {rule.classes} classes that the calibration is about")
    return _probability(rule.gain, features) - (_probability(rule.loss, features) if rule.loss else 0.0)


def width(classes: int, embedding: int = 0) -> int:
    """Return the number of features."""
    return 2 * TOP + 3 + (3 * classes if classes <= MAX_ONE_HOT else 0) + embedding


def features_of(prediction: Prediction, embedding: int = 0) -> list[float]:
    """Return the features of a prediction. Raises MiningError.

    The best probabilities in order and their logarithms, entropy, margin (and its square root), the class (alone, and
    times the margin), the square root of each class's probability, and the model's penultimate features if it exports
    them (``embedding`` of them).
    """
    probabilities = distribution(prediction)
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    top = sorted(probabilities, reverse=True)[:TOP]
    top += [0.0] * (TOP - len(top))
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    margin = top[0] - top[1]
    features = [*top, *(math.log(max(p, FLOOR)) for p in top), entropy, margin, math.sqrt(max(margin, 0.0))]
    if len(probabilities) <= MAX_ONE_HOT:
        for value in (1.0, margin):
            features += [value if index == best else 0.0 for index in range(len(probabilities))]
        features += map(math.sqrt, probabilities)
    return features + _embedding(prediction, embedding) if embedding else features


def _embedding(prediction: Prediction, length: int) -> list[float]:
    data = prediction.embeddings or b""
    if len(data) != 2 * length:
        raise MiningError(
            f"the prediction has {len(data) // 2} features where the calibration knows {length}: set"
            " postprocess.features of the small model as it was then, or calibrate again"
        )
    values = list(struct.unpack(f"<{length}e", data))
    if not all(map(math.isfinite, values)):
        raise MiningError("the features hold NaN or infinity")
    return values


def _probability(head: Head, features: list[float]) -> float:
    odds = head.bias + math.fsum(map(float.__mul__, head.weights, features))
    return 1 / (1 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1 + math.exp(odds))
