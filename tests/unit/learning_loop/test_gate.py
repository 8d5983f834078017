"""The gate: what passes, and that each bad candidate is refused with its reason."""

from __future__ import annotations

import random
from statistics import NormalDist
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.learning_loop import GateSettings
from halimede.learning_loop import gate
from halimede.learning_loop.gate import Evidence, StratumCounts, decide
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts

FAST, SLOW = Estimate(2.0, 1.9, 2.1), Estimate(60.0, 58.0, 61.0)
BETTER = PairedCounts(both=120, candidate=60, present=5, neither=15)
WORSE = PairedCounts(both=120, candidate=5, present=60, neither=15)
EQUAL = PairedCounts(both=150, candidate=15, present=15, neither=20)
HALF = PairedCounts(both=8, candidate=4)


def strata(hard: tuple[float, PairedCounts], *easy: tuple[float, PairedCounts]) -> list[StratumCounts]:
    named = [("hard", hard), *(("easy", stratum) for stratum in easy)]
    return [StratumCounts(name=name, share=share, counts=counts) for name, (share, counts) in named]


def evidence(hard: PairedCounts = BETTER, easy: PairedCounts = BETTER, **changes: object) -> Evidence:
    found = Evidence(strata=strata((0.4, hard), (0.6, easy)), candidate_ms=FAST, present_ms=FAST)
    return msgspec.structs.replace(found, **changes)


def scaled(samples: int, candidate: int) -> PairedCounts:
    """Counts of so many samples, of which the candidate alone answers some and both models the others."""
    return PairedCounts(both=samples - candidate, candidate=candidate)


