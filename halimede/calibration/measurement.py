"""Measures a calibration on held-out samples: each metric with its 95 % interval. Pure.

The intervals are of the metrics in the stream from which the samples come. Samples of one block depend on one another,
so blocks are what is counted and drawn (``halimede.calibration.blocks``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.blocks import Indices
from halimede.calibration.temperature import Vector, calibrate, calibration_error
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.detection import Detection
from halimede.evaluation.quality import quality, right
from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import UPLOAD_RATIO, CalibrationFile
from halimede.pipeline.upload_policy.replay import Replay
from halimede.stats.agreement import wilson

#: draws of a bootstrap
RESAMPLES = 1000
#: draws for boxes, whose metrics are slow to compute, and rounds of the budget in each
RESAMPLES_OF_BOXES, FEW_ROUNDS = 200, 3
#: seed of all draws
SEED = 0
#: Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; above, 1.96 * (1 + 1.3 / degrees) is a good
#: approximation
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def share(
    hits: NDArray[np.bool_] | Vector, blocks: Indices, weights: Vector | None = None
) -> tuple[float, float, float]:
    """Return a share and the ends of its interval.

    ``hits``: whether each sample counts, or in what part (0 to 1); ``weights``: of each sample, None: all weigh 1.
    ``blocks``: the block of each sample.

    The interval is Wilson's (1927) for the effective number of samples: as many independent ones have the same variance
    (Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts", Survey
    Methodology 24, 1998). If each sample is a block, that is their number, or the sum of their weights.
    """
    weights = np.ones(len(hits)) if weights is None else weights
    hits_sum, total = float((hits * weights).sum()), float(weights.sum())
    if not total:
        return 0.0, 0.0, 1.0
    effective = _effective_part((hits - hits_sum / total) * weights, blocks)
    return hits_sum / total, *wilson(hits_sum * effective, total * effective)


def _effective_part(errors: Vector, blocks: Indices) -> float:
    """Return the effective number of samples, as a part of all; ``errors`` are their distances from the mean."""
    sums = np.bincount(blocks, errors)
    if len(sums) == len(errors):
        return 1.0
    alone, together = float(errors @ errors), float(sums @ sums)
    spread = together / alone if alone else len(errors) / len(sums)  # the design effect (Kish 1965)
    return (student95(len(errors) - 1) / student95(len(sums) - 1)) ** 2 / max(1.0, spread)


def bootstrap(statistic: Callable[[Indices], float], blocks: Indices) -> tuple[float, float]:
    """Return the interval of a statistic of samples: whole blocks of samples are drawn again and again.

    ``statistic``: its value for samples given by their indices, which may be repeated. ``blocks``: the block of each
    sample, numbered in order from 0 on.
    """
    generator = np.random.default_rng(SEED)
    drawn = [statistic(np.repeat(np.arange(len(blocks)), draw_times(blocks, generator))) for _ in range(RESAMPLES)]
    return bootstrap_ends(drawn, blocks)


def draw_times(blocks: Indices, generator: np.random.Generator) -> Indices:
    """Return how often each sample is in a random draw of as many blocks as there are."""
    number = int(blocks[-1]) + 1
    return np.bincount(generator.integers(0, number, number), minlength=number)[blocks]


def bootstrap_ends(drawn: Sequence[float] | Vector, blocks: Indices) -> tuple[float, float]:
    """Return the interval of drawn statistics: percentiles that are expanded for few blocks.

    For few blocks percentiles (Efron 1979) are too narrow: the variance of n drawn values is too small by the factor
    (n - 1) / n, and Student's t replaces the normal quantile (Hesterberg, "What teachers should know about the
    bootstrap", The American Statistician 69, 2015).
    """
    number = int(blocks[-1]) + 1
    tail = NormalDist().cdf(-student95(number - 1) * math.sqrt(number / max(1, number - 1)))
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


def student95(degrees: int) -> float:
    """Return Student's t, two-sided 95 %, for some degrees of freedom; infinite without one."""
    if degrees < 1:
        return math.inf
    return T95[degrees - 1] if degrees <= len(T95) else 1.96 * (1 + 1.3 / degrees)


def mean_interval(values: Vector) -> tuple[float, float, float]:
    """Return the mean of runs and the ends of its interval (Student 1908); for paired runs, give their differences."""
    mean, runs = float(np.mean(values)), len(values)
    if runs < 2:
        return mean, -math.inf, math.inf
    half = student95(runs - 1) * float(np.std(values, ddof=1)) / math.sqrt(runs)
    return mean, mean - half, mean + half


