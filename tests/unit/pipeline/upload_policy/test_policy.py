"""One decision for each sample, of mining, budget, uplink and audits together."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.deferral import Costs
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining import Miner, Verdict
from halimede.mining.calibration_file import CalibrationFile, MixtureRule, Reference, write_artefact
from halimede.mining.cloud_only import CloudOnly
from halimede.mining.edge_only import EdgeOnly
from halimede.mining.margin import Margin
from halimede.mining.sharpness import Sharpness
from halimede.offload.errors import UNTAKEN, OffloadReason
from halimede.pipeline.upload_policy.audit import Audits
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.drift import Drift
from halimede.pipeline.upload_policy.latency_estimator import LatencyEstimator
from halimede.pipeline.upload_policy.policy import UploadDecision, UploadPolicy, create
from tests.unit.worker.world import World

SAID = Prediction(label="7")


def decide(policy: UploadPolicy, verdict: Verdict, *, size: int = 1000, left_s: float = 2.0) -> UploadDecision:
    return policy.decide(verdict, SAID, size, left_s, 0.0)


def debt(policy: UploadPolicy) -> float:
    assert policy.budget
    return policy.budget.debt


def created(folder: Path, miner: Miner | None = None, **settings: Any) -> UploadPolicy:
    """Return the policy of a worker with these settings; the Margin rule is the usual one."""
    return create(World(folder).settings("edge", "e0", **settings), miner or Margin(), random.random)


def calibration(folder: Path, **changes: Any) -> Path:
    path = folder / "calibration.json"
    path.write_bytes(write_artefact(CalibrationFile(service="helmet", **changes)))
    return path


def graded(hardness: float) -> Verdict:
    return Verdict(hard=hardness >= 0.5, hardness=hardness, cut=0.5)


def uplink(answers: int) -> LatencyEstimator:
    """Return an uplink after so many answers, each in a second."""
    estimator = LatencyEstimator()
    for _ in range(answers):
        estimator.end(estimator.begin(1000), 1.0, 0.0, answered=True)
    return estimator


def slow_uplink() -> LatencyEstimator:
    estimator = uplink(10)
    estimator.must_withhold(1000, 0.1, 0.0)
    estimator.end(estimator.begin(1000), 1.0, 0.0, answered=False)  # a probe that failed
    return estimator


def test_without_anything_else_mining_decides() -> None:
    policy = UploadPolicy()
    easy, hard = decide(policy, graded(0.4)), decide(policy, graded(0.6))
    assert (easy.ask, easy.hard, easy.hardness, easy.cut) == (False, False, 0.4, 0.5)
    assert (hard.up, hard.hard, hard.hardness, hard.cut) == (True, True, 0.6, 0.5)


def test_the_budget_moves_the_cut_and_what_is_below_it_is_easy() -> None:
    policy, chance = UploadPolicy(budget=Budget(0.1, 0.5)), random.Random(1)
    decisions = [decide(policy, graded(chance.random())) for _ in range(4000)]
    assert sum(decision.hard for decision in decisions) / 4000 == pytest.approx(0.1, abs=0.01)
    last = decisions[-1]
    assert last.cut is not None
    assert 0.8 < last.cut < 0.97
    assert policy.withheld["budget"] < 50  # of those that came before the cut had moved


@pytest.mark.parametrize(
    ("budget", "verdict", "is_held_back", "samples", "least", "most"),
    [(Budget(0.2), Verdict(hard=True), False, 100, 78, 82), (Budget(0.2, 0.5), graded(0.9), True, 400, 310, 330)],
    ids=["yes or no", "equally hard"],
)
def test_hard_samples_beyond_the_budget_stay_hard_and_say_why_they_were_not_sent(
    budget: Budget, verdict: Verdict, *, is_held_back: bool, samples: int, least: int, most: int
) -> None:
    policy = UploadPolicy(budget=copy.deepcopy(budget))
    decisions = [decide(policy, verdict) for _ in range(samples)]
    kept = [decision for decision in decisions if not decision.ask]
    assert least <= len(kept) <= most
    assert {(decision.hard, decision.reason, decision.is_held_back) for decision in kept} == {
        (True, OffloadReason.BUDGET, is_held_back)
    }
    assert policy.withheld == {"budget": len(kept)}
    easy = decide(policy, graded(0.1))
    assert (easy.hard, easy.reason, easy.is_held_back) == (False, None, False)


def test_what_would_be_too_late_is_not_sent_and_stays_charged() -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5), uplink=slow_uplink())
    decision = decide(policy, graded(0.9), left_s=0.1)
    assert (decision.ask, decision.hard, decision.reason) == (False, True, OffloadReason.TOO_SLOW)
    assert debt(policy) == pytest.approx(0.8)


def test_what_nobody_here_could_answer_goes_up_whatever_it_costs() -> None:
    policy = UploadPolicy(budget=Budget(0.0), uplink=slow_uplink())
    assert policy.decide_failed(1000).up


def test_an_audit_is_asked_beside_and_counts_against_the_budget() -> None:
    audits = Audits(0.5, lambda: 0.0)
    policy = UploadPolicy(budget=Budget(0.2, 0.5), audits=audits)
    decision = decide(policy, graded(0.1))
    assert (decision.ask, decision.up, decision.hard, decision.audit) == (True, False, False, True)
    assert debt(policy) == pytest.approx(0.8)
    policy.ended(decision, 0.1, 1.0, sent=True, answered=True)
    assert audits.open == 0


@pytest.mark.parametrize("reason", ["", *OffloadReason])
def test_what_cannot_go_up_is_paid_back_and_what_the_next_tier_does_not_take_is_not(reason: str) -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5))
    policy.ended(decide(policy, graded(0.9)), 2.0, 2.0, sent=False, answered=False, reason=reason)
    assert debt(policy) == pytest.approx(0.8 if reason in UNTAKEN else -0.2)


def test_an_undone_decision_is_paid_back_and_teaches_nothing_about_the_uplink() -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5), uplink=slow_uplink())
    for _ in range(50):
        policy.forget(decide(policy, graded(0.9)))
    assert debt(policy) == pytest.approx(-10)
    assert policy.uplink.must_withhold(1000, 0.1, 0.5)


def test_an_undone_probe_counts_as_one_that_failed() -> None:
    policy = UploadPolicy(uplink=uplink(5))
    policy.forget(decide(policy, graded(0.9), left_s=0.1))
    assert [policy.uplink.must_withhold(1000, 0.1, now) for now in (0.0, 0.9, 1.0)] == [True, True, False]


@given(
    st.lists(st.sampled_from(sorted(UNTAKEN)), min_size=1),
    st.sampled_from([Budget(0.2), Budget(0.2, 0.8)]),
    st.integers(0, 2**32),
)
def test_a_next_tier_that_takes_nothing_does_not_raise_the_share_of_hard_samples(
    reasons: list[OffloadReason], budget: Budget, seed: int
) -> None:
    chance = random.Random(seed)
    policy, marked = UploadPolicy(budget=copy.deepcopy(budget)), 0
    for i in range(500):
        decision = decide(policy, Verdict(hard=True, hardness=chance.random(), cut=0.8))
        marked += decision.ask
        policy.ended(decision, 0.1, float(i), sent=False, answered=False, reason=reasons[i % len(reasons)])
    assert marked <= 0.2 * 500 + 50


def test_numbers_that_no_message_can_carry_are_left_out() -> None:
    policy = UploadPolicy(budget=Budget(0.0, 0.5))
    assert decide(policy, graded(0.9)).cut is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_was_kept_or_audited_before_the_model_failed_goes_up_and_is_counted_once(share: float) -> None:
    audits = Audits(share, lambda: 0.0)
    policy = UploadPolicy(budget=Budget(0.2, 0.5), audits=audits)
    decision = policy.decide_failed(1000, policy.decide(graded(0.1), None, 1000, 2.0, 0.0))
    assert (decision.up, decision.hard) == (True, True)
    assert debt(policy) == pytest.approx(0.8)  # one sample, and it goes up
    policy.ended(decision, 0.1, 1.0, sent=True, answered=True)
    assert audits.open == 0
    assert policy.uplink.begin(1000).ahead == 1000  # nothing else counts as under way


def test_of_a_site_that_sends_nothing_a_failure_stays_there_too(tmp_path: Path) -> None:
    policy = created(tmp_path, EdgeOnly(), hem_name="EdgeOnly", hem_parameters={})
    policy.audits = Audits(1.0, lambda: 0.0)
    for before in (None, policy.decide(graded(0.1), None, 1000, 2.0, 0.0)):
        decision = policy.decide_failed(1000, before)
        assert (decision.ask, decision.hard) == (False, True)
    assert policy.audits.open == 0


@pytest.mark.parametrize(("rule", "watched"), [("Margin", {"hardness", "agreement"}), ("Entropy", set())])
def test_hardness_by_another_rule_is_not_taken_for_drift(tmp_path: Path, rule: str, watched: set[str]) -> None:
    reference = Reference(hardness=[i / 20 for i in range(21)], samples=500)
    path = calibration(tmp_path, rule=rule, reference=reference, metrics={"agreement.low": 0.9})
    drift = created(tmp_path, hem_name="margin", calibration=path).drift
    assert drift
    assert set(drift.metrics()) == watched


def test_settings_say_what_there_is(tmp_path: Path) -> None:
    path = calibration(tmp_path, mixture=MixtureRule(edge=1, cloud=1))
    plain = created(tmp_path)
    assert (plain.budget, plain.audits, plain.drift, plain.mixture) == (None, None, None, None)
    fusing = created(tmp_path, calibration=path, fusion="cloud")
    assert (fusing.drift is None, fusing.mixture) == (False, None)
    new = created(tmp_path, Margin(0.3), target_upload_ratio=0.2).budget
    assert new
    assert (new.debt, new.cut) == (0, Margin(0.3).cut)
    settings = World(tmp_path).settings(
        "edge", "e0", target_upload_ratio=0.2, audit_share=0.01, calibration=path, fusion="mixture"
    )
    full = create(settings, Margin(0.3), random.random, uploaded=300, samples=1000)
    assert full.budget
    assert full.budget.debt > 0
    assert full.budget.cut == float("inf")  # its predecessor has spent it all
    assert full.audits
    assert full.drift
    assert full.mixture


def test_answers_that_cannot_be_compared_do_not_agree_and_those_of_a_canary_show_no_drift() -> None:
    drift, odd = Drift(CalibrationFile(service="s", metrics={"agreement.low": 0.9})), Prediction(value=np.arange(2))
    policy = UploadPolicy(drift=drift)
    assert policy.compare(SAID, SAID)
    assert not policy.compare(odd, odd)
    assert not policy.compare(SAID, Prediction(label="8"), on_trial=True)
    assert list(drift._agreed) == [True, False]


@pytest.mark.parametrize(
    ("on_trial", "prediction", "hardness", "count"),
    [
        (False, SAID, 0.4, 1),
        (False, SAID, None, 1),
        (False, None, 0.4, 1),
        (False, None, None, 0),
        (True, SAID, 0.4, 0),
    ],
)
def test_drift_is_judged_by_samples_with_a_prediction_or_a_hardness_of_the_calibrated_model(
    on_trial: bool, prediction: Prediction | None, hardness: float | None, count: int
) -> None:
    drift = Drift(CalibrationFile(service="s"))
    verdict = Verdict(hard=False, hardness=hardness)
    UploadPolicy(drift=drift).decide(verdict, prediction, 1000, 2.0, 0.0, on_trial=on_trial)
    assert drift._count == count


def test_audits_for_the_desired_state_get_half_of_the_budget_at_most(tmp_path: Path) -> None:
    for ratio, own, share in ((0.2, 0.0, 0.1), (0.2, 0.15, 0.15), (None, 0.0, 0.7)):
        settings = World(tmp_path).settings("edge", "e0", target_upload_ratio=ratio, audit_share=own)
        audits = create(settings, Margin(), random.random, audits=lambda: 0.7).audits
        assert audits
        assert audits.present() == pytest.approx(share)


def test_a_broken_calibration_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("{")
    with pytest.raises(InvalidFieldError, match="CALIBRATION_URL"):
        created(tmp_path, calibration=path)


@pytest.mark.parametrize(
    ("mode", "miner", "is_compared"),
    [
        ("inference-then-mining", Margin(), True),
        ("inference-then-mining", CloudOnly(), False),
        ("mining-then-inference", Margin(), False),
        ("mining-then-inference", Sharpness(), True),
    ],
)
def test_a_budget_moves_the_cut_of_a_rule_with_numbers_for_its_mode(
    tmp_path: Path, mode: str, miner: Miner, is_compared: bool
) -> None:
    budget = created(tmp_path, miner, target_upload_ratio=0.2, hem_mode=mode).budget
    assert budget
    assert (budget.cut is not None) is is_compared


def test_adaptive_costs_adapt_the_two_thresholds_alone(tmp_path: Path) -> None:
    assert created(tmp_path, costs=Costs(miss=1, upload=0.1, positive="yes", adaptive=True)).thresholds is None
