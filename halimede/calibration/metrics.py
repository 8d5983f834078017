"""What a calibration is worth on samples that nothing was fitted on, with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.temperature import Vector, calibrate, calibration_error
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.quality import quality, right
from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile
from halimede.stats.agreement import wilson

RESAMPLES = 1000
SEED = 0
#: of Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; beyond, 1.96 * (1 + 1.3 / degrees) is near enough
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def share(hits: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return a share and its interval (Wilson 1927)."""
    number, of = int(np.count_nonzero(hits)), len(hits)
    return (number / of if of else 0.0, *wilson(number, of))


def bootstrap(statistic: Callable[[NDArray[np.int64]], float], samples: int) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) of what is computed from samples, given by their indices."""
    chance = np.random.default_rng(SEED)
    drawn = [statistic(chance.integers(0, samples, samples)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def mean_interval(values: Vector) -> tuple[float, float, float]:
    """Return the mean of independent runs and its interval (Student 1908); of paired runs, give their differences."""
    mean, runs = float(np.mean(values)), len(values)
    if runs < 2:
        return mean, -math.inf, math.inf
    degrees = runs - 1
    t = T95[degrees - 1] if degrees <= len(T95) else 1.96 * (1 + 1.3 / degrees)
    half = t * float(np.std(values, ddof=1)) / math.sqrt(runs)
    return mean, mean - half, mean + half


Hits = NDArray[np.bool_]


def measure(
    data: LabelledPicture,
    edge: Sequence[Prediction],
    cloud: Sequence[Prediction],
    *,
    joint: Sequence[Prediction],
    uploaded: Hits,
    artefact: CalibrationFile,
) -> dict[str, float]:
    """Return all figures; ``joint`` is what is answered of samples that are ``uploaded``.

    ``edge_only``, ``cloud_only`` and ``joint`` are accuracies (of boxes: mAP at 0.5, without intervals); ``ratio`` is
    joint over cloud only; ``upload_ratio`` and ``risk`` (edge wrong, cloud right, not asked) are shares of all samples,
    ``agreement`` (both say the same) of those that stay.
    """
    found: dict[str, float] = {}
    _with_interval(found, "upload_ratio", share(uploaded))
    _with_interval(found, "risk", share((quality(data, edge, cloud).gain() > 0) & ~uploaded))
    if data.truths is None:
        nothing, everything = np.zeros(len(edge), bool), np.ones(len(edge), bool)
        measured = quality(data, edge, joint)
        found["edge_only"] = measured.point(nothing)["accuracy"]
        found["cloud_only"] = quality(data, edge, cloud).point(everything)["accuracy"]
        found["joint"] = measured.point(uploaded)["accuracy"]
        if found["cloud_only"]:
            found["ratio"] = found["joint"] / found["cloud_only"]
        return found
    low, high, mixed = (right(data.truths, answers) for answers in (edge, cloud, joint))
    together = np.where(uploaded, mixed, low)
    for name, values in (("edge_only", low), ("cloud_only", high), ("joint", together)):
        _with_interval(found, name, share(values > 0))
    if high.sum():
        ratio = float(together.mean() / high.mean())
        ends = bootstrap(lambda drawn: float(together[drawn].mean() / max(high[drawn].mean(), 1e-9)), len(high))
        _with_interval(found, "ratio", (ratio, *ends))
    alike = np.array([one.label == other.label for one, other in zip(edge, cloud, strict=True)])
    if not uploaded.all():
        _with_interval(found, "agreement", share(alike[~uploaded]))
    _add_errors(found, data.truths, edge, artefact)
    return found


def _with_interval(found: dict[str, float], name: str, value: tuple[float, float, float]) -> None:
    found[name], found[f"{name}.low"], found[f"{name}.high"] = value


def _add_errors(
    found: dict[str, float], truths: Sequence[str], edge: Sequence[Prediction], artefact: CalibrationFile
) -> None:
    """Add by how much the small model's sureness and its accuracy differ, before and after calibration."""
    names = artefact.labels or [str(i) for i in range(len(edge[0].probabilities or []))]
    rows = [(answer.probabilities, names.index(truth)) for answer, truth in zip(edge, truths, strict=True)
            if truth in names and len(answer.probabilities or []) == len(names)]  # fmt: skip
    if not rows:
        return
    said, truth = np.array([row for row, _ in rows], np.float64), np.array([index for _, index in rows])
    found["calibration_error.before"] = calibration_error(said, truth)
    found["calibration_error"] = calibration_error(calibrate(said, artefact.temperature_edge), truth)
