"""Calibrates a service from the predictions of both models, without files: see `halimede calibrate`.

The samples are split once: everything is fitted on one part, and the figures are measured on the other (``held_out``),
with 95 % intervals. If the goal is a limit on the risk and the rule itself is fitted, the first part is halved again: a
bound only holds on samples that the rule has not seen. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halimede.api.mining import AFTER
from halimede.calibration.deferral import FOLDS, fit_learned, folds, hardness_by
from halimede.calibration.temperature import Truth, Vector, calibrate, calibration_error, temperature
from halimede.calibration.thresholds import (
    CONFIDENCE,
    cut_for_budget,
    cut_for_risk,
    least_samples,
    losses_allowed,
    quantiles,
)
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.quality import quality, referenced, right
from halimede.evaluation.rules import hardness_of, judged
from halimede.messages import Prediction
from halimede.mining import MiningError, canonical, create, parameters_at
from halimede.mining.calibration_file import UPLOAD_RATIO, CalibrationFile, LearnedRule, MixtureRule, Reference
from halimede.mining.mixture import mix
from halimede.stats.agreement import wilson

LEARNED = "Learned"
#: least number of samples for a calibration; number of held-out samples below which the wide intervals are noted
LEAST, FEW = 50, 200
HELD_OUT = 0.3
#: steps between quantiles of the reference
QUANTILES = 20
#: most classes for which their shares are useful
MAX_CLASSES = 256
Indices = NDArray[np.int64]
#: weights of the small model to try; that of the big one is 1 minus it
WEIGHTS = np.linspace(0, 0.9, 19)
#: least number of samples for a mixture
MIXTURE_LEAST = 40
RESAMPLES = 1000
SEED = 0
#: Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; above, 1.96 * (1 + 1.3 / degrees) is a good
#: approximation
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Goal(Struct, kw_only=True):
    """The goal: a share of uploaded samples, or a limit on the risk that holds with ``confidence``."""

    target_upload: float | None = None
    max_risk: float | None = None
    confidence: float = CONFIDENCE


@dataclass(frozen=True, slots=True)
class Samples:
    """Predictions of both models for ``data``, with the truth: its labels, else the big model's answers."""

    data: LabelledPicture
    edge: Sequence[Prediction]
    cloud: Sequence[Prediction]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.edge)

    def part(self, indices: Indices) -> Samples:
        """Return a subset."""
        return Samples(part(self.data, indices), [self.edge[i] for i in indices], [self.cloud[i] for i in indices])


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The result of a calibration: numbers of ``fitted`` and ``held_out`` samples; ``notes`` for the user."""

    artefact: CalibrationFile
    goal: Goal
    fitted: int
    held_out: int
    labelled: bool
    notes: list[str] = field(default_factory=list)


def fit(
    edge: Sequence[Prediction],
    cloud: Sequence[Prediction],
    data: LabelledPicture,
    *,
    goal: Goal,
    service: str = "",
    rule: str = LEARNED,
    mode: str = AFTER,
    parameters: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
    cloud_labels: Sequence[str] | None = None,
    fusion: bool = True,
    held_out: float = HELD_OUT,
    seed: int = 0,
) -> Calibrated:
    """Fit temperatures, mixture, rule and cut; measure them on the share ``held_out`` of the samples (0: none).

    Raises InvalidFieldError with the option (``--data``, ``--rule``, ``--max-risk``) for too few samples, a rule that
    has no threshold or does not support the mode, or a limit that the samples cannot prove or the rule cannot meet.
    """
    labelled = data.truths is not None or data.boxes is not None
    samples = Samples(referenced(data, cloud), edge, cloud)
    order = np.random.default_rng(seed).permutation(len(samples))
    tested = round(len(samples) * held_out)
    learning, testing = samples.part(order[tested:]), samples.part(order[:tested])
    if len(learning) < LEAST:
        fix = f"samples are too few: with {held_out:.0%} held out give at least {math.ceil(LEAST / (1 - held_out))}"
        raise InvalidFieldError("--data", len(samples), fix)
    notes = []
    if 0 < tested < FEW:
        notes.append(f"{tested} held-out samples are few: the intervals say how little they show")
    if not labelled:
        notes.append("the data have no labels: the big model's answers count as true, and cannot be bettered")
    learner = rule.lower() == LEARNED.lower()
    if learner and mode != AFTER:
        fix = f"it looks at what the small model answers: set mode to {AFTER}, or choose one that looks at samples"
        raise InvalidFieldError("--rule", LEARNED, fix)
    deciding = learning
    if goal.max_risk is not None and learner:
        half = len(learning) // 2
        deciding, learning = learning.part(np.arange(half)), learning.part(np.arange(half, len(learning)))
    base = _with_mixture(
        CalibrationFile(service=service, labels=list(labels)),
        learning,
        fusion=fusion and labelled and (cloud_labels is None or list(cloud_labels) == list(labels)),
        tempered=labelled,
    )
    if learner:
        learned, own = _learned(learning, base)
        hardness = own if deciding is learning else hardness_by(learned, deciding.edge)
    else:
        learned, hardness = None, _hardness(rule, mode, parameters or {}, deciding)
    cut = _cut(goal, hardness, deciding, rule, of=len(samples))
    if learned:
        learned = msgspec.structs.replace(learned, cut=min(max(cut, -1.0), 1.0))
        chosen, cut = {}, learned.cut
    else:
        miner = create(rule, parameters or {})
        chosen = {**(parameters or {}), **parameters_at(miner, cut)}
        cut = create(rule, chosen).cut  # type: ignore[attr-defined]  # parameters_at found its cut
    _check_risk(goal, hardness, cut, deciding, rule)
    unseen = _hardness_by(learned, rule, mode, chosen, testing) if tested else np.zeros(0)
    artefact = msgspec.structs.replace(
        base,
        rule=canonical(rule),
        parameters=chosen,
        learned=learned,
        reference=_reference(np.concatenate([hardness, unseen]), samples),
    )
    if tested:
        up = [mix(artefact, low, high) for low, high in zip(testing.edge, testing.cloud, strict=True)]
        found = measure(testing.data, testing.edge, testing.cloud, joint=up, uploaded=unseen >= cut, artefact=artefact)
        artefact = msgspec.structs.replace(artefact, figures=found)
    return Calibrated(artefact, goal, len(samples) - tested, tested, labelled, notes)


def part(data: LabelledPicture, indices: Indices) -> LabelledPicture:
    """Return a subset of the data."""
    return replace(
        data,
        images=[data.images[i] for i in indices],
        names=[data.names[i] for i in indices],
        sizes=[data.sizes[i] for i in indices],
        truths=[data.truths[i] for i in indices] if data.truths is not None else None,
        boxes=[data.boxes[i] for i in indices] if data.boxes is not None else None,
    )


def asking(samples: Samples) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return where the next tier corrects the small model's answer, and where it spoils it."""
    gain = quality(samples.data, samples.edge, samples.cloud).gain()
    return gain > 0, gain < 0


