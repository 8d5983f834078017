"""Fits the temperatures of both models, and the mixture of their answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from halimede.calibration.deferral import folds
from halimede.calibration.temperature import Truth, Vector, calibrate, temperature
from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile, MixtureRule

#: weights of the small model to try; that of the big one is 1 minus it
WEIGHTS = np.linspace(0, 0.9, 19)
#: least number of samples for a mixture
MIN_SAMPLES = 40


def with_mixture(
    artefact: CalibrationFile,
    answers: tuple[Sequence[Prediction], Sequence[Prediction]],
    truths: Sequence[str] | None,
    *,
    fusion: bool,
    is_labelled: bool,
) -> CalibrationFile:
    """Return the artefact with the temperatures of both models, and the mixture if it helps.

    ``answers``: the predictions of the small and the big model for the same samples; ``truths``: the class of each.
    ``fusion``: whether to try a mixture. ``is_labelled``: the truths are labels, not the big model's answers. Without
    class probabilities or truths, the artefact is unchanged.
    """
    distributions = _distributions(answers, truths, artefact.labels)
    if distributions is None:
        return artefact
    edge, cloud, truth = distributions
    edge_t = temperature(edge, truth)
    cloud_t = temperature(cloud, truth) if is_labelled else 1.0
    mixture: MixtureRule | None = None
    if fusion and edge.shape == cloud.shape:
        mixture = fit_mixture(calibrate(edge, edge_t), calibrate(cloud, cloud_t), truth).rule
    return msgspec.structs.replace(
        artefact, temperature_edge=round(edge_t, 4), temperature_cloud=round(cloud_t, 4), mixture=mixture
    )


def _distributions(
    answers: tuple[Sequence[Prediction], Sequence[Prediction]], truths: Sequence[str] | None, labels: Sequence[str]
) -> tuple[Vector, Vector, Truth] | None:
    """Return both models' probabilities ``(n, classes)`` for samples with a known class, and the index of that class.

    None without truths, or if a model gives no probabilities.
    """
    rows = []
    for predictions in answers:
        lengths = {len(prediction.probabilities or []) for prediction in predictions}
        if len(lengths) != 1 or min(lengths) < 2 or truths is None:
            return None
        rows.append(np.array([prediction.probabilities for prediction in predictions], np.float64).clip(0, 1))
    edge, cloud = rows
    names = list(labels) or [str(i) for i in range(edge.shape[1])]
    index = {name: i for i, name in enumerate(names)}
    truth = np.array([index.get(name, -1) for name in truths or []])
    has_class = (truth >= 0) & (truth < min(edge.shape[1], cloud.shape[1]))
    return edge[has_class], cloud[has_class], truth[has_class]


@dataclass(frozen=True, slots=True)
class FittedMixture:
    """The mixture.

    ``rule``: None if it does not help; numbers of the big model's answers that it corrected and spoiled.
    """

    rule: MixtureRule | None
    corrected: int = 0
    spoiled: int = 0


def fit_mixture(edge: Vector, cloud: Vector, truth: Truth) -> FittedMixture:
    """Fit the mixture of two answers: a logarithmic opinion pool with the weight of maximum likelihood.

    ``edge`` and ``cloud`` are calibrated distributions ``(n, classes)``; ``truth`` is each sample's class index. A
    mixture is returned only if, cross-validated, it corrects more of the big model's answers than it spoils.

    Hinton, "Products of experts", ICANN 1999; Genest and Zidek, "Combining probability distributions", Statistical
    Science 1986.
    """
    if len(truth) < MIN_SAMPLES:
        return FittedMixture(None)
    logs = np.stack([w * np.log(edge) + (1 - w) * np.log(cloud) for w in WEIGHTS])
    right = logs.argmax(axis=2) == truth
    gained = right.astype(np.int64) - right[0]  # weight 0 is the big model alone
    likely = np.take_along_axis(logs, truth[None, :, None], axis=2)[:, :, 0] - np.logaddexp.reduce(logs, axis=2)
    corrected = spoiled = 0
    for fold in folds(~right[0]):
        best = int(likely[:, ~fold].mean(axis=1).argmax())
        corrected += int((gained[best, fold] > 0).sum())
        spoiled += int((gained[best, fold] < 0).sum())
    weight = round(float(WEIGHTS[likely.mean(axis=1).argmax()]), 4)
    if not weight or corrected <= spoiled:
        return FittedMixture(None, corrected, spoiled)
    return FittedMixture(MixtureRule(kind="product", edge=weight, cloud=round(1 - weight, 4)), corrected, spoiled)
