"""One decision for each sample, of mining, budget, uplink and audits together."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining import Verdict
from halimede.mining.calibration_file import CalibrationFile, MixtureRule, Reference, write_artefact
from halimede.mining.cloud_only import CloudOnly
from halimede.mining.edge_only import EdgeOnly
from halimede.mining.margin import Margin
from halimede.offload.errors import UNTAKEN, OffloadReason
from halimede.pipeline.upload_policy.audit import Audits
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.latency_estimator import LatencyEstimator
from halimede.pipeline.upload_policy.policy import UploadDecision, UploadPolicy, create
from tests.unit.worker.world import World

SAID = Prediction(label="7")


def decide(policy: UploadPolicy, verdict: Verdict, *, size: int = 1000, left_s: float = 2.0) -> UploadDecision:
    return policy.decide(verdict, SAID, size, left_s, 0.0)


def graded(hardness: float) -> Verdict:
    return Verdict(hard=hardness >= 0.5, hardness=hardness, cut=0.5)


def slow_uplink() -> LatencyEstimator:
    uplink = LatencyEstimator()
    for _ in range(10):
        uplink.end(uplink.begin(1000), 1.0, 0.0, answered=True)
    uplink.hopeless(1000, 0.1, 0.0)
    uplink.end(uplink.begin(1000), 1.0, 0.0, answered=False)  # a probe that failed
    return uplink


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


def test_a_hard_sample_beyond_the_budget_stays_hard_and_says_why_it_was_not_sent() -> None:
    policy = UploadPolicy(budget=Budget(0.2))
    decisions = [decide(policy, Verdict(hard=True)) for _ in range(100)]
    kept = [decision for decision in decisions if not decision.ask]
    assert 78 <= len(kept) <= 82
    assert {(decision.hard, decision.reason) for decision in kept} == {(True, OffloadReason.BUDGET)}
    assert policy.withheld == {"budget": len(kept)}


def test_of_equally_hard_samples_those_that_a_full_budget_holds_back_say_so() -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5))
    decisions = [decide(policy, graded(0.9)) for _ in range(400)]
    kept = [decision for decision in decisions if not decision.ask]
    assert 310 <= len(kept) <= 330
    assert {(decision.hard, decision.reason, decision.is_held_back) for decision in kept} == {
        (True, OffloadReason.BUDGET, True)
    }
    easy = decide(policy, graded(0.1))
    assert (easy.hard, easy.reason, easy.is_held_back) == (False, None, False)


def test_what_would_be_too_late_is_not_sent_and_stays_charged() -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5), uplink=slow_uplink())
    decision = decide(policy, graded(0.9), left_s=0.1)
    assert (decision.ask, decision.hard, decision.reason) == (False, True, OffloadReason.TOO_SLOW)
    assert policy.budget
    assert policy.budget.debt == pytest.approx(0.8)


def test_what_nobody_here_could_answer_goes_up_whatever_it_costs() -> None:
    policy = UploadPolicy(budget=Budget(0.0), uplink=slow_uplink())
    assert policy.forced(1000).up


def test_an_audit_is_asked_beside_and_counts_against_the_budget() -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5), audits=Audits(0.5, lambda: 0.0))
    decision = decide(policy, graded(0.1))
    assert (decision.ask, decision.up, decision.hard, decision.audit) == (True, False, False, True)
    assert policy.budget
    assert policy.budget.debt == pytest.approx(0.8)
    policy.ended(decision, 0.1, 1.0, sent=True, answered=True)
    assert policy.audits
    assert policy.audits.open == 0


@pytest.mark.parametrize("reason", ["", *OffloadReason])
def test_what_cannot_go_up_is_paid_back_and_what_the_next_tier_does_not_take_is_not(reason: str) -> None:
    policy = UploadPolicy(budget=Budget(0.2, 0.5))
    decision = decide(policy, graded(0.9))
    policy.ended(decision, 2.0, 2.0, sent=False, answered=False, reason=reason)
    assert policy.budget
    assert policy.budget.debt == pytest.approx(0.8 if reason in UNTAKEN else -0.2)


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
    policy = UploadPolicy(budget=Budget(0.2, 0.5), audits=Audits(share, lambda: 0.0))
    assert policy.budget
    assert policy.audits
    before = policy.decide(graded(0.1), None, 1000, 2.0, 0.0)
    decision = policy.forced(1000, before)
    assert (decision.up, decision.hard) == (True, True)
    assert policy.budget.debt == pytest.approx(0.8)  # one sample, and it goes up
    policy.ended(decision, 0.1, 1.0, sent=True, answered=True)
    assert policy.audits.open == 0
    later = policy.uplink.begin(1000)
    assert later.ahead == 1000  # nothing else counts as under way


def test_of_a_site_that_sends_nothing_a_failure_stays_there_too(tmp_path: Path) -> None:
    settings = World(tmp_path, None).settings("edge", "e0", hem_name="EdgeOnly", hem_parameters={})
    decision = create(settings, EdgeOnly(), random.random).forced(1000)
    assert (decision.ask, decision.hard) == (False, True)


@pytest.mark.parametrize(("rule", "watched"), [("Margin", {"hardness", "agreement"}), ("Entropy", set())])
def test_hardness_by_another_rule_is_not_taken_for_drift(tmp_path: Path, rule: str, watched: set[str]) -> None:
    reference = Reference(hardness=[i / 20 for i in range(21)], samples=500)
    path = tmp_path / "calibration.json"
    path.write_bytes(
        write_artefact(CalibrationFile(service="s", rule=rule, reference=reference, figures={"agreement.low": 0.9}))
    )
    settings = World(tmp_path, None).settings("edge", "e0", hem_name="margin", calibration=path)
    drift = create(settings, Margin(), random.random).drift
    assert drift
    assert set(drift.metrics()) == watched


def test_settings_say_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(write_artefact(CalibrationFile(service="s", mixture=MixtureRule(edge=1, cloud=1))))
    world = World(tmp_path, None)
    plain = create(world.settings("edge", "e0"), Margin(), random.random)
    assert (plain.budget, plain.audits, plain.drift, plain.mixture) == (None, None, None, None)
    settings = world.settings(
        "edge", "e0", target_upload_ratio=0.2, audit_share=0.01, calibration=path, fusion="mixture"
    )
    full = create(settings, Margin(0.3), random.random, uploaded=300, samples=1000)
    assert full.budget
    assert full.budget.debt > 0
    assert full.budget.cut == float("inf")  # its predecessor has spent it all
    assert full.audits
    assert full.drift
    assert full.mixture
    ungraded = create(settings, CloudOnly(), random.random).budget
    assert ungraded
    assert ungraded.cut is None


def test_a_broken_calibration_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("{")
    settings = World(tmp_path, None).settings("edge", "e0", calibration=path)
    with pytest.raises(InvalidFieldError, match="CALIBRATION_URL"):
        create(settings, Margin(), random.random)
