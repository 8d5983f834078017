"""Combines two models' answers to one hard sample into a calibrated mixture.

If the errors of both models differ, two answers contain more information than the better one (Kittler, Hatef, Duin and
Matas, "On combining classifiers", PAMI 1998). Otherwise `halimede calibrate` fits no mixture, and the cloud's answer
counts.
"""

from __future__ import annotations

import math
import sys

from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile, MixtureRule
from halimede.mining.miner import MiningError
from halimede.mining.scores import distribution
from halimede.mining.two_thresholds import TWO_THRESHOLDS

#: share of each distribution that is spread over all classes, so that no model alone can exclude a class
DOUBT = 1e-4


def mix(artefact: CalibrationFile, edge: Prediction, cloud: Prediction) -> Prediction:
    """Return the mixture of two answers; ``cloud`` itself if they cannot be mixed.

    They cannot be mixed without a fitted mixture, without class probabilities, and if both models do not have the same
    classes in the same order.
    """
    rule = artefact.mixture
    if rule is None:
        return cloud
    try:
        small, big = distribution(edge), distribution(cloud)
    except MiningError:
        return cloud
    if len(small) != len(big) or (artefact.labels and len(artefact.labels) != len(big)):
        return cloud
    answers = [(edge, small), (cloud, big)]
    if artefact.rule == TWO_THRESHOLDS:  # it may give the class that is not the best
        answers = answers[1:]
    if artefact.labels and not all(_has_names(artefact.labels, answer, classes) for answer, classes in answers):
        return cloud
    mixed = pool(rule, temper(small, artefact.temperature_edge), temper(big, artefact.temperature_cloud))
    best = max(range(len(mixed)), key=mixed.__getitem__)
    label = cloud.label if big[best] == max(big) else artefact.labels[best] if artefact.labels else str(best)
    return Prediction(label=label, score=mixed[best], probabilities=mixed)


def _has_names(labels: list[str], answer: Prediction, classes: list[float]) -> bool:
    """Whether an answer fits these names of its ``classes`` (probabilities): its label is the name of its best one."""
    return answer.label is None or any(
        name == answer.label and p == max(classes) for name, p in zip(labels, classes, strict=True)
    )


def pool(rule: MixtureRule, small: list[float], big: list[float]) -> list[float]:
    """Return one distribution, with sum 1, of two of the same classes; all probabilities must be over 0."""
    if rule.kind == "sum":
        mixed = [rule.edge * p + rule.cloud * q for p, q in zip(small, big, strict=True)]
    else:
        logs = [rule.edge * math.log(p) + rule.cloud * math.log(q) for p, q in zip(small, big, strict=True)]
        highest = max(logs)
        mixed = [math.exp(log - highest) for log in logs]
    total = math.fsum(mixed)
    return [value / total for value in mixed]


def temper(probabilities: list[float], temperature: float) -> list[float]:
    """Return a distribution that is less certain (temperature over 1) or more (below 1): Guo et al., ICML 2017.

    All probabilities of the result are over 0.
    """
    spread = DOUBT / len(probabilities)
    logs = [math.log((1 - DOUBT) * p + spread) / temperature for p in probabilities]
    highest = max(logs)
    powers = [math.exp(log - highest) for log in logs]
    total = math.fsum(powers)
    return [max(power / total, sys.float_info.min) for power in powers]
