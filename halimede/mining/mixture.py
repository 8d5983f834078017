"""A calibrated mixture of two models' answers to one sample.

If their errors differ, two answers contain more information than the better one (Kittler, Hatef, Duin and Matas, "On
combining classifiers", PAMI 1998); otherwise calibration omits the mixture, and the cloud's answer counts.
"""

from __future__ import annotations

import math
import sys

from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile, MixtureRule
from halimede.mining.miner import MiningError
from halimede.mining.scores import distribution
from halimede.mining.two_thresholds import TWO_THRESHOLDS

#: share of each distribution that is spread over all classes: no model alone can exclude a class
DOUBT = 1e-4


def mix(artefact: CalibrationFile, edge: Prediction, cloud: Prediction) -> Prediction:
    """Return the mixture of two answers; ``cloud`` itself if they cannot be mixed.

    That is: without a fitted mixture, for boxes, for values without class probabilities, and for different classes,
    also for the same ones in another order.
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
    if artefact.labels and not all(_named(artefact.labels, answer, classes) for answer, classes in answers):
        return cloud
    mixed = pool(rule, tempered(small, artefact.temperature_edge), tempered(big, artefact.temperature_cloud))
    best = max(range(len(mixed)), key=mixed.__getitem__)
    label = cloud.label if big[best] == max(big) else artefact.labels[best] if artefact.labels else str(best)
    return Prediction(label=label, score=mixed[best], probabilities=mixed)


def _named(labels: list[str], said: Prediction, classes: list[float]) -> bool:
    """Whether the classes have these names in this order, as far as an answer shows: its label is its best class."""
    return said.label is None or any(
        name == said.label and p == max(classes) for name, p in zip(labels, classes, strict=True)
    )


def pool(rule: MixtureRule, small: list[float], big: list[float]) -> list[float]:
    """Combine two distributions of the same classes into one."""
    if rule.kind == "sum":
        mixed = [rule.edge * p + rule.cloud * q for p, q in zip(small, big, strict=True)]
    else:
        logs = [rule.edge * math.log(p) + rule.cloud * math.log(q) for p, q in zip(small, big, strict=True)]
        highest = max(logs)
        mixed = [math.exp(each - highest) for each in logs]
    total = math.fsum(mixed)
    return [each / total for each in mixed]


def tempered(probabilities: list[float], temperature: float) -> list[float]:
    """Make a distribution less certain (temperature over 1) or more (below 1): Guo et al., ICML 2017."""
    spread = DOUBT / len(probabilities)
    logs = [math.log((1 - DOUBT) * p + spread) / temperature for p in probabilities]
    highest = max(logs)
    powers = [math.exp(each - highest) for each in logs]
    total = math.fsum(powers)
    return [max(power / total, sys.float_info.min) for power in powers]