def _with_mixture(artefact: CalibrationFile, samples: Samples, *, fusion: bool, tempered: bool) -> CalibrationFile:
    """Add temperatures, and the mixture if it helps; neither without class probabilities."""
    found = _distributions(samples, artefact.labels)
    if found is None:
        return artefact
    edge, cloud, truth = found
    warm = temperature(edge, truth)
    warm_cloud = temperature(cloud, truth) if tempered else 1.0
    mixture: MixtureRule | None = None
    if fusion and edge.shape == cloud.shape:
        mixture = fit_mixture(calibrate(edge, warm), calibrate(cloud, warm_cloud), truth).rule
    return msgspec.structs.replace(
        artefact, temperature_edge=round(warm, 4), temperature_cloud=round(warm_cloud, 4), mixture=mixture
    )


def _distributions(samples: Samples, labels: Sequence[str]) -> tuple[Vector, Vector, Truth] | None:
    """Return both models' probabilities for samples with a known class, and the index of that class."""
    rows = []
    for answers in (samples.edge, samples.cloud):
        lengths = {len(answer.probabilities or []) for answer in answers}
        if len(lengths) != 1 or min(lengths) < 2 or samples.data.truths is None:
            return None
        rows.append(np.array([answer.probabilities for answer in answers], np.float64).clip(0, 1))
    edge, cloud = rows
    names = list(labels) or [str(i) for i in range(edge.shape[1])]
    places = {name: i for i, name in enumerate(names)}
    truth = np.array([places.get(name, -1) for name in samples.data.truths or []])
    known = (truth >= 0) & (truth < min(edge.shape[1], cloud.shape[1]))
    return edge[known], cloud[known], truth[known]


