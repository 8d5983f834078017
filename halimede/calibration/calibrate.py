"""Calibrates a service from the predictions of both models, without files: see `halimede calibrate`.

The samples are split once, in blocks of neighbours that depend on one another: everything is fitted on one part, and
the figures are measured on the other (``held_out``), with 95 % intervals. If the goal is a limit on the risk and the
rule itself is fitted, the first part is halved again: a bound only holds on samples that the rule has not seen. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halimede.api.deferral import Costs
from halimede.api.mining import AFTER
from halimede.calibration.blocks import Indices, block_length, shuffled_blocks
from halimede.calibration.candidates import LEARNED, Candidate, candidates
from halimede.calibration.costs import PricedSamples, answers_by, cost_metrics
from halimede.calibration.deferral import fit_learned, hardness_by
from halimede.calibration.measurement import measure
from halimede.calibration.mixture import with_mixture
from halimede.calibration.notes import block_notes, cost_notes, sample_notes
from halimede.calibration.rewards import fit_reward, rewards_by
from halimede.calibration.temperature import Vector
from halimede.calibration.thresholds import (
    CONFIDENCE,
    cut_for_budget,
    cut_for_risk,
    least_samples,
    losses_allowed,
    quantiles,
)
from halimede.errors import InvalidFieldError
from halimede.evaluation.costs import check_positive
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.quality import quality, referenced
from halimede.evaluation.rules import hardness_of, judged
from halimede.messages import Prediction
from halimede.mining import MiningError, Verdict, canonical, create, parameters_at
from halimede.mining.calibration_file import CalibrationFile, LearnedRule, Reference, RewardRule
from halimede.mining.mixture import mix
from halimede.mining.two_thresholds import TWO_THRESHOLDS
from halimede.pipeline.upload_policy.replay import Replay, replay

#: least number of samples for a calibration
LEAST = 50
HELD_OUT = 0.3
#: blocks of neighbours into which samples are divided at least: with fewer, a bootstrap is not valid
LEAST_BLOCKS = 20
#: steps between quantiles of the reference
QUANTILES = 20
#: most classes for which their shares are useful
MAX_CLASSES = 256


class Goal(Struct, kw_only=True):
    """The goal: a share of uploaded samples, a limit on the risk that holds with ``confidence``, or the least costs.

    The bound on the costs holds with ``confidence``, too.
    """

    target_upload: float | None = None
    max_risk: float | None = None
    costs: Costs | None = None
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
    """The result of a calibration: numbers of ``fitted`` and ``held_out`` samples; ``notes`` for the user.

    ``metric``: what the accuracies are. ``tried``: the number of rules and parameters of which the best was chosen.
    ``block_length``: the number of neighbours that count as one sample in the intervals, 1 if samples are independent.
    """

    artefact: CalibrationFile
    goal: Goal
    fitted: int
    held_out: int
    labelled: bool
    metric: str
    tried: int = 1
    block_length: int = 1
    notes: list[str] = field(default_factory=list)

    @property
    def is_above_chance(self) -> bool:
        """Whether the rule chooses better than chance, by the interval of the held-out samples.

        True if nothing is chosen (each sample goes up, or none), and if no samples were held out.
        """
        figures = self.artefact.figures
        if self.goal.costs:
            return figures.get("cost_below_chance.low", 1.0) > 0
        return figures.get("over_chance.low", 1.0) > 0


@dataclass(frozen=True, slots=True)
class FittedRule:
    """A candidate with the hardness of the samples that select among the candidates, and of those that give the cut."""

    candidate: Candidate
    learned: LearnedRule | RewardRule | None
    selecting: Vector
    deciding: Vector


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
    configured: Candidate | None = None,
    labels: Sequence[str] = (),
    cloud_labels: Sequence[str] | None = None,
    fusion: bool = True,
    is_text: bool = False,
    audit_share: float = 0.0,
    held_out: float = HELD_OUT,
    seed: int = 0,
) -> Calibrated:
    """Fit temperatures, mixture, rule and cut; measure them on the share ``held_out`` of the samples (0: none).

    An empty ``rule`` searches the best of all that fit the answers; then ``configured`` is the service's own. Raises
    InvalidFieldError with the option (``--data``, ``--rule``, ``--max-risk``) for too few samples, a rule that has no
    threshold or does not support the mode, or a limit that the samples cannot prove or the rule cannot meet.
    """
    labelled = data.truths is not None or data.boxes is not None
    samples = Samples(referenced(data, cloud, is_text=is_text), edge, cloud)
    if shortage := describe_shortage(len(samples), held_out):
        raise InvalidFieldError("--data", len(samples), shortage)
    both = quality(samples.data, edge, cloud)
    needed = block_length(both.sample_quality(), None if samples.data.is_text else samples.data.truths)
    length = max(1, min(needed, len(samples) // LEAST_BLOCKS))
    order, blocks = shuffled_blocks(len(samples), length, seed)
    tested = int(np.searchsorted(blocks, round((blocks[-1] + 1) * held_out)))
    learning, testing = samples.part(order[tested:]), samples.part(order[:tested])
    if rule.lower() == LEARNED.lower() and mode != AFTER:
        fix = f"it looks at what the small model answers: set mode to {AFTER}, or choose one that looks at samples"
        raise InvalidFieldError("--rule", LEARNED, fix)
    options = [Candidate(rule, parameters or {})] if rule else candidates(configured, mode, learning.edge)
    deciding = learning
    if goal.max_risk is not None and (len(options) > 1 or options[0].is_learned):
        half = len(learning) // 2
        deciding, learning = learning.part(np.arange(half)), learning.part(np.arange(half, len(learning)))
    base = with_mixture(
        CalibrationFile(service=service, labels=list(labels)),
        (learning.edge, learning.cloud),
        learning.data.truths,
        fusion=fusion and labelled and (cloud_labels is None or list(cloud_labels) == list(labels)),
        tempered=labelled,
    )
    priced = _with_prices(learning, base, goal.costs, labels) if goal.costs else None
    if priced:
        options = _with_two_thresholds(
            options, priced.two_thresholds(labels), TWO_THRESHOLDS if priced.costs.adaptive else rule
        )
    fitted, notes = _fit_all(options, learning, deciding, base, mode, goal=goal)
    best = _best(fitted, goal, base, learning, audit_share, priced=priced)
    if priced:
        cut = priced.cut(best.candidate, best.deciding)
    else:
        cut = _cut(goal, best.deciding, deciding, best.candidate.rule, of=len(samples))
    chosen, learned, cut = _with_cut(best, cut)
    _check_risk(goal, best.deciding, cut, deciding, chosen.rule)
    unseen = _hardness_by(learned, chosen, mode, testing) if tested else np.zeros(0)
    artefact = msgspec.structs.replace(
        base,
        rule=chosen.rule,
        parameters=dict(chosen.parameters),
        learned=learned if isinstance(learned, LearnedRule) else None,
        reward=learned if isinstance(learned, RewardRule) else None,
        reference=_reference(np.concatenate([best.deciding, unseen]), answers_by(chosen, samples.edge)),
    )
    if tested:
        up = [mix(artefact, low, high) for low, high in zip(testing.edge, testing.cloud, strict=True)]
        played = _replay(goal, unseen, cut, audit_share)
        figures = measure(
            testing.data,
            testing.edge,
            testing.cloud,
            kept=answers_by(chosen, testing.edge),
            joint=up,
            played=played,
            artefact=artefact,
            blocks=blocks[:tested],
        )
        if priced:
            singles = [option for option in fitted if option.candidate.rule != TWO_THRESHOLDS]
            single = (
                _best(singles, goal, base, learning, audit_share, priced=priced)
                if singles and best not in singles
                else None
            )
            figures |= cost_metrics(
                _with_prices(testing, base, priced.costs, labels),
                (chosen, unseen, cut),
                _with_hardness(single, priced, mode, testing) if single else None,
                audit_share=audit_share,
                confidence=goal.confidence,
                blocks=blocks[:tested],
            )
        artefact = msgspec.structs.replace(artefact, figures=figures)
    return Calibrated(
        artefact=artefact,
        goal=goal,
        fitted=len(samples) - tested,
        held_out=tested,
        labelled=labelled,
        metric=both.metric,
        tried=len(fitted),
        block_length=length,
        notes=[
            *sample_notes(tested, goal.target_upload, np.concatenate([best.deciding, unseen]), labelled=labelled),
            *block_notes(length, needed, has_risk=goal.max_risk is not None, has_costs=goal.costs is not None),
            *cost_notes(goal.costs, best.deciding >= cut),
            *notes,
        ],
    )


def describe_shortage(number: int, held_out: float = HELD_OUT) -> str:
    """Return why so many samples are too few for a calibration, and how many are enough; empty: they are enough."""
    if number - round(number * held_out) >= LEAST:
        return ""
    least = math.ceil(LEAST / (1 - held_out))
    return f"{number} samples are too few: with {100 * held_out:.0f} % held out give at least {least}"


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


def _fit_all(
    options: Sequence[Candidate], learning: Samples, deciding: Samples, base: CalibrationFile, mode: str, *, goal: Goal
) -> tuple[list[FittedRule], list[str]]:
    """Fit all candidates; of several, those that cannot judge these answers are left out, Learned with a note.

    Raises InvalidFieldError if there is only one, or if none can judge.
    """
    fitted, notes = [], []
    for option in options:
        try:
            fitted.append(_fit_rule(option, learning, deciding, base, mode, goal=goal))
        except InvalidFieldError as error:
            if len(options) == 1:
                raise
            if option.is_learned:
                notes.append(f"{LEARNED} is left out: {error.fix}")
    if not fitted:
        fix = "no rule can judge them: let the small model's script return a score, probabilities or boxes"
        raise InvalidFieldError("--service", "the small model's answers", fix)
    return fitted, notes


def _fit_rule(
    option: Candidate, learning: Samples, deciding: Samples, base: CalibrationFile, mode: str, *, goal: Goal
) -> FittedRule:
    if not option.is_learned:
        hardness = _hardness(option, mode, deciding)
        selecting = hardness if deciding is learning else _hardness(option, mode, learning)
        return FittedRule(option, None, selecting, hardness)
    learned, own = _learned(learning, base, goal)
    return FittedRule(option, learned, own, own if deciding is learning else _learned_hardness(learned, deciding.edge))


def _with_prices(samples: Samples, base: CalibrationFile, costs: Costs, labels: Sequence[str]) -> PricedSamples:
    """Return samples with the costs of their answers. Raises InvalidFieldError (``--costs``)."""
    check_positive("--costs", costs, samples.data, labels)
    up = [mix(base, low, high) for low, high in zip(samples.edge, samples.cloud, strict=True)]
    return PricedSamples(samples.data, samples.edge, up, costs)


def _with_two_thresholds(options: Sequence[Candidate], thresholds: Candidate | None, rule: str) -> list[Candidate]:
    """Return the candidates with two thresholds that have the least costs: the only one if ``rule`` names them."""
    named = canonical(rule) == TWO_THRESHOLDS
    if named and thresholds is None:
        raise InvalidFieldError("--rule", rule, "it is for two-class models, and needs positive=NAME in --costs")
    if named and thresholds:
        return [thresholds]
    fixed = [option for option in options if option.rule.lower() != TWO_THRESHOLDS.lower()]
    return [*([thresholds] if thresholds and not rule else []), *fixed]


def _with_hardness(
    rule: FittedRule, priced: PricedSamples, mode: str, samples: Samples
) -> tuple[Candidate, Vector, float]:
    """Return a rule with the hardness of samples, and its cut with the least costs."""
    hardness = _hardness_by(rule.learned, rule.candidate, mode, samples)
    return rule.candidate, hardness, priced.cut(rule.candidate, rule.deciding)


def _best(
    fitted: Sequence[FittedRule],
    goal: Goal,
    base: CalibrationFile,
    learning: Samples,
    audit_share: float,
    *,
    priced: PricedSamples | None,
) -> FittedRule:
    """Return the candidate with the best joint answers at the target, or with the fewest uploads at the risk.

    If costs are the goal, ``priced`` has those of the samples: then the one with the least costs.
    """
    if len(fitted) == 1:
        return fitted[0]
    up = [mix(base, low, high) for low, high in zip(learning.edge, learning.cloud, strict=True)]
    measured = quality(learning.data, learning.edge, up)
    loss, _ = asking(learning)

    def value(rule: FittedRule) -> float:
        if priced:
            cut = priced.cut(rule.candidate, rule.selecting)
            return -float(priced.cost(rule.candidate, rule.selecting, cut).mean())
        if goal.max_risk is None:
            cut = cut_for_budget(rule.selecting, goal.target_upload or 0.0)
            rounds = _replay(goal, rule.selecting, cut, audit_share).up
            return float(np.mean([measured.point(uploaded)["accuracy"] for uploaded in rounds]))
        costly = np.sort(rule.selecting[loss])
        allowed = int(goal.max_risk * len(learning))
        return -float(np.mean(rule.selecting >= costly[allowed])) if allowed < len(costly) else 0.0

    return max(fitted, key=value)


def _with_cut(rule: FittedRule, cut: float) -> tuple[Candidate, LearnedRule | RewardRule | None, float]:
    """Return a rule whose parameter, or calibration, has the cut, or the nearest possible one, which is returned."""
    name = canonical(rule.candidate.rule)
    if rule.learned:
        learned = msgspec.structs.replace(rule.learned, cut=min(max(cut, -1.0), 1.0))
        return Candidate(name), learned, learned.cut
    miner = create(name, rule.candidate.parameters)
    parameters = {**rule.candidate.parameters, **parameters_at(miner, cut)}
    return Candidate(name, parameters), None, create(name, parameters).cut  # type: ignore[attr-defined]  # it has a cut


def _replay(goal: Goal, hardness: Vector, cut: float, audit_share: float) -> Replay:
    """Return what a worker's budget does with samples of this hardness; without a budget, what the cut does."""
    verdicts = [
        Verdict(hard=number >= cut, hardness=number, cut=cut) if math.isfinite(number) else Verdict(hard=True)
        for number in hardness.tolist()
    ]
    return replay(verdicts, target=goal.target_upload, cut=cut, audit_share=audit_share)


