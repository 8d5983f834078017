"""Applies mining rules offline: the configured rule decides escalations, any rule gives the hardness of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from halimede.api.deferral import Deferral
from halimede.api.mining import AFTER, BEFORE
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.service import EvaluatedTier
from halimede.inference import Array
from halimede.messages import Prediction
from halimede.mining import Miner, Verdict, create, judge, names
from halimede.mining.pre_inference import check_mode, judge_sample, modes_of
from halimede.mining.random_ import Random
from halimede.mining.two_thresholds import TwoThresholds
from halimede.pipeline.upload_policy.replay import replay

#: the option, for errors
FIELD = "--rules"
#: why a rule without numbers has no curve
NO_ORDER = "it says yes or no, so that there is no curve of it"


def hardness_by_rule(
    tier: EvaluatedTier, data: LabelledSamples, predictions: Sequence[Prediction], rules: Sequence[str] = ()
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return each rule's hardness of all samples by the rule's name, and why other rules are left out, by name.

    Without ``rules`` all registered ones and the configured one are used. Each gets the tier's calibration, and the
    configured rule also its parameters. A sample on which a rule fails is infinitely hard. Raises InvalidFieldError
    (``--rules``) for one of ``rules`` that is unknown or cannot be made.
    """
    by_rule: dict[str, Array] = {}
    left_out: dict[str, str] = {}
    configured_name = tier.deferral.hard_example_mining.name if tier.deferral else ""
    own_name = configured_name.lower()
    names_by_lower = {name.lower(): name for name in names()}
    if ":" in configured_name:  # a class of the user's, which is not registered
        names_by_lower[own_name] = configured_name
    for name in dict.fromkeys(names_by_lower.get(rule.lower(), rule) for rule in rules) or names_by_lower.values():
        parameters = parameters_of(tier.deferral) if tier.deferral and name.lower() == own_name else {}
        try:
            miner = create(name, parameters, tier.calibration)
        except InvalidFieldError as error:
            if rules:
                raise InvalidFieldError(FIELD, name, f"{error.field}: {error.fix}") from error
            left_out[name] = f"{error.field.rpartition('.')[2]}: {error.fix}"
            continue
        if isinstance(miner, Random):
            by_rule[name] = np.zeros(len(data))  # all equal, because it ignores them
            continue
        verdicts = judge_all(miner, modes_of(miner)[0], data, predictions)
        hardness = hardness_of(verdicts)
        if hardness is not None:
            by_rule[name] = hardness
        else:
            left_out[name] = verdicts[0].error or NO_ORDER
    return by_rule, left_out


def judge_all(miner: Miner, mode: str, data: LabelledSamples, predictions: Sequence[Prediction]) -> list[Verdict]:
    """Return a rule's verdict on each sample: on the decoded sample in mode BEFORE, else on its prediction."""
    if mode == BEFORE:
        return [judge_sample(miner, data.image(number)) for number in range(len(data))]
    return [judge(miner, prediction) for prediction in predictions]


def hardness_of(verdicts: Sequence[Verdict]) -> Array | None:
    """Return the hardness of each verdict's sample, infinite where the rule failed; None if no verdict has one."""
    if all(verdict.hardness is None for verdict in verdicts):
        return None
    return np.array([np.inf if verdict.hardness is None else verdict.hardness for verdict in verdicts])


def decide_escalations(
    tier: EvaluatedTier, data: LabelledSamples, predictions: Sequence[Prediction], reached: Array
) -> Array:
    """Return for each sample whether the tier escalates it, as configured; all False for the last tier.

    ``reached`` has a boolean for each sample: whether it reaches the tier. A budget is spent as in a worker, on these
    samples in random order (``replay``); the others are compared with the cut at the end of that replay. Raises
    InvalidFieldError for a rule that cannot be made, or that does not support the configured mode.
    """
    miner = miner_of(tier)
    if tier.deferral is None or miner is None:
        return np.zeros(len(predictions), bool)
    mining, target = tier.deferral.hard_example_mining, tier.deferral.target_upload_ratio
    check_mode(miner, mining.mode)
    verdicts = judge_all(miner, mining.mode, data, predictions)
    if target is None:
        return np.array([verdict.hard for verdict in verdicts])
    indices = np.flatnonzero(reached)
    cut = next((verdict.cut for verdict in verdicts if verdict.cut is not None), None)
    decisions = replay([verdicts[i] for i in indices], target=target, cut=cut, audit_share=tier.deferral.audit_share)
    last_cut = decisions.cut
    escalated = np.array([verdict.hard if last_cut is None else is_hard_at(verdict, last_cut) for verdict in verdicts])
    escalated[indices] = decisions.typical()
    return escalated


def miner_of(tier: EvaluatedTier) -> Miner | None:
    """Return a tier's rule; None for the last tier. Raises InvalidFieldError for a rule that cannot be made."""
    if tier.deferral is None:
        return None
    return create(tier.deferral.hard_example_mining.name, parameters_of(tier.deferral), tier.calibration)


def final_answers(miner: Miner | None, predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Return the edge's answers to samples that are not uploaded: TwoThresholds may change the class of a prediction.

    With any other rule (None: no rule) they are the predictions themselves.
    """
    if not isinstance(miner, TwoThresholds):
        return predictions
    return [miner.final_answer(prediction) for prediction in predictions]


def is_hard_at(verdict: Verdict, cut: float) -> bool:
    """Whether a sample's hardness is at least ``cut``; without hardness, whether its verdict is hard."""
    return verdict.hard if verdict.hardness is None else verdict.hardness >= cut


def parameters_of(deferral: Deferral) -> Mapping[str, str]:
    """Return the parameters of a deferral's rule, by key."""
    return {parameter.key: parameter.value for parameter in deferral.hard_example_mining.parameters}


def needs_answers(tier: EvaluatedTier) -> bool:
    """Whether a tier's model answers each sample before mining, if there is mining."""
    return tier.deferral is None or tier.deferral.hard_example_mining.mode == AFTER


def calibration_of(tier: EvaluatedTier) -> Path | None:
    """Return the calibration that fuses a tier's answers with the next tier's; None if they are not fused."""
    return tier.calibration if tier.deferral and tier.deferral.fusion == "mixture" and needs_answers(tier) else None
