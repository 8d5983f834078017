"""What a calibration is worth on samples that nothing was fitted on, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.intervals import bootstrap, share
from halimede.calibration.temperature import calibrate, calibration_error
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.quality import quality, right
from halimede.messages import Prediction
from halimede.mining.calibration_file import CalibrationFile

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
