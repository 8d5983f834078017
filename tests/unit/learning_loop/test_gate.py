"""The gate: what passes, and that each bad candidate is refused with its reason."""

from __future__ import annotations

import random
from statistics import NormalDist

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


@pytest.mark.parametrize(
    ("times", "settings", "reason"),
    [
        # the upper end of the median must not be over the limit
        ((Estimate(40.0, 30.0, 50.0), FAST), {"most_ms": 50.0, "most_slowdown": 0.0}, gate.ACCEPTED),
        ((Estimate(40.0, 30.0, 50.1), FAST), {"most_ms": 50.0, "most_slowdown": 0.0}, gate.TOO_SLOW),
        ((Estimate(40.0, 30.0, 50.1), FAST), {"most_slowdown": 0.0}, gate.ACCEPTED),
        # the lower end must not be surely over the factor of the present model's upper end
        ((Estimate(9.0, 4.2, 12.0), Estimate(2.0, 1.9, 2.1)), {}, gate.ACCEPTED),
        ((Estimate(9.0, 4.3, 12.0), Estimate(2.0, 1.9, 2.1)), {}, gate.TOO_SLOW),
        ((Estimate(9.0, 6.3, 12.0), Estimate(2.0, 1.9, 2.1)), {"most_slowdown": 3.0}, gate.ACCEPTED),
        ((Estimate(1.5, 1.0, 2.0), Estimate(0.1, 0.1, 0.1)), {}, gate.ACCEPTED),
        ((Estimate(1.5, 1.01, 2.0), Estimate(0.1, 0.1, 0.1)), {}, gate.TOO_SLOW),
        ((Estimate(1.5, 1.01, 2.0), Estimate(0.1, 0.1, 0.1)), {"floor_ms": 2.0}, gate.ACCEPTED),
        ((FAST, None), {}, gate.TOO_SLOW),
        ((None, FAST), {}, gate.TOO_SLOW),
    ],
)
def test_each_end_of_a_time_has_its_limit(
    times: tuple[Estimate | None, Estimate | None], settings: dict[str, float], reason: str
) -> None:
    found = decide(evidence(candidate_ms=times[0], present_ms=times[1]), GateSettings(**settings))  # type: ignore[arg-type]
    assert found.reason == reason


def scaled(counts: PairedCounts, samples: int) -> PairedCounts:
    """The same counts with another number of samples, of which both models answer the added ones."""
    return msgspec.structs.replace(counts, both=counts.both + samples - counts.samples)


@pytest.mark.parametrize(
    ("hard", "easy", "share", "reason"),
    [
        (scaled(PairedCounts(candidate=40), 80), scaled(PairedCounts(candidate=10), 20), 0.5, gate.ACCEPTED),
        (scaled(PairedCounts(candidate=40), 79), scaled(PairedCounts(candidate=10), 20), 0.5, gate.TOO_FEW),
        (scaled(PairedCounts(candidate=40), 81), scaled(PairedCounts(candidate=10), 19), 0.5, gate.TOO_FEW),
        (scaled(PairedCounts(candidate=10), 19), scaled(PairedCounts(candidate=40), 81), 0.5, gate.TOO_FEW),
        # a tenth of the stream needs samples, less does not
        (scaled(PairedCounts(candidate=60), 100), PairedCounts(), 0.90, gate.TOO_FEW),
        (scaled(PairedCounts(candidate=60), 100), PairedCounts(), 0.91, gate.ACCEPTED),
    ],
)
def test_the_least_numbers_are_enough_and_one_less_is_not(
    hard: PairedCounts, easy: PairedCounts, share: float, reason: str
) -> None:
    strata = [
        StratumCounts(name="hard", share=share, counts=hard),
        StratumCounts(name="easy", share=round(1 - share, 9), counts=easy),
    ]
    assert decide(evidence(strata=strata), GateSettings()).reason == reason


def test_strata_without_a_share_of_the_stream_prove_nothing() -> None:
    strata = [StratumCounts(name=name, share=0.0, counts=BETTER) for name in ("hard", "easy")]
    assert decide(evidence(strata=strata), GateSettings()).reason == gate.TOO_FEW


@pytest.mark.parametrize(
    ("low", "high", "reason"),
    [
        (1e-9, 0.2, gate.ACCEPTED),
        (0.0, 0.2, gate.NOT_BETTER),
        (-0.2, 0.0, gate.NOT_BETTER),
        (-0.2, -1e-9, gate.WORSE),
    ],
)
def test_the_whole_interval_must_be_above_0(
    low: float, high: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "gain_of", lambda *_: Estimate((low + high) / 2, low, high))
    assert decide(evidence(), GateSettings()).reason == reason


def test_shares_need_not_add_up_to_1() -> None:
    strata = [StratumCounts(name="hard", share=0.1, counts=BETTER), StratumCounts(name="easy", share=0.3, counts=EQUAL)]
    assert gate.gain_of(strata, 1.96).value == pytest.approx(0.25 * 55 / 200)


@pytest.mark.parametrize("attempt", [1, 2, 3, 10])
def test_each_attempt_gets_its_part_of_the_error(attempt: int) -> None:
    found = decide(evidence(), GateSettings(confidence=0.9), attempt=attempt)
    z = NormalDist().inv_cdf(1 - 0.1 / (attempt * (attempt + 1)) / 2)
    assert found.gain == gate.gain_of(evidence().strata, z)


def test_what_passes_at_first_does_not_pass_after_many_attempts() -> None:
    close = PairedCounts(both=150, candidate=22, present=8, neither=20)
    first, late = (decide(evidence(close, close), GateSettings(), attempt=attempt) for attempt in (1, 12))
    assert (first.reason, late.reason) == (gate.ACCEPTED, gate.NOT_BETTER)
    reference = PairedCounts(both=900, candidate=15, present=39, neither=46)
    first, late = (decide(evidence(reference=reference), GateSettings(), attempt=attempt) for attempt in (1, 12))
    assert (first.reason, late.reason) == (gate.ACCEPTED, gate.FORGETS)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (PairedCounts(both=950, present=50), gate.ACCEPTED),  # a loss of just the limit
        (PairedCounts(both=949, present=51), gate.GROUP_WORSE),
        (PairedCounts(both=4, present=1), gate.ACCEPTED),  # not surely worse
        (PairedCounts(both=949, candidate=51), gate.ACCEPTED),
    ],
)
def test_a_group_is_worse_if_that_is_sure_and_over_the_limit(counts: PairedCounts, reason: str) -> None:
    assert decide(evidence(groups={"class 3": counts}), GateSettings()).reason == reason


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
    reference = PairedCounts(both=77)
    measured = gate.paired
    monkeypatch.setattr(
        gate, "paired", lambda counts, z: Estimate(0.0, low, 0.1) if counts is reference else measured(counts, z)
    )
    assert decide(evidence(reference=reference), GateSettings()).reason == reason