def _learned(samples: Samples, base: CalibrationFile) -> tuple[LearnedRule, Vector]:
    """Fit learned deferral on the answers after escalation: those of the mixture, if there is one."""
    up = [mix(base, low, high) for low, high in zip(samples.edge, samples.cloud, strict=True)]
    try:
        learnt = fit_learned(samples.edge, *asking(replace(samples, cloud=up)))
    except MiningError as error:
        fix = f"{error}: choose another one, such as Threshold or UncertainBoxes"
        raise InvalidFieldError("--rule", LEARNED, fix) from error
    return learnt.rule, learnt.hardness


def _hardness(rule: str, mode: str, parameters: Mapping[str, str], samples: Samples) -> Vector:
    try:
        miner = create(rule, parameters, mode=mode)
    except InvalidFieldError as error:
        raise InvalidFieldError("--rule", rule, f"{error.field.rpartition('.')[2]}: {error.fix}") from error
    verdicts = judged(miner, mode, samples.data, samples.edge)
    found = hardness_of(verdicts)
    if found is None:
        why = verdicts[0].error or "it says yes or no"
        raise InvalidFieldError("--rule", rule, f"{why}: choose one with a threshold, such as Margin")
    return np.asarray(found)


def _hardness_by(
    learned: LearnedRule | None, rule: str, mode: str, parameters: Mapping[str, str], samples: Samples
) -> Vector:
    return hardness_by(learned, samples.edge) if learned else _hardness(rule, mode, parameters, samples)


def _cut(goal: Goal, hardness: Vector, samples: Samples, rule: str, *, of: int) -> float:
    """Return the cut for the goal; ``samples`` are those of all (``of``) that may decide on it."""
    if goal.max_risk is None:
        return cut_for_budget(hardness, goal.target_upload or 0.0)
    loss, _ = asking(samples)
    found = cut_for_risk(hardness, loss, goal.max_risk, goal.confidence)
    if found is None:
        wanted = least_samples(goal.max_risk, goal.confidence) if goal.max_risk > 0 else 0
        fix = (
            f"{of} samples are too few to show that with {goal.confidence:.4g}: give at least"
            f" {math.ceil(wanted * of / len(samples))}, of which {rule}'s threshold gets {wanted}, or allow more"
            if wanted
            else "no data can show that: allow more than 0"
        )
        raise InvalidFieldError("--max-risk", goal.max_risk, fix)
    if math.isinf(found):  # no uploads are needed
        highest = hardness[np.isfinite(hardness)].max(initial=0.0)
        return math.nextafter(float(highest), math.inf)
    return found


def _check_risk(goal: Goal, hardness: Vector, cut: float, samples: Samples, rule: str) -> None:
    """Refuse a rule whose parameters cannot reach the required cut: samples would be kept against the limit."""
    if goal.max_risk is None:
        return
    loss, _ = asking(samples)
    allowed = losses_allowed(len(samples), goal.max_risk, goal.confidence)
    if np.count_nonzero(loss & (hardness < cut)) > allowed:
        fix = f"{rule} cannot hold it: what it finds easiest stays at any threshold; allow more, or try another --rule"
        raise InvalidFieldError("--max-risk", goal.max_risk, f"{fix} (of boxes, also another `empty`)")


