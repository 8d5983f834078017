"""Offline mining: the decisions of a service's own rule, and the upload orders of other rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from halimede.api.deferral import Deferral
from halimede.api.mining import AFTER, BEFORE
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.service import EvaluatedTier
from halimede.inference import Array
from halimede.messages import Prediction
from halimede.mining import Miner, Verdict, create, judge, names
from halimede.mining.pre_inference import check_mode, judge_sample, modes_of
from halimede.mining.random_ import Random
from halimede.mining.two_thresholds import TwoThresholds
from halimede.pipeline.upload_policy.replay import replay

FIELD = "--rules"
NO_ORDER = "it says yes or no, so that there is no curve of it"


def orders(
    tier: EvaluatedTier, data: LabelledPicture, predictions: Sequence[Prediction], wanted: Sequence[str] = ()
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the hardness of all samples by each rule, and why other rules are left out.

    Rules are those ``wanted``, or all registered ones; they get the tier's own parameters and calibration. A sample for
    which a rule fails is infinitely hard, as for a worker. Raises InvalidFieldError (``--rules``) for a wanted rule
    that is unknown or cannot be made.
    """
    found: dict[str, Array] = {}
    left_out: dict[str, str] = {}
    configured = tier.deferral.hard_example_mining.name if tier.deferral else ""
    own = configured.lower()
    known = {name.lower(): name for name in names()}
    if ":" in configured:  # a class of the user's, which is not registered
        known[own] = configured
    for name in dict.fromkeys(known.get(each.lower(), each) for each in wanted) or known.values():
        parameters = parameters_of(tier.deferral) if tier.deferral and name.lower() == own else {}
        try:
            miner = create(name, parameters, tier.calibration)
        except InvalidFieldError as error:
            if wanted:
                raise InvalidFieldError(FIELD, name, f"{error.field}: {error.fix}") from error
            left_out[name] = f"{error.field.rpartition('.')[2]}: {error.fix}"
            continue
        if isinstance(miner, Random):
            found[name] = np.zeros(len(data))  # all equal, because it ignores them
            continue
        verdicts = judged(miner, modes_of(miner)[0], data, predictions)
        hardness = hardness_of(verdicts)
        if hardness is not None:
            found[name] = hardness
        else:
            left_out[name] = verdicts[0].error or NO_ORDER
    return found, left_out


def judged(miner: Miner, mode: str, data: LabelledPicture, predictions: Sequence[Prediction]) -> list[Verdict]:
    """Apply a rule to all samples, or to a model's answers, depending on its mode."""
    if mode == BEFORE:
        return [judge_sample(miner, data.image(number)) for number in range(len(data))]
    return [judge(miner, prediction) for prediction in predictions]


def hardness_of(verdicts: Sequence[Verdict]) -> Array | None:
    """Return the hardness of samples, infinite where the rule failed; None for a rule without numbers."""
    if all(verdict.hardness is None for verdict in verdicts):
        return None
    return np.array([np.inf if verdict.hardness is None else verdict.hardness for verdict in verdicts])


def decide(tier: EvaluatedTier, data: LabelledPicture, predictions: Sequence[Prediction], reached: Array) -> Array:
    """Return which samples a tier with a deferral escalates, as configured: a boolean each.

    A budget is that of a worker, which sees the samples that ``reached`` the tier in a random order (``replay``); a
    sample that did not reach it is judged by the budget's last cut. Raises InvalidFieldError for a rule that cannot be
    made.
    """
    miner = miner_of(tier)
    if tier.deferral is None or miner is None:
        return np.zeros(len(predictions), bool)
    mining, target = tier.deferral.hard_example_mining, tier.deferral.target_upload_ratio
    check_mode(miner, mining.mode)
    verdicts = judged(miner, mining.mode, data, predictions)
    if target is None:
        return np.array([verdict.hard for verdict in verdicts])
    came = np.flatnonzero(reached)
    cut = next((verdict.cut for verdict in verdicts if verdict.cut is not None), None)
    played = replay([verdicts[i] for i in came], target=target, cut=cut, audit_share=tier.deferral.audit_share)
    goes = np.array([verdict.hard if played.cut is None else is_above(verdict, played.cut) for verdict in verdicts])
    goes[came] = played.typical()
    return goes


def miner_of(tier: EvaluatedTier) -> Miner | None:
    """Return a tier's rule; None for the last tier. Raises InvalidFieldError for a rule that cannot be made."""
    if tier.deferral is None:
        return None
    return create(tier.deferral.hard_example_mining.name, parameters_of(tier.deferral), tier.calibration)


def final_answers(miner: Miner | None, predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Return the edge's answers to samples that are not uploaded: a rule with two thresholds decides their class."""
    if not isinstance(miner, TwoThresholds):
        return predictions
    return [miner.final_answer(prediction) for prediction in predictions]


def is_above(verdict: Verdict, cut: float) -> bool:
    """Whether a sample is at a cut or above; a sample that the rule failed on is hard by itself."""
    return verdict.hard if verdict.hardness is None else verdict.hardness >= cut


def parameters_of(deferral: Deferral) -> Mapping[str, str]:
    """Return the parameters of its rule."""
    return {each.key: each.value for each in deferral.hard_example_mining.parameters}


def needs_answers(tier: EvaluatedTier) -> bool:
    """Whether a tier's model answers before mining."""
    return tier.deferral is None or tier.deferral.hard_example_mining.mode == AFTER


def calibration_of(tier: EvaluatedTier) -> Path | None:
    """Return the calibration that fuses its answers with the next tier's; None: they are not fused."""
    return tier.calibration if tier.deferral and tier.deferral.fusion == "mixture" and needs_answers(tier) else None
