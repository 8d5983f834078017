"""A calibrated mixture of two models' answers to one sample.

Where their errors differ, two answers know more than the better one (Kittler, Hatef, Duin and Matas, "On combining
classifiers", PAMI 1998); where they do not, calibration leaves the mixture out, and the cloud's word stands.
"""

from __future__ import annotations

import math
import sys

from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile, MixtureRule
from halimede.mining.miner import MiningError
from halimede.mining.scores import distribution

#: a share of each distribution that is spread over all classes: no model alone can say that a class is impossible
DOUBT = 1e-4


def mix(artefact: CalibrationFile, edge: Prediction, cloud: Prediction) -> Prediction:
    """Return the mixture of two answers; ``cloud`` itself where nothing can be mixed, or helps.

    That is: without a fitted mixture, of boxes and of values without class probabilities, and of other classes, also
    of the same ones in another order.
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
    if artefact.labels and not (_named(artefact.labels, edge, small) and _named(artefact.labels, cloud, big)):
        return cloud
    mixed = pool(rule, tempered(small, artefact.temperature_edge), tempered(big, artefact.temperature_cloud))
    best = max(range(len(mixed)), key=mixed.__getitem__)
    label = cloud.label if big[best] == max(big) else artefact.labels[best] if artefact.labels else str(best)
    return Prediction(label=label, score=mixed[best], probabilities=mixed)


def _named(labels: list[str], said: Prediction, classes: list[float]) -> bool:
    """Whether the classes have these names in this order, as far as an answer tells: its label is its best class."""
    return said.label is None or any(
        name == said.label and p == max(classes) for name, p in zip(labels, classes, strict=True)
    )


def pool(rule: MixtureRule, small: list[float], big: list[float]) -> list[float]:
    """Make one distribution of two of the same classes."""
    if rule.kind == "sum":
        mixed = [rule.edge * p + rule.cloud * q for p, q in zip(small, big, strict=True)]
    else:
        logs = [rule.edge * math.log(p) + rule.cloud * math.log(q) for p, q in zip(small, big, strict=True)]
        highest = max(logs)
        mixed = [math.exp(each - highest) for each in logs]
    total = math.fsum(mixed)
    return [each / total for each in mixed]


def tempered(probabilities: list[float], temperature: float) -> list[float]:
    """Make a distribution less sure (temperature over 1) or surer (below 1): Guo et al., ICML 2017."""
    spread = DOUBT / len(probabilities)
    logs = [math.log((1 - DOUBT) * p + spread) / temperature for p in probabilities]
    highest = max(logs)
    powers = [math.exp(each - highest) for each in logs]
    total = math.fsum(powers)
    return [max(power / total, sys.float_info.min) for power in powers]
