"""Learned: hard when a tiny second model expects the next tier's answer to be the better one.

The confidence of a small model does not show where the big model is better: a confident answer may be wrong, and both
models may be unsure of the same sample. The second model learns this from labelled samples (Jitkrittum et al., "When
does confidence-based cascade deferral suffice?", NeurIPS 2023, arXiv 2307.02764; post-hoc deferral). `halimede
calibrate` fits it, and only the standard library runs it. Boxes and texts have no class probabilities:
``halimede.mining.reward`` estimates for them.
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

#: the number of best classes whose probabilities are separate features
TOP_CLASSES = 5
#: most classes for which each class has features of its own: with more, they are not worth the cost
MAX_ONE_HOT = 256
#: lower bound of probabilities before logarithms
MIN_PROBABILITY = 1e-6


@register("Learned")
@dataclass(slots=True)
class Learned(LearnedParameters, ByHardness):
    """Hard when P(cloud right and edge wrong) - P(edge right and cloud wrong) >= ``cut``, both as fitted.

    Boxes and texts are hard when the expected reward of an upload is at or over ``cut``. ``calibration`` is the path of
    a file of `halimede calibrate`; its default is the calibration of the service. The default of ``cut`` is the cut in
    that file. Raises InvalidFieldError for a file without such a rule, and MiningError for a prediction of another kind
    than those of the calibration.
    """

    _rule: LearnedRule | RewardRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        field_name = f"{FIELD}.parameters.calibration"
        artefact = read_artefact(Path(self.calibration), field_name)
        rule = artefact.learned or artefact.reward
        if rule is None:
            fix = "it holds no learned rule: calibrate with --rule Learned"
            raise InvalidFieldError(field_name, self.calibration, fix)
        if reason := _describe_misfit(rule):
            raise InvalidFieldError(field_name, self.calibration, f"its learned rule {reason}: {FORMAT_FIX}")
        self._rule = rule
        if math.isnan(self.cut):
            self.cut = rule.cut

    def hardness(self, prediction: Prediction, /) -> float:
        """The expected gain of quality by the next tier's answer, -1 to 1. Raises MiningError."""
        if isinstance(self._rule, RewardRule):
            return expected_reward(self._rule, prediction)
        return expected_gain(self._rule, prediction)

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter for a cut, bounded by -1 and 1."""
        return {"cut": repr(min(max(cut, -1.0), 1.0))}


def _describe_misfit(rule: LearnedRule | RewardRule) -> str:
    """Return what is wrong with the numbers of a rule from a file; empty: nothing."""
    if isinstance(rule, LearnedRule):
        needed = width(rule.classes, rule.embedding)
        has_all = all(len(head.weights) == needed for head in (rule.gain, rule.loss) if head)
        return "" if has_all else f"needs {needed} weights"
    needed = feature_count(rule)
    if not len(rule.weights) == len(rule.lows) == len(rule.highs) == needed:
        return f"needs {needed} weights, lows and highs"
    return "" if all(map(float.__le__, rule.lows, rule.highs)) else "has a feature whose low is over its high"


def expected_gain(rule: LearnedRule, prediction: Prediction) -> float:
    """Return P(cloud right, edge wrong) - P(edge right, cloud wrong), -1 to 1.

    Raises MiningError for a prediction with other features than those of the rule.
    """
    features = features_of(prediction, rule.embedding)
    if len(features) != width(rule.classes, rule.embedding):
        raise MiningError(f"the prediction is not one of the {rule.classes} classes that the calibration is about")
    return _probability(rule.gain, features) - (_probability(rule.loss, features) if rule.loss else 0.0)


def width(classes: int, embedding: int = 0) -> int:
    """Return the number of ``features_of`` a prediction of so many classes and penultimate features."""
    return 2 * TOP_CLASSES + 3 + (3 * classes if classes <= MAX_ONE_HOT else 0) + embedding


def features_of(prediction: Prediction, embedding: int = 0) -> list[float]:
    """Return the ``width`` features of a classification. Raises MiningError without class probabilities.

    They are: the best probabilities in order and their logarithms; entropy; margin (and its square root); the class
    (alone, and times the margin); the square root of each class's probability; the ``embedding`` penultimate features
    of the model (0: none).
    """
    probabilities = distribution(prediction)
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    top = sorted(probabilities, reverse=True)[:TOP_CLASSES]
    top += [0.0] * (TOP_CLASSES - len(top))
    entropy = -math.fsum(p * math.log(p) for p in probabilities if p > 0)
    margin = top[0] - top[1]
    features = [*top, *(math.log(max(p, MIN_PROBABILITY)) for p in top), entropy, margin, math.sqrt(max(margin, 0.0))]
    if len(probabilities) <= MAX_ONE_HOT:
        for value in (1.0, margin):
            features += [value if index == best else 0.0 for index in range(len(probabilities))]
        features += map(math.sqrt, probabilities)
    return features + _embedding(prediction, embedding) if embedding else features


def _embedding(prediction: Prediction, length: int) -> list[float]:
    """Return the penultimate features in a prediction, which has them as little-endian half-precision numbers.

    Raises MiningError if they are not ``length`` finite ones.
    """
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
    """Return the probability that a logistic regression gives these features, without overflow."""
    odds = head.bias + math.fsum(map(float.__mul__, head.weights, features))
    return 1 / (1 + math.exp(-odds)) if odds >= 0 else math.exp(odds) / (1 + math.exp(odds))
