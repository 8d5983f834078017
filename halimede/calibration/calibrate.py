"""Calibrates a service from the predictions of both models, without files (``halimede calibrate``); ``fit`` does it.

The edge is the smaller model, the cloud the next bigger one. A rule gives each sample a hardness, and samples from a
cut on are uploaded. The samples are split once, in blocks of neighbours that depend on one another: everything is
fitted on one part, and the metrics are measured on the other (``held_out``), with 95 % intervals. If the goal is a
limit on the risk and the rule itself is fitted, the first part is halved again: a bound only holds on samples that the
rule has not seen. Pure.
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
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.quality import quality, with_truth
from halimede.evaluation.rules import hardness_of, judge_all
from halimede.messages import Prediction
from halimede.mining import MiningError, Verdict, canonical, create, parameters_at
from halimede.mining.calibration_file import CalibrationFile, LearnedRule, Reference, RewardRule
from halimede.mining.mixture import mix
from halimede.mining.two_thresholds import TWO_THRESHOLDS
from halimede.pipeline.upload_policy.replay import Replay, replay

#: least number of samples that are not held out
MIN_SAMPLES = 50
#: the share of the samples that metrics are measured on
HELD_OUT = 0.3
#: blocks of neighbours into which samples are divided at least: with fewer, a bootstrap is not valid
LEAST_BLOCKS = 20
#: steps between quantiles of the reference
QUANTILE_STEPS = 20
#: most classes for which their shares are useful
MAX_CLASSES = 256


class Goal(Struct, kw_only=True):
    """The goal of a calibration: one of the first three fields is set.

    ``target_upload``: the share of samples to upload. ``max_risk``: a limit on the share of samples that stay although
    the edge is wrong and the cloud right; it holds with the probability ``confidence``. ``costs``: least costs, whose
    bound holds with that probability, too.
    """

    target_upload: float | None = None
    max_risk: float | None = None
    costs: Costs | None = None
    confidence: float = CONFIDENCE


@dataclass(frozen=True, slots=True)
class Samples:
    """Predictions of both models, ``edge`` and ``cloud``, for the samples in ``data``, which has the truth as well.

    The truth are its labels, else the big model's answers.
    """

    data: LabelledSamples
    edge: Sequence[Prediction]
    cloud: Sequence[Prediction]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.edge)

    def subset(self, indices: Indices) -> Samples:
        """Return the samples with these indices, in their order."""
        return Samples(subset(self.data, indices), [self.edge[i] for i in indices], [self.cloud[i] for i in indices])

    def joint_answers(self, artefact: CalibrationFile) -> list[Prediction]:
        """Return the answers after escalation: those of the mixture, if the artefact has one, else the cloud's."""
        return [mix(artefact, low, high) for low, high in zip(self.edge, self.cloud, strict=True)]


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """The result of a calibration.

    Attributes:
        artefact: what was fitted, with the metrics of the held-out samples: the content of the file.
        goal: the goal, as given.
        fitted, held_out: numbers of samples that were fitted on, and measured on.
        labelled: whether the truth are labels, not the big model's answers.
        metric: what the accuracies are, in words.
        tried: the number of rules and parameters of which the best was chosen.
        block_length: the number of neighbours that count as one sample in the intervals, 1 if samples are independent.
        notes: what the user should know, as sentences.

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
        metrics = self.artefact.metrics
        if self.goal.costs:
            return metrics.get("cost_below_chance.low", 1.0) > 0
        return metrics.get("over_chance.low", 1.0) > 0


@dataclass(frozen=True, slots=True)
class FittedRule:
    """A candidate, with the hardness that it gives to the samples that select the candidate, and to those for the cut.

    ``selecting``, ``deciding``: these hardnesses, ``(n,)``. ``learned``: the fitted rule of learned deferral, whose cut
    is not set yet; None: another candidate.
    """

    candidate: Candidate
    learned: LearnedRule | RewardRule | None
    selecting: Vector
    deciding: Vector


def fit(
    edge: Sequence[Prediction],
    cloud: Sequence[Prediction],
    data: LabelledSamples,
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
) -> CalibrationResult:
    """Fit temperatures, mixture, rule and cut; measure them on the share ``held_out`` of the samples.

    The three sequences have an entry for each sample.

    ``service``: the name in the artefact. ``labels``: the edge's classes, ``cloud_labels``: the cloud's (None:
    unknown). ``rule``, ``parameters``: the rule to fit; an empty ``rule``: the best of several, of which ``configured``
    (the service's own) is one. ``mode``: when the rule judges. ``fusion``: whether to try a mixture, which needs labels
    and equal classes. ``is_text``: answers are texts. ``audit_share``: share of easy samples that go up as well.
    ``held_out``: 0 measures nothing. ``seed``: of the order in which blocks are held out.

    Raises InvalidFieldError, which names an option: ``--data`` for too few or unfit samples; ``--rule`` for a rule that
    has no threshold or does not support the mode; ``--max-risk`` for a limit that the samples cannot prove or the rule
    cannot meet; ``--costs`` for costs that do not fit the data; ``--service`` for answers that no rule can judge.
    """
    has_truth = data.truths is not None or data.boxes is not None
    samples = Samples(with_truth(data, cloud, is_text=is_text), edge, cloud)
    if shortage := describe_shortage(len(samples), held_out):
        raise InvalidFieldError("--data", len(samples), shortage)
    # a part to fit on and a part to measure on, in whole blocks
    model_quality = quality(samples.data, edge, cloud)
    needed_length = block_length(model_quality.sample_quality(), None if samples.data.is_text else samples.data.truths)
    length = max(1, min(needed_length, len(samples) // LEAST_BLOCKS))
    order, blocks = shuffled_blocks(len(samples), length, seed)
    test_count = int(np.searchsorted(blocks, round((blocks[-1] + 1) * held_out)))
    learning, testing = samples.subset(order[test_count:]), samples.subset(order[:test_count])
    # the rules to try, and the samples that decide the cut
    if rule.lower() == LEARNED.lower() and mode != AFTER:
        fix = f"it looks at what the small model answers: set mode to {AFTER}, or choose one that looks at samples"
        raise InvalidFieldError("--rule", LEARNED, fix)
    options = [Candidate(rule, parameters or {})] if rule else candidates(configured, mode, learning.edge)
    deciding = learning
    if goal.max_risk is not None and (len(options) > 1 or options[0].is_learned):
        half = len(learning) // 2
        deciding, learning = learning.subset(np.arange(half)), learning.subset(np.arange(half, len(learning)))
    # temperatures and mixture, then the rules, the best of them, and its cut
    base = with_mixture(
        CalibrationFile(service=service, labels=list(labels)),
        (learning.edge, learning.cloud),
        learning.data.truths,
        fusion=fusion and has_truth and (cloud_labels is None or list(cloud_labels) == list(labels)),
        is_labelled=has_truth,
    )
    priced = _with_prices(learning, base, goal.costs, labels) if goal.costs else None
    if priced:
        named_rule = TWO_THRESHOLDS if priced.costs.adaptive else rule
        options = _with_two_thresholds(options, priced.two_thresholds(labels), named_rule)
    fitted, notes = _fit_all(options, learning, deciding, base, mode, goal=goal)
    best = _select_rule(fitted, goal, base, learning, audit_share, priced=priced)
    if priced:
        cut = priced.cut(best.candidate, best.deciding)
    else:
        cut = _cut(goal, best.deciding, deciding, best.candidate.rule, total=len(samples))
    chosen, learned, cut = _with_cut(best, cut)
    _check_risk(goal, best.deciding, cut, deciding, chosen.rule)
    # the file's content, with the metrics of the part to measure on
    unseen = _hardness_by(learned, chosen, mode, testing) if test_count else np.zeros(0)
    artefact = msgspec.structs.replace(
        base,
        rule=chosen.rule,
        parameters=dict(chosen.parameters),
        learned=learned if isinstance(learned, LearnedRule) else None,
        reward=learned if isinstance(learned, RewardRule) else None,
        reference=_reference(np.concatenate([best.deciding, unseen]), answers_by(chosen, samples.edge)),
    )
    if test_count:
        metrics = measure(
            testing.data,
            testing.edge,
            testing.cloud,
            local_answers=answers_by(chosen, testing.edge),
            joint=testing.joint_answers(artefact),
            decisions=_replay(goal, unseen, cut, audit_share),
            artefact=artefact,
            blocks=blocks[:test_count],
        )
        if priced:
            # if the best rule has two thresholds, its costs are compared with those of the best single threshold
            singles = [option for option in fitted if option.candidate.rule != TWO_THRESHOLDS]
            single = None
            if singles and best not in singles:
                best_single = _select_rule(singles, goal, base, learning, audit_share, priced=priced)
                single = _with_hardness(best_single, priced, mode, testing)
            metrics |= cost_metrics(
                _with_prices(testing, base, priced.costs, labels),
                (chosen, unseen, cut),
                single,
                audit_share=audit_share,
                confidence=goal.confidence,
                blocks=blocks[:test_count],
            )
        artefact = msgspec.structs.replace(artefact, metrics=metrics)
    return CalibrationResult(
        artefact=artefact,
        goal=goal,
        fitted=len(samples) - test_count,
        held_out=test_count,
        labelled=has_truth,
        metric=model_quality.metric,
        tried=len(fitted),
        block_length=length,
        notes=[
            *sample_notes(test_count, goal.target_upload, np.concatenate([best.deciding, unseen]), labelled=has_truth),
            *block_notes(length, needed_length, has_risk=goal.max_risk is not None, has_costs=goal.costs is not None),
            *cost_notes(goal.costs, best.deciding >= cut),
            *notes,
        ],
    )


def describe_shortage(number: int, held_out: float = HELD_OUT) -> str:
    """Return why so many samples are too few for a calibration, and how many are enough; empty: they are enough."""
    if number - round(number * held_out) >= MIN_SAMPLES:
        return ""
    total = math.ceil(MIN_SAMPLES / (1 - held_out))
    return f"{number} samples are too few: with {100 * held_out:.0f} % held out give at least {total}"


def subset(data: LabelledSamples, indices: Indices) -> LabelledSamples:
    """Return the data of the samples with these indices, in their order."""
    return replace(
        data,
        images=[data.images[i] for i in indices],
        names=[data.names[i] for i in indices],
        sizes=[data.sizes[i] for i in indices],
        truths=[data.truths[i] for i in indices] if data.truths is not None else None,
        boxes=[data.boxes[i] for i in indices] if data.boxes is not None else None,
    )


def gains_and_losses(samples: Samples) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return for each sample whether the next tier corrects the small model's answer, and whether it spoils it."""
    gain = quality(samples.data, samples.edge, samples.cloud).gain()
    return gain > 0, gain < 0


def _fit_all(
    options: Sequence[Candidate], learning: Samples, deciding: Samples, base: CalibrationFile, mode: str, *, goal: Goal
) -> tuple[list[FittedRule], list[str]]:
    """Fit all candidates; of several, those that cannot judge these answers are left out, Learned with a note.

    ``learning``: the samples to fit rules on and select by; ``deciding``: those that decide the cut, the same ones
    unless the risk is limited. ``base``: the file without a rule, with temperatures and the mixture. ``mode``: when the
    rules judge. Returns the fitted candidates, and the notes.

    Raises InvalidFieldError if the only candidate, or each of several, cannot judge them.
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
    """Return a candidate with its hardness of both parts; Learned is fitted on ``learning``.

    The parameters are those of ``_fit_all``. Raises InvalidFieldError.
    """
    if not option.is_learned:
        hardness = _hardness(option, mode, deciding)
        selecting = hardness if deciding is learning else _hardness(option, mode, learning)
        return FittedRule(option, None, selecting, hardness)
    learned, selecting = _fit_learned_rule(learning, base, goal)
    hardness = selecting if deciding is learning else _hardness_by(learned, option, mode, deciding)
    return FittedRule(option, learned, selecting, hardness)


def _with_prices(samples: Samples, base: CalibrationFile, costs: Costs, labels: Sequence[str]) -> PricedSamples:
    """Return samples with the costs of their answers; ``base`` has the mixture, ``labels`` are the edge's classes.

    Raises InvalidFieldError (``--costs``).
    """
    check_positive("--costs", costs, samples.data, labels)
    return PricedSamples(samples.data, samples.edge, samples.joint_answers(base), costs)


def _with_two_thresholds(options: Sequence[Candidate], thresholds: Candidate | None, rule: str) -> list[Candidate]:
    """Return the candidates if costs are the goal. ``thresholds``: the TwoThresholds of least cost; None: none fits.

    If ``rule`` names TwoThresholds, ``thresholds`` is the only candidate; if ``rule`` is empty, it is the first. Any
    other TwoThresholds among ``options`` is removed. Raises InvalidFieldError (``--rule``) if they are named and do not
    fit.
    """
    is_named = canonical(rule) == TWO_THRESHOLDS
    if is_named and thresholds is None:
        raise InvalidFieldError("--rule", rule, "it is for two-class models, and needs positive=NAME in --costs")
    if is_named and thresholds:
        return [thresholds]
    fixed = [option for option in options if option.rule.lower() != TWO_THRESHOLDS.lower()]
    return [*([thresholds] if thresholds and not rule else []), *fixed]


def _with_hardness(
    rule: FittedRule, priced: PricedSamples, mode: str, samples: Samples
) -> tuple[Candidate, Vector, float]:
    """Return a rule, the hardness that it gives to ``samples``, and its cut with the least costs.

    ``priced``: the costs of the samples that decided the cut. Raises InvalidFieldError (``--rule``).
    """
    hardness = _hardness_by(rule.learned, rule.candidate, mode, samples)
    return rule.candidate, hardness, priced.cut(rule.candidate, rule.deciding)


def _select_rule(
    fitted: Sequence[FittedRule],
    goal: Goal,
    base: CalibrationFile,
    learning: Samples,
    audit_share: float,
    *,
    priced: PricedSamples | None,
) -> FittedRule:
    """Return the candidate with the best joint answers at the target, or with the fewest uploads at the risk.

    If costs are the goal, ``priced`` has those of the samples: then the one with the least costs. ``learning``: the
    samples to select by. ``base`` has the mixture; ``audit_share``: share of easy samples that go up as well.
    """
    if len(fitted) == 1:
        return fitted[0]
    joint_quality = quality(learning.data, learning.edge, learning.joint_answers(base))
    gains, _ = gains_and_losses(learning)

    def value(rule: FittedRule) -> float:
        if priced:
            cut = priced.cut(rule.candidate, rule.selecting)
            return -float(priced.cost(rule.candidate, rule.selecting, cut).mean())
        if goal.max_risk is None:
            cut = cut_for_budget(rule.selecting, goal.target_upload or 0.0)
            rounds = _replay(goal, rule.selecting, cut, audit_share).up
            return float(np.mean([joint_quality.point(uploaded)["accuracy"] for uploaded in rounds]))
        costly = np.sort(rule.selecting[gains])
        allowed_losses = int(goal.max_risk * len(learning))
        return -float(np.mean(rule.selecting >= costly[allowed_losses])) if allowed_losses < len(costly) else 0.0

    return max(fitted, key=value)


def _with_cut(rule: FittedRule, cut: float) -> tuple[Candidate, LearnedRule | RewardRule | None, float]:
    """Return the rule with this cut or the nearest possible one: the candidate, the learned rule, and the cut it has.

    A learned rule has the cut itself; any other candidate has it in a parameter, and None as the learned rule.
    """
    name = canonical(rule.candidate.rule)
    if rule.learned:
        learned = msgspec.structs.replace(rule.learned, cut=min(max(cut, -1.0), 1.0))
        return Candidate(name), learned, learned.cut
    miner = create(name, rule.candidate.parameters)
    parameters = {**rule.candidate.parameters, **parameters_at(miner, cut)}
    return Candidate(name, parameters), None, create(name, parameters).cut  # type: ignore[attr-defined]  # it has a cut


def _replay(goal: Goal, hardness: Vector, cut: float, audit_share: float) -> Replay:
    """Return which samples a worker's budget uploads at this hardness; without a budget, those from the cut on."""
    verdicts = [
        Verdict(hard=number >= cut, hardness=number, cut=cut) if math.isfinite(number) else Verdict(hard=True)
        for number in hardness.tolist()
    ]
    return replay(verdicts, target=goal.target_upload, cut=cut, audit_share=audit_share)


def _fit_learned_rule(samples: Samples, base: CalibrationFile, goal: Goal) -> tuple[LearnedRule | RewardRule, Vector]:
    """Fit learned deferral on the answers after escalation: those of the mixture, if there is one.

    For a limit on the risk, the reward of boxes and texts is what the risk counts: whether the big model corrects.
    Returns the rule, and the out-of-fold hardness of the samples. Raises InvalidFieldError.
    """
    up = samples.joint_answers(base)
    gains, losses = gains_and_losses(replace(samples, cloud=up))
    try:
        if samples.data.boxes is None and not samples.data.is_text:
            learnt = fit_learned(samples.edge, gains, losses)
            return learnt.rule, learnt.hardness
        joint_quality = quality(samples.data, samples.edge, up)
        rewards = joint_quality.rewards() if goal.max_risk is None else gains.astype(np.float64)
        fitted = fit_reward("texts" if samples.data.is_text else "boxes", samples.edge, rewards, gains)
    except MiningError as error:
        fix = f"{error}: choose another one, such as Threshold or UncertainBoxes"
        raise InvalidFieldError("--rule", LEARNED, fix) from error
    return fitted.rule, fitted.hardness


def _hardness(option: Candidate, mode: str, samples: Samples) -> Vector:
    """Return the hardness of samples by a rule with a threshold. Raises InvalidFieldError (``--rule``)."""
    try:
        miner = create(option.rule, option.parameters, mode=mode)
    except InvalidFieldError as error:
        raise InvalidFieldError("--rule", option.rule, f"{error.field.rpartition('.')[2]}: {error.fix}") from error
    verdicts = judge_all(miner, mode, samples.data, samples.edge)
    hardness = hardness_of(verdicts)
    if hardness is None:
        reason = verdicts[0].error or "it says yes or no"
        raise InvalidFieldError("--rule", option.rule, f"{reason}: choose one with a threshold, such as Margin")
    return np.asarray(hardness)


def _hardness_by(learned: LearnedRule | RewardRule | None, option: Candidate, mode: str, samples: Samples) -> Vector:
    """Return the hardness of samples by a learned rule, else by the candidate.

    Raises InvalidFieldError (``--rule``).
    """
    if isinstance(learned, RewardRule):
        return rewards_by(learned, samples.edge)
    return hardness_by(learned, samples.edge) if learned else _hardness(option, mode, samples)


def _cut(goal: Goal, hardness: Vector, samples: Samples, rule: str, *, total: int) -> float:
    """Return the cut for the goal from the hardness of ``samples``.

    ``rule`` (its name) and ``total`` (the number of all samples) are for messages.

    Raises InvalidFieldError (``--max-risk``) if they cannot prove the limit.
    """
    if goal.max_risk is None:
        return cut_for_budget(hardness, goal.target_upload or 0.0)
    gains, _ = gains_and_losses(samples)
    cut = cut_for_risk(hardness, gains, goal.max_risk, goal.confidence)
    if cut is None:
        least = least_samples(goal.max_risk, goal.confidence) if goal.max_risk > 0 else 0
        fix = (
            f"{total} samples are too few to show that with {goal.confidence:.4g}: give at least"
            f" {math.ceil(least * total / len(samples))}, of which {rule}'s threshold gets {least}, or allow more"
            if least
            else "no data can show that: allow more than 0"
        )
        raise InvalidFieldError("--max-risk", goal.max_risk, fix)
    if math.isinf(cut):  # no uploads are needed
        highest = hardness[np.isfinite(hardness)].max(initial=0.0)
        return math.nextafter(float(highest), math.inf)
    return cut


def _check_risk(goal: Goal, hardness: Vector, cut: float, samples: Samples, rule: str) -> None:
    """Refuse a rule whose parameters cannot reach the required cut: samples would be kept against the limit.

    Raises InvalidFieldError (``--max-risk``).
    """
    if goal.max_risk is None:
        return
    gains, _ = gains_and_losses(samples)
    allowed_losses = losses_allowed(len(samples), goal.max_risk, goal.confidence)
    if np.count_nonzero(gains & (hardness < cut)) > allowed_losses:
        fix = f"{rule} cannot hold it: what it finds easiest stays at any threshold; allow more, or try another --rule"
        raise InvalidFieldError("--max-risk", goal.max_risk, f"{fix} (of boxes, also another `empty`)")


def _reference(hardness: Vector, answers: Sequence[Prediction]) -> Reference:
    """Return quantiles of hardness and shares of classes, with which a running service is compared to find drift."""
    counts = Counter(answer.label for answer in answers if answer.label is not None)
    shares = {name: count / counts.total() for name, count in sorted(counts.items())}
    return Reference(
        hardness=quantiles(hardness, QUANTILE_STEPS),
        classes=shares if len(shares) <= MAX_CLASSES else {},
        samples=len(answers),
    )
