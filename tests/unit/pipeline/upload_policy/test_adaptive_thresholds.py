"""Thresholds that follow a stream: they come near the best pair, also after a change, and a restart continues them."""

from __future__ import annotations

import asyncio
import random
from itertools import combinations_with_replacement
from pathlib import Path

import msgspec
import pytest

from halimede.api.deferral import Costs
from halimede.messages import Prediction
from halimede.mining import judge
from halimede.mining.two_thresholds import TwoThresholds
from halimede.pipeline.upload_policy.adaptive_thresholds import LIMITS, AdaptiveThresholds, ThresholdState
from halimede.pipeline.upload_policy.policy import UploadPolicy, create
from halimede.worker.threshold_file import NAME, keeping_thresholds, read_thresholds
from tests.unit.worker.world import World

COSTS = Costs(miss=1, false_alarm=0.5, upload=0.1, positive="yes", adaptive=True)
RULE = TwoThresholds("yes", "no", low=0.2, high=0.8)
#: thresholds that a test tries for the best fixed pair
STEPS = [step / 10 for step in range(11)]


def prediction(p: float) -> Prediction:
    return Prediction(label="yes" if p >= 0.5 else "no", score=max(p, 1 - p), probabilities=[1 - p, p])


def stream(samples: int, chance: random.Random, *, shift: float) -> list[tuple[float, bool]]:
    """Probabilities of a model, which are off by ``shift``, with the truth."""
    drawn = [chance.random() for _ in range(samples)]
    return [(p, chance.random() < min(1.0, max(0.0, p + shift))) for p in drawn]


def price(label: str | None, *, is_positive: bool) -> float:
    if is_positive:
        return 0.0 if label == "yes" else COSTS.miss
    return COSTS.alarm if label == "yes" else 0.0


def run(thresholds: AdaptiveThresholds, samples: list[tuple[float, bool]], chance: random.Random) -> float:
    """Return the mean cost, with that of audits."""
    total = 0.0
    for p, is_positive in samples:
        share = thresholds.audit_share
        draw = thresholds.draw(prediction(p), share)
        assert draw is not None
        is_audited = not draw.is_up and chance.random() < share
        total += 0 if draw.is_up else price(draw.prediction.label, is_positive=is_positive)
        if draw.is_up or is_audited:
            total += COSTS.upload
            thresholds.learn(draw, "yes" if is_positive else "no")
    return total / len(samples)


def least(samples: list[tuple[float, bool]]) -> float:
    """Return the mean cost of the best fixed pair."""

    def cost(low: float, high: float) -> float:
        return sum(
            COSTS.upload if low <= p < high else price("yes" if p >= high else "no", is_positive=is_positive)
            for p, is_positive in samples
        )

    return min(cost(low, high) for low, high in combinations_with_replacement(STEPS, 2)) / len(samples)


def test_they_come_near_the_best_fixed_pair_and_again_after_a_change() -> None:
    chance = random.Random(3)
    thresholds = AdaptiveThresholds(RULE, COSTS, chance.random)
    for shift in (0.3, -0.3):
        run(thresholds, stream(6000, chance, shift=shift), chance)
        later = stream(6000, chance, shift=shift)
        before = thresholds.state
        assert run(thresholds, later, chance) < least(later) + 0.03
        assert before.low < 0.15 if shift > 0 else before.low > 0.25
    assert thresholds.state.samples == 24_000


def test_audits_become_fewer_and_never_end() -> None:
    shares = [
        AdaptiveThresholds(RULE, COSTS, random.random, state=ThresholdState(low=0.2, high=0.8, samples=n)).audit_share
        for n in (0, 1000, 100_000, 10_000_000)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] < 0.5
    assert 0.005 < shares[2] == shares[3]


def test_before_any_answer_at_least_half_of_all_samples_are_decided_by_the_rule() -> None:
    chance = random.Random(0)
    thresholds = AdaptiveThresholds(RULE, COSTS, chance.random)
    draws = [thresholds.draw(prediction(p), 0.0) for p in [0.5] * 500 + [0.01] * 500]
    assert sum(draw.is_up for draw in draws[:500] if draw) > 250
    assert sum(draw.prediction.label == "no" and not draw.is_up for draw in draws[500:] if draw) > 250


def test_an_answer_that_was_almost_never_expected_keeps_all_weights_finite() -> None:
    thresholds = AdaptiveThresholds(RULE, msgspec.structs.replace(COSTS, upload=1e9), random.random)
    for p in [0.001, 0.999, 0.5] * 20:
        draw = thresholds.draw(prediction(p), 1e-9)
        assert draw is not None
        thresholds.learn(draw, "yes")
        thresholds.learn(draw, "no")
    assert 0 <= thresholds.state.low <= thresholds.state.high <= 1