def _reference(hardness: Vector, samples: Samples) -> Reference:
    counts = Counter(answer.label for answer in samples.edge if answer.label is not None)
    shares = {name: count / counts.total() for name, count in sorted(counts.items())}
    return Reference(
        hardness=quantiles(hardness, QUANTILES),
        classes=shares if len(shares) <= MAX_CLASSES else {},
        samples=len(samples),
    )


@dataclass(frozen=True, slots=True)
class Mixed:
    """The mixture, None: it does not help. Counts of answers that it corrected and spoiled."""

    rule: MixtureRule | None
    mended: int = 0
    spoiled: int = 0


def fit_mixture(edge: Vector, cloud: Vector, truth: Truth, *, seed: int = 0) -> Mixed:
    """Fit the mixture of two answers: a logarithmic opinion pool with the weight of maximum likelihood.

    ``edge`` and ``cloud`` are calibrated distributions ``[samples, classes]``; ``truth`` is each sample's class index.
    A mixture is returned only if, cross-validated, it corrects more of the big model's answers than it spoils.

    Hinton, "Products of experts", ICANN 1999; Genest and Zidek, "Combining probability distributions", Statistical
    Science 1986.
    """
    if len(truth) < MIXTURE_LEAST:
        return Mixed(None)
    logs = np.stack([w * np.log(edge) + (1 - w) * np.log(cloud) for w in WEIGHTS])
    right = logs.argmax(axis=2) == truth
    gained = right.astype(np.int64) - right[0]  # weight 0 is the big model alone
    likely = np.take_along_axis(logs, truth[None, :, None], axis=2)[:, :, 0] - np.logaddexp.reduce(logs, axis=2)
    mended = spoiled = 0
    for part in folds(~right[0], FOLDS, seed):
        best = int(likely[:, ~part].mean(axis=1).argmax())
        mended += int((gained[best, part] > 0).sum())
        spoiled += int((gained[best, part] < 0).sum())
    weight = round(float(WEIGHTS[likely.mean(axis=1).argmax()]), 4)
    if not weight or mended <= spoiled:
        return Mixed(None, mended, spoiled)
    return Mixed(MixtureRule(kind="product", edge=weight, cloud=round(1 - weight, 4)), mended, spoiled)


def share(hits: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return a share and its interval (Wilson 1927)."""
    number, of = int(np.count_nonzero(hits)), len(hits)
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
    """Return all figures; ``joint`` are the answers to samples that are ``uploaded``.

    ``edge_only``, ``cloud_only`` and ``joint`` are accuracies (for boxes: mAP at 0.5, without intervals); ``ratio`` is
    joint over cloud only; ``upload_ratio`` and ``risk`` (edge wrong, cloud right, not uploaded) are shares of all
    samples, ``agreement`` (both answers agree) of the kept ones.
    """
    found: dict[str, float] = {}
    _with_interval(found, UPLOAD_RATIO, share(uploaded))
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
    """Add the difference of the small model's confidence and accuracy, before and after calibration."""
    names = artefact.labels or [str(i) for i in range(len(edge[0].probabilities or []))]
    rows = [(answer.probabilities, names.index(truth)) for answer, truth in zip(edge, truths, strict=True)
            if truth in names and len(answer.probabilities or []) == len(names)]  # fmt: skip
    if not rows:
        return
    said, truth = np.array([row for row, _ in rows], np.float64), np.array([index for _, index in rows])
    found["calibration_error.before"] = calibration_error(said, truth)
    found["calibration_error"] = calibration_error(calibrate(said, artefact.temperature_edge), truth)