def measure(
    data: LabelledSamples,
    edge: Sequence[Prediction],
    cloud: Sequence[Prediction],
    *,
    local_answers: Sequence[Prediction] | None = None,
    joint: Sequence[Prediction],
    decisions: Replay,
    artefact: CalibrationFile,
    blocks: Indices,
) -> dict[str, float]:
    """Return all metrics by name; those with an interval also have its ends as ``.low`` and ``.high``.

    ``edge`` and ``cloud`` are the answers of both models to all samples. ``joint`` are the answers to uploaded samples,
    and ``decisions`` has which these are. ``local_answers`` are the answers to all other samples: those of the
    ``edge``, unless the rule decides them. ``blocks``: the block of each sample, numbered in order from 0 on.

    ``edge_only``, ``cloud_only`` and ``joint`` are accuracies (for boxes: mAP at 0.5); ``ratio`` is joint over cloud
    only; ``upload_ratio`` (with audits) and ``risk`` (edge wrong, cloud right, not uploaded) are shares of all samples,
    ``agreement`` (both answers agree) of those that stay. ``chance`` is the accuracy of as many random uploads, and
    ``over_chance`` that of the rule above it; both are left out if every sample goes up, or none. For boxes there is no
    ``agreement``. ``calibration_error`` and ``calibration_error.before`` are the small model's, if it gives
    probabilities.
    """
    metrics: dict[str, float] = {}
    uploaded = decisions.up.mean(axis=0)
    _add_interval(metrics, UPLOAD_RATIO, share(decisions.sent.mean(axis=0), blocks))
    local_answers = edge if local_answers is None else local_answers
    _add_interval(metrics, "risk", share((quality(data, local_answers, cloud).gain() > 0) * (1 - uploaded), blocks))
    if data.boxes is not None:
        _add_boxes(metrics, data.boxes, edge, joint, decisions, blocks=blocks)
        metrics["cloud_only"] = quality(data, edge, cloud).point(np.ones(len(edge), bool))["accuracy"]
        if metrics["cloud_only"]:
            metrics["ratio"] = metrics["joint"] / metrics["cloud_only"]
        return metrics
    truths = data.truths or []
    low, high, mixed = (right(truths, answers) for answers in (local_answers, cloud, joint))
    expected = uploaded * mixed + (1 - uploaded) * low
    for name, values in (("edge_only", right(truths, edge)), ("cloud_only", high), ("joint", expected)):
        _add_interval(metrics, name, share(values, blocks))
    if high.sum():
        ratio = float(expected.mean() / high.mean())
        ends = bootstrap(lambda drawn: float(expected[drawn].mean() / max(high[drawn].mean(), 1e-9)), blocks)
        _add_interval(metrics, "ratio", (ratio, *ends))
    if 0 < uploaded.mean() < 1:

        def over_chance(drawn: NDArray[np.int64]) -> float:
            alone = low[drawn].mean()
            return float(expected[drawn].mean() - alone - uploaded[drawn].mean() * (mixed[drawn].mean() - alone))

        gain = over_chance(np.arange(len(low)))
        metrics["chance"] = metrics["joint"] - gain
        _add_interval(metrics, "over_chance", (gain, *bootstrap(over_chance, blocks)))
    agrees = np.array([answer.label == big.label for answer, big in zip(local_answers, cloud, strict=True)])
    if uploaded.mean() < 1:
        _add_interval(metrics, "agreement", share(agrees, blocks, 1 - uploaded))
    _add_errors(metrics, truths, edge, artefact)
    return metrics


def _add_boxes(
    metrics: dict[str, float],
    truths: Sequence[Sequence[Box]],
    edge: Sequence[Prediction],
    joint: Sequence[Prediction],
    decisions: Replay,
    *,
    blocks: Indices,
) -> None:
    """Add the accuracies of boxes: average precision is no sum over pictures, so each draw of pictures counts anew.

    ``truths``: the objects of each picture; the other parameters as of ``measure``.
    """
    detection, generator = Detection(truths, edge, joint), np.random.default_rng(SEED)
    number, rounds = len(edge), decisions.up
    nothing = np.zeros(number, bool)
    shuffled = [generator.permutation(uploaded) for uploaded in rounds]
    drawn = []
    for draw in range(-1, RESAMPLES_OF_BOXES):
        times = draw_times(blocks, generator) if draw >= 0 else np.ones(number, int)
        picks = [(draw * FEW_ROUNDS + i) % len(rounds) for i in range(FEW_ROUNDS)] if draw >= 0 else range(len(rounds))
        means = [float(np.mean([detection.measure(masks[i], times)[0] for i in picks])) for masks in (rounds, shuffled)]
        drawn.append((detection.measure(nothing, times)[0], *means, means[0] - means[1]))
    values = np.array(drawn)
    names = ("edge_only", "joint", "chance", "over_chance") if 0 < rounds.mean() < 1 else ("edge_only", "joint")
    for column, name in enumerate(names):
        _add_interval(metrics, name, (float(values[0, column]), *bootstrap_ends(values[1:, column], blocks)))


def _add_interval(metrics: dict[str, float], name: str, value: tuple[float, float, float]) -> None:
    """Add a metric: its value and the ends of its interval."""
    metrics[name], metrics[f"{name}.low"], metrics[f"{name}.high"] = value


def _add_errors(
    metrics: dict[str, float], truths: Sequence[str], edge: Sequence[Prediction], artefact: CalibrationFile
) -> None:
    """Add the small model's difference of confidence and accuracy, before and after calibration."""
    labels = artefact.labels or [str(i) for i in range(len(edge[0].probabilities or []))]
    rows = [(answer.probabilities, labels.index(truth)) for answer, truth in zip(edge, truths, strict=True)
            if truth in labels and len(answer.probabilities or []) == len(labels)]  # fmt: skip
    if not rows:
        return
    probabilities, truth = np.array([row for row, _ in rows], np.float64), np.array([index for _, index in rows])
    metrics["calibration_error.before"] = calibration_error(probabilities, truth)
    metrics["calibration_error"] = calibration_error(calibrate(probabilities, artefact.temperature_edge), truth)
