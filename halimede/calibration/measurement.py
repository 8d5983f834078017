"""Measures a calibration on held-out samples: each figure with its 95 % interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector, calibrate, calibration_error
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.detection import Detection
from halimede.evaluation.quality import quality, right
from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import UPLOAD_RATIO, CalibrationFile
from halimede.pipeline.upload_policy.replay import Replay
from halimede.stats.agreement import wilson

RESAMPLES = 1000
#: the same of boxes, whose figures are slow to compute, and rounds of the budget in each
RESAMPLES_OF_BOXES, FEW_ROUNDS = 200, 3
SEED = 0
#: Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; above, 1.96 * (1 + 1.3 / degrees) is a good
#: approximation
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def share(hits: NDArray[np.bool_] | Vector) -> tuple[float, float, float]:
    """Return a share and its interval (Wilson 1927); a sample may count in part."""
    number, of = float(np.sum(hits)), len(hits)
    return (number / of if of else 0.0, *wilson(number, of))


def bootstrap(statistic: Callable[[NDArray[np.int64]], float], samples: int) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) of a statistic of samples, given by their indices."""
    chance = np.random.default_rng(SEED)
    drawn = [statistic(chance.integers(0, samples, samples)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def mean_interval(values: Vector) -> tuple[float, float, float]:
    """Return the mean of runs and its interval (Student 1908); for paired runs, give their differences."""
    mean, runs = float(np.mean(values)), len(values)
    if runs < 2:
        return mean, -math.inf, math.inf
    degrees = runs - 1
    t = T95[degrees - 1] if degrees <= len(T95) else 1.96 * (1 + 1.3 / degrees)
    half = t * float(np.std(values, ddof=1)) / math.sqrt(runs)
    return mean, mean - half, mean + half


def measure(
    data: LabelledPicture,
    edge: Sequence[Prediction],
    cloud: Sequence[Prediction],
    *,
    joint: Sequence[Prediction],
    played: Replay,
    artefact: CalibrationFile,
) -> dict[str, float]:
    """Return all figures; ``joint`` are the answers to samples that are uploaded, ``played`` says which are.

    ``edge_only``, ``cloud_only`` and ``joint`` are accuracies (for boxes: mAP at 0.5); ``ratio`` is joint over cloud
    only; ``upload_ratio`` (with audits) and ``risk`` (edge wrong, cloud right, not uploaded) are shares of all samples,
    ``agreement`` (both answers agree) of the kept ones. ``chance`` is the accuracy of as many random uploads, and
    ``over_chance`` that of the rule above it; both are left out if every sample goes up, or none.
    """
    figures: dict[str, float] = {}
    up = played.up.mean(axis=0)
    _with_interval(figures, UPLOAD_RATIO, share(played.sent.mean(axis=0)))
    _with_interval(figures, "risk", share((quality(data, edge, cloud).gain() > 0) * (1 - up)))
    if data.boxes is not None:
        _add_boxes(figures, data.boxes, edge, joint, played)
        figures["cloud_only"] = quality(data, edge, cloud).point(np.ones(len(edge), bool))["accuracy"]
        if figures["cloud_only"]:
            figures["ratio"] = figures["joint"] / figures["cloud_only"]
        return figures
    truths = data.truths or []
    low, high, mixed = (right(truths, answers) for answers in (edge, cloud, joint))
    together = up * mixed + (1 - up) * low
    for name, values in (("edge_only", low), ("cloud_only", high), ("joint", together)):
        _with_interval(figures, name, share(values))
    if high.sum():
        ratio = float(together.mean() / high.mean())
        ends = bootstrap(lambda drawn: float(together[drawn].mean() / max(high[drawn].mean(), 1e-9)), len(high))
        _with_interval(figures, "ratio", (ratio, *ends))
    if 0 < up.mean() < 1:

        def over_chance(drawn: NDArray[np.int64]) -> float:
            kept = low[drawn].mean()
            return float(together[drawn].mean() - kept - up[drawn].mean() * (mixed[drawn].mean() - kept))

        over = over_chance(np.arange(len(low)))
        figures["chance"] = figures["joint"] - over
        _with_interval(figures, "over_chance", (over, *bootstrap(over_chance, len(low))))
    alike = np.array([one.label == other.label for one, other in zip(edge, cloud, strict=True)])
    if up.mean() < 1:
        _with_interval(figures, "agreement", _weighted_share(alike, 1 - up))
    _add_errors(figures, truths, edge, artefact)
    return figures


def _weighted_share(hits: NDArray[np.bool_], weights: Vector) -> tuple[float, float, float]:
    """Return a share of weighted samples, and its interval for as many as their weights."""
    number, of = float((hits * weights).sum()), float(weights.sum())
    return (number / of, *wilson(number, of))


def _add_boxes(
    figures: dict[str, float],
    truths: Sequence[Sequence[Box]],
    edge: Sequence[Prediction],
    joint: Sequence[Prediction],
    played: Replay,
) -> None:
    """Add the accuracies of boxes: average precision is no sum over pictures, so each draw of pictures counts anew."""
    measured, draws = Detection(truths, edge, joint), np.random.default_rng(SEED)
    number, rounds = len(edge), played.up
    nothing = np.zeros(number, bool)
    shuffled = [draws.permutation(uploaded) for uploaded in rounds]
    drawn = []
    for draw in range(-1, RESAMPLES_OF_BOXES):
        times = np.bincount(draws.integers(0, number, number), minlength=number) if draw >= 0 else np.ones(number, int)
        few = [(draw * FEW_ROUNDS + i) % len(rounds) for i in range(FEW_ROUNDS)] if draw >= 0 else range(len(rounds))
        means = [float(np.mean([measured.measure(which[i], times)[0] for i in few])) for which in (rounds, shuffled)]
        drawn.append((measured.measure(nothing, times)[0], *means, means[0] - means[1]))
    values = np.array(drawn)
    names = ("edge_only", "joint", "chance", "over_chance") if 0 < rounds.mean() < 1 else ("edge_only", "joint")
    for column, name in enumerate(names):
        low, high = np.quantile(values[1:, column], [0.025, 0.975])
        _with_interval(figures, name, (float(values[0, column]), float(low), float(high)))


def _with_interval(found: dict[str, float], name: str, value: tuple[float, float, float]) -> None:
    found[name], found[f"{name}.low"], found[f"{name}.high"] = value


def _add_errors(
    found: dict[str, float], truths: Sequence[str], edge: Sequence[Prediction], artefact: CalibrationFile
) -> None:
    """Add the difference of the small model's confidence and accuracy, before and after calibration."""
    names = artefact.labels or [str(i) for i in range(len(edge[0].probabilities or []))]
    rows = [(answer.probabilities, names.index(truth)) for answer, truth in zip(edge, truths, strict=True)
            if truth in names and len(answer.probabilities or []) == len(names)]  # fmt: skip
    if not rows:
        return
    said, truth = np.array([row for row, _ in rows], np.float64), np.array([index for _, index in rows])
    found["calibration_error.before"] = calibration_error(said, truth)
    found["calibration_error"] = calibration_error(calibrate(said, artefact.temperature_edge), truth)