def _learned(samples: Samples, base: CalibrationFile, goal: Goal) -> tuple[LearnedRule | RewardRule, Vector]:
    """Fit learned deferral on the answers after escalation: those of the mixture, if there is one.

    For a limit on the risk, the reward of boxes and texts is what the risk counts: whether the big model corrects.
    """
    up = [mix(base, low, high) for low, high in zip(samples.edge, samples.cloud, strict=True)]
    gains, losses = asking(replace(samples, cloud=up))
    try:
        if samples.data.boxes is None and not samples.data.is_text:
            learnt = fit_learned(samples.edge, gains, losses)
            return learnt.rule, learnt.hardness
        measured = quality(samples.data, samples.edge, up)
        rewards = measured.rewards() if goal.max_risk is None else gains.astype(np.float64)
        fitted = fit_reward("texts" if samples.data.is_text else "boxes", samples.edge, rewards, gains)
    except MiningError as error:
        fix = f"{error}: choose another one, such as Threshold or UncertainBoxes"
        raise InvalidFieldError("--rule", LEARNED, fix) from error
    return fitted.rule, fitted.hardness


def _learned_hardness(learned: LearnedRule | RewardRule, answers: Sequence[Prediction]) -> Vector:
    return rewards_by(learned, answers) if isinstance(learned, RewardRule) else hardness_by(learned, answers)


def _hardness(option: Candidate, mode: str, samples: Samples) -> Vector:
    try:
        miner = create(option.rule, option.parameters, mode=mode)
    except InvalidFieldError as error:
        raise InvalidFieldError("--rule", option.rule, f"{error.field.rpartition('.')[2]}: {error.fix}") from error
    verdicts = judged(miner, mode, samples.data, samples.edge)
    hardness = hardness_of(verdicts)
    if hardness is None:
        why = verdicts[0].error or "it says yes or no"
        raise InvalidFieldError("--rule", option.rule, f"{why}: choose one with a threshold, such as Margin")
    return np.asarray(hardness)


def _hardness_by(learned: LearnedRule | RewardRule | None, option: Candidate, mode: str, samples: Samples) -> Vector:
    return _learned_hardness(learned, samples.edge) if learned else _hardness(option, mode, samples)


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


def _reference(hardness: Vector, answers: Sequence[Prediction]) -> Reference:
    counts = Counter(answer.label for answer in answers if answer.label is not None)
    shares = {name: count / counts.total() for name, count in sorted(counts.items())}
    return Reference(
        hardness=quantiles(hardness, QUANTILES),
        classes=shares if len(shares) <= MAX_CLASSES else {},
        samples=len(answers),
    )