def test_a_prediction_of_another_class_is_left_to_the_rule() -> None:
    thresholds = AdaptiveThresholds(RULE, COSTS, random.random)
    assert thresholds.draw(Prediction(label="perhaps", score=0.5), 0.1) is None
    policy = UploadPolicy(thresholds=thresholds)
    odd = Prediction(label="perhaps", score=0.5)
    decision = policy.decide(judge(RULE, odd), odd, 100, 1.0, 0.0)
    assert (decision.hard, decision.draw) == (True, None)


def settings_of(folder: Path, **changes: object):
    parameters = {"positive": "yes", "negative": "no", "low": "0.2", "high": "0.8"}
    fields = {"hem_name": "TwoThresholds", "hem_parameters": parameters, "costs": COSTS, "uid": "u", "state": folder}
    return World(folder).settings("edge", "w0", **{**fields, **changes})


def test_the_policy_audits_for_them_and_learns_from_each_answer(tmp_path: Path) -> None:
    chance = random.Random(1)
    policy = create(settings_of(tmp_path), RULE, chance.random)
    assert policy.thresholds is not None
    assert policy.audits is not None
    assert policy.audits.present() == policy.thresholds.audit_share
    before = policy.thresholds.state
    for _ in range(300):
        answer = prediction(0.9)
        decision = policy.decide(judge(RULE, answer), answer, 100, 1.0, 0.0)
        assert decision.draw is not None
        if decision.ask:
            policy.learn(decision, Prediction(label="no"))
            policy.ended(decision, 0.0, 0.0, sent=True, answered=True)
    assert policy.thresholds.state.high > before.high


def test_without_adaptive_costs_there_are_none(tmp_path: Path) -> None:
    fixed = msgspec.structs.replace(COSTS, adaptive=False)
    for costs in (None, fixed):
        policy = create(settings_of(tmp_path, costs=costs), RULE, random.random)
        assert policy.thresholds is None
        assert policy.audits is None


def test_a_restarted_worker_continues_unless_its_rule_or_costs_are_others(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    thresholds = AdaptiveThresholds(RULE, COSTS, random.random, state=ThresholdState(low=0.4, high=0.6, samples=70))

    async def stop() -> None:
        async with keeping_thresholds(settings, thresholds):
            pass

    asyncio.run(stop())
    state = read_thresholds(settings)
    assert state == thresholds.state
    assert state.samples == 70
    changes = {"hem_parameters": {"low": "0.3"}, "costs": Costs(miss=2, upload=1), "uid": "v"}
    for field, value in changes.items():
        assert read_thresholds(settings_of(tmp_path, **{field: value})) is None, field
    continued = AdaptiveThresholds(RULE, COSTS, random.random, state=state)
    assert abs(continued.state.low - state.low) < 0.15


@pytest.mark.parametrize("contents", [b"", b"{}", b"[1]", b"\xff" * 100_000])
def test_a_damaged_file_is_no_reason_to_stop(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / NAME).write_bytes(contents)
    assert read_thresholds(settings_of(tmp_path)) is None


def test_limits_are_in_order_and_finer_at_both_ends() -> None:
    assert sorted(LIMITS) == LIMITS
    assert LIMITS[1] - LIMITS[0] < 0.01 < LIMITS[12] - LIMITS[11]


def test_the_answer_is_the_class_of_the_drawn_thresholds_and_not_the_models_own() -> None:
    low = TwoThresholds("yes", "no", low=0.2, high=0.2)
    thresholds = AdaptiveThresholds(low, COSTS, random.Random(2).random)
    draws = [draw for _ in range(300) if (draw := thresholds.draw(prediction(0.3), 0.0)) and not draw.is_up]
    assert sum(draw.prediction.label == "yes" for draw in draws) > 0.8 * len(draws) > 200


def test_an_audited_sample_counts_as_often_as_it_is_rarely_uploaded() -> None:
    moved = []
    for share in (1.0, 0.05):
        thresholds = AdaptiveThresholds(
            RULE, COSTS, random.Random(2).random, state=ThresholdState(low=0.2, high=0.8, samples=90_000)
        )
        before = thresholds.state
        draw = thresholds.draw(prediction(0.05), share)
        assert draw is not None
        thresholds.learn(draw, "yes")
        moved.append(before.low - thresholds.state.low)
    assert 0 < moved[0] < moved[1] / 3