NO_SLOWDOWN = {"most_ms": 50.0, "most_slowdown": 0.0}
MILLISECOND, FASTEST = Estimate(1.5, 1.01, 2.0), Estimate(0.1, 0.1, 0.1)
DECISIONS: dict[str, list[tuple[Evidence, dict[str, float], str]]] = {
    "a candidate that is surely better": [(evidence(), {}, gate.ACCEPTED)],
    "a bad candidate": [
        (evidence(WORSE, WORSE), {}, gate.WORSE),
        (evidence(EQUAL, EQUAL), {}, gate.NOT_BETTER),
        (evidence(error="no ONNX file"), {}, gate.NOT_LOADED),
        (evidence(failed=1), {}, gate.FAILS),
        (evidence(reference=PairedCounts(both=150, present=40, neither=10)), {}, gate.FORGETS),
    ],
    "gains of the hard ones, and the easy ones are lost": [
        (evidence(strata=strata((0.1, BETTER), (0.9, PairedCounts(both=150, present=40, neither=10)))), {}, gate.WORSE),
    ],
    "a median over the deadline, also of a present model that is as slow": [
        (evidence(candidate_ms=SLOW, present_ms=SLOW), {"most_ms": 50.0}, gate.TOO_SLOW),
    ],
    "the upper end of the median must not be over the limit": [
        (evidence(candidate_ms=Estimate(40.0, 30.0, 50.0)), NO_SLOWDOWN, gate.ACCEPTED),
        (evidence(candidate_ms=Estimate(40.0, 30.0, 50.1)), NO_SLOWDOWN, gate.TOO_SLOW),
        (evidence(candidate_ms=Estimate(40.0, 30.0, 50.1)), {"most_slowdown": 0.0}, gate.ACCEPTED),
    ],
    "the lower end must not be surely over the factor of the present model's upper end": [
        (evidence(candidate_ms=Estimate(9.0, 8.0, 10.0)), {}, gate.TOO_SLOW),
        (evidence(candidate_ms=Estimate(9.0, 4.2, 12.0)), {}, gate.ACCEPTED),
        (evidence(candidate_ms=Estimate(9.0, 4.3, 12.0)), {}, gate.TOO_SLOW),
        (evidence(candidate_ms=Estimate(9.0, 6.3, 12.0)), {"most_slowdown": 3.0}, gate.ACCEPTED),
        (evidence(candidate_ms=Estimate(1.5, 1.0, 2.0), present_ms=FASTEST), {}, gate.ACCEPTED),
        (evidence(candidate_ms=MILLISECOND, present_ms=FASTEST), {}, gate.TOO_SLOW),
        (evidence(candidate_ms=MILLISECOND, present_ms=FASTEST), {"floor_ms": 2.0}, gate.ACCEPTED),
    ],
    "without a time": [
        (evidence(candidate_ms=None), {}, gate.TOO_SLOW),
        (evidence(present_ms=None), {}, gate.TOO_SLOW),
    ],
    "too few samples": [
        (evidence(PairedCounts(candidate=10), PairedCounts(candidate=10)), {}, gate.TOO_FEW),
        (evidence(easy=PairedCounts()), {}, gate.TOO_FEW),
        (evidence(strata=strata((0.5, scaled(80, 40)), (0.5, scaled(20, 10)))), {}, gate.ACCEPTED),
        (evidence(strata=strata((0.5, scaled(79, 40)), (0.5, scaled(20, 10)))), {}, gate.TOO_FEW),
        (evidence(strata=strata((0.5, scaled(81, 40)), (0.5, scaled(19, 10)))), {}, gate.TOO_FEW),
        (evidence(strata=strata((0.5, scaled(19, 10)), (0.5, scaled(81, 40)))), {}, gate.TOO_FEW),
    ],
    "a stratum has its samples in all periods together": [
        (evidence(strata=strata((0.6, BETTER), (0.2, HALF), (0.2, HALF))), {}, gate.ACCEPTED),
        (evidence(strata=strata((0.6, BETTER), (0.2, HALF))), {}, gate.TOO_FEW),
    ],
    "a tenth of the stream needs samples, less does not": [
        (evidence(strata=strata((0.90, scaled(100, 60)), (0.1, PairedCounts()))), {}, gate.TOO_FEW),
        (evidence(strata=strata((0.91, scaled(100, 60)), (0.09, PairedCounts()))), {}, gate.ACCEPTED),
    ],
    "strata without a share of the stream": [
        (evidence(strata=strata((0.0, BETTER), (0.0, BETTER))), {}, gate.TOO_FEW),
    ],
    "a group is worse if that is sure and over the limit": [
        (evidence(groups={"class 3": PairedCounts(present=20, both=5)}), {}, gate.GROUP_WORSE),
        (evidence(groups={"class 3": PairedCounts(both=950, present=50)}), {}, gate.ACCEPTED),
        (evidence(groups={"class 3": PairedCounts(both=949, present=51)}), {}, gate.GROUP_WORSE),
        (evidence(groups={"class 3": PairedCounts(both=4, present=1)}), {}, gate.ACCEPTED),
        (evidence(groups={"class 3": PairedCounts(both=949, candidate=51)}), {}, gate.ACCEPTED),
    ],
}


@pytest.mark.parametrize(
    ("shown", "settings", "reason"),
    [pytest.param(*case, id=f"{name}: {case[2]}") for name, cases in DECISIONS.items() for case in cases],
)
def test_each_limit_accepts_or_refuses_with_its_reason(shown: Evidence, settings: Any, reason: str) -> None:
    decision = decide(shown, GateSettings(**settings))
    assert (decision.reason, decision.accepted) == (reason, reason == gate.ACCEPTED)
    assert decision.message
    assert shown.present_ms is not SLOW or "50 ms" in decision.message


def test_a_stratum_that_hardly_occurs_needs_no_samples_but_widens_the_interval() -> None:
    without = strata((0.95, BETTER), (0.05, PairedCounts()))
    found, alone = (decide(evidence(strata=counted), GateSettings()) for counted in (without, without[:1]))
    assert found.accepted
    width, width_alone = (decision.gain.high - decision.gain.low for decision in (found, alone))  # type: ignore[union-attr]
    assert width > width_alone


