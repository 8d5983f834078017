"""The gate: what passes, and that each bad candidate is refused with its reason."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.learning_loop import GateSettings
from halimede.learning_loop import gate
from halimede.learning_loop.gate import Evidence, StratumCounts, decide
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts

FAST = Estimate(2.0, 1.9, 2.1)
BETTER = PairedCounts(both=120, candidate=60, present=5, neither=15)
WORSE = PairedCounts(both=120, candidate=5, present=60, neither=15)
EQUAL = PairedCounts(both=150, candidate=15, present=15, neither=20)


def evidence(hard: PairedCounts = BETTER, easy: PairedCounts = BETTER, **changes: object) -> Evidence:
    strata = [
        StratumCounts(name="hard", share=0.4, counts=hard),
        StratumCounts(name="easy", share=0.6, counts=easy),
    ]
    found = Evidence(strata=strata, candidate_ms=FAST, present_ms=FAST)
    return msgspec.structs.replace(found, **changes)


def test_a_candidate_that_is_surely_better_passes() -> None:
    found = decide(evidence(), GateSettings())
    assert found.accepted
    assert found.reason == gate.ACCEPTED
    assert found.gain is not None
    assert found.gain.low > 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (evidence(WORSE, WORSE), gate.WORSE),
        (evidence(EQUAL, EQUAL), gate.NOT_BETTER),
        (evidence(error="no ONNX file"), gate.NOT_LOADED),
        (evidence(failed=1), gate.FAILS),
        (evidence(candidate_ms=Estimate(9.0, 8.0, 10.0)), gate.TOO_SLOW),
        (evidence(candidate_ms=None), gate.TOO_SLOW),
        (evidence(PairedCounts(candidate=10), PairedCounts(candidate=10)), gate.TOO_FEW),
        (evidence(easy=PairedCounts()), gate.TOO_FEW),
        (evidence(groups={"class 3": PairedCounts(present=20, both=5)}), gate.GROUP_WORSE),
        (evidence(reference=PairedCounts(both=150, present=40, neither=10)), gate.FORGETS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_candidate_is_refused_with_its_reason(bad: Evidence, reason: str) -> None:
    found = decide(bad, GateSettings())
    assert not found.accepted
    assert found.reason == reason
    assert found.message


def test_a_gain_on_hard_samples_alone_does_not_pass_if_the_easy_ones_are_lost() -> None:
    easy = PairedCounts(both=150, present=40, neither=10)
    strata = [
        StratumCounts(name="hard", share=0.1, counts=BETTER),
        StratumCounts(name="easy", share=0.9, counts=easy),
    ]
    assert decide(evidence(strata=strata), GateSettings()).reason == gate.WORSE


def test_a_stratum_that_hardly_occurs_needs_no_samples_but_widens_the_interval() -> None:
    without = [
        StratumCounts(name="hard", share=0.95, counts=BETTER),
        StratumCounts(name="easy", share=0.05, counts=PairedCounts()),
    ]
    found = decide(evidence(strata=without), GateSettings())
    alone = decide(evidence(strata=without[:1]), GateSettings())
    assert found.accepted
    assert found.gain is not None
    assert alone.gain is not None
    assert found.gain.high - found.gain.low > alone.gain.high - alone.gain.low


def test_a_stratum_needs_its_samples_in_all_periods_together() -> None:
    half = PairedCounts(both=8, candidate=4)
    strata = [
        StratumCounts(name="hard", share=0.6, counts=BETTER),
        StratumCounts(name="easy", share=0.2, counts=half),
        StratumCounts(name="easy", share=0.2, counts=half),
    ]
    assert decide(evidence(strata=strata), GateSettings()).accepted
    assert decide(evidence(strata=strata[:2]), GateSettings()).reason == gate.TOO_FEW


def test_a_median_over_the_deadline_is_refused_even_if_the_present_model_is_as_slow() -> None:
    slow = Estimate(60.0, 58.0, 61.0)
    found = decide(evidence(candidate_ms=slow, present_ms=slow), GateSettings(most_ms=50.0))
    assert found.reason == gate.TOO_SLOW
    assert "50 ms" in found.message


def test_equal_models_pass_in_at_most_the_allowed_share_of_attempts_however_often_they_are_tried() -> None:
    chance = random.Random(1)
    services = passed = 0
    for _ in range(150):
        services += 1
        passed += any(
            decide(evidence(_drawn(chance, 100), _drawn(chance, 100)), GateSettings(), attempt=attempt).accepted
            for attempt in range(1, 11)
        )
    assert passed / services <= 0.05


def _drawn(chance: random.Random, of: int) -> PairedCounts:
    table = [0, 0, 0, 0]
    for _ in range(of):
        table[chance.choices(range(4), weights=(0.6, 0.12, 0.12, 0.16))[0]] += 1
    return PairedCounts(both=table[0], candidate=table[1], present=table[2], neither=table[3])


tables = st.builds(PairedCounts, **dict.fromkeys(("both", "candidate", "present", "neither"), st.integers(0, 300)))


@given(tables, tables, st.floats(0, 1), st.integers(1, 50))
def test_no_candidate_passes_that_has_fewer_right_answers_in_both_strata(
    hard: PairedCounts, easy: PairedCounts, share: float, attempt: int
) -> None:
    strata = [
        StratumCounts(name="hard", share=share, counts=hard),
        StratumCounts(name="easy", share=1 - share, counts=easy),
    ]
    found = decide(evidence(strata=strata), GateSettings(), attempt=attempt)
    if hard.candidate <= hard.present and easy.candidate <= easy.present:
        assert not found.accepted


@given(st.builds(Evidence, strata=st.lists(st.builds(StratumCounts, name=st.just("hard"), counts=tables), max_size=3)))
def test_any_evidence_gives_a_decision_with_a_reason(found: Evidence) -> None:
    assert decide(found, GateSettings()).reason