def test_equal_models_pass_in_at_most_the_allowed_share_of_attempts_however_often_they_are_tried() -> None:
    chance = random.Random(1)
    passed = sum(
        any(
            decide(evidence(_drawn(chance, 100), _drawn(chance, 100)), GateSettings(), attempt=attempt).accepted
            for attempt in range(1, 11)
        )
        for _ in range(150)
    )
    assert passed / 150 <= 0.05


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
    found = decide(evidence(strata=strata((share, hard), (1 - share, easy))), GateSettings(), attempt=attempt)
    if hard.candidate <= hard.present and easy.candidate <= easy.present:
        assert not found.accepted


@given(st.builds(Evidence, strata=st.lists(st.builds(StratumCounts, name=st.just("hard"), counts=tables), max_size=3)))
def test_any_evidence_gives_a_decision_with_a_reason(found: Evidence) -> None:
    assert decide(found, GateSettings()).reason


@pytest.mark.parametrize(
    ("low", "high", "reason"),
    [(1e-9, 0.2, gate.ACCEPTED), (0.0, 0.2, gate.NOT_BETTER), (-0.2, 0.0, gate.NOT_BETTER), (-0.2, -1e-9, gate.WORSE)],
)
def test_all_of_the_interval_is_above_0(low: float, high: float, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "gain_of", lambda *_: Estimate((low + high) / 2, low, high))
    assert decide(evidence(), GateSettings()).reason == reason


def test_shares_need_not_add_up_to_1() -> None:
    assert gate.gain_of(strata((0.1, BETTER), (0.3, EQUAL)), 1.96).value == pytest.approx(0.25 * 55 / 200)


@pytest.mark.parametrize("attempt", [1, 2, 3, 10])
def test_each_attempt_gets_its_part_of_the_error(attempt: int) -> None:
    found = decide(evidence(), GateSettings(confidence=0.9), attempt=attempt)
    z = NormalDist().inv_cdf(1 - 0.1 / (attempt * (attempt + 1)) / 2)
    assert found.gain == gate.gain_of(evidence().strata, z)


def test_a_loss_on_samples_from_before_that_passes_at_first_does_not_pass_after_many_attempts() -> None:
    reference = PairedCounts(both=900, candidate=15, present=39, neither=46)
    first, late = (decide(evidence(reference=reference), GateSettings(), attempt=attempt) for attempt in (1, 12))
    assert (first.reason, late.reason) == (gate.ACCEPTED, gate.FORGETS)


def test_one_of_many_groups_must_be_worse_more_surely_than_the_only_one() -> None:
    counts = PairedCounts(both=30, candidate=1, present=9, neither=5)
    alone = decide(evidence(groups={"class 3": counts}), GateSettings())
    others = {f"class {i}": EQUAL for i in range(10, 60)}
    assert alone.reason == gate.GROUP_WORSE
    assert "class 3" in alone.message
    assert decide(evidence(groups={"class 3": counts, **others}), GateSettings()).reason == gate.ACCEPTED
    sure = msgspec.structs.replace(counts, present=40)
    assert decide(evidence(groups={**others, "class 3": sure}), GateSettings()).reason == gate.GROUP_WORSE


@pytest.mark.parametrize(("low", "reason"), [(-0.05, gate.FORGETS), (-0.0499, gate.ACCEPTED)])
def test_a_loss_of_the_limit_must_lie_below_the_interval_on_samples_from_before(
    low: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, gain, measured = PairedCounts(both=77), Estimate(0.0, low, 0.1), gate.paired_gain  # type: ignore[attr-defined]
    monkeypatch.setattr(gate, "paired_gain", lambda counts, z: gain if counts is reference else measured(counts, z))
    assert decide(evidence(reference=reference), GateSettings()).reason == reason
