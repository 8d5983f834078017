"""Thresholds that follow a stream: they come near the best pair, also after a change, and a restart continues them."""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

import msgspec
import pytest

from halimede.api.deferral import Costs
from halimede.messages import Prediction
from halimede.mining import judge
from halimede.mining.two_thresholds import TwoThresholds
from halimede.pipeline.upload_policy.adaptive_thresholds import (
    AdaptiveThresholds,
    ThresholdDraw,
    ThresholdState,
)
from halimede.pipeline.upload_policy.policy import UploadPolicy, create
from halimede.worker.threshold_file import NAME, keeping_thresholds, read_thresholds
from tests.unit.worker.world import World

COSTS = Costs(miss=1, false_alarm=0.5, upload=0.1, positive="yes", adaptive=True)
RULE = TwoThresholds("yes", "no", low=0.2, high=0.8)
#: thresholds that a test tries for the best fixed pair
STEPS = [step / 10 for step in range(11)]


def prediction(p: float) -> Prediction:
    return Prediction(label="yes" if p >= 0.5 else "no", score=max(p, 1 - p), probabilities=[1 - p, p])


def adaptive(
    number: Callable[[], float] = random.random, *, low: float = 0.2, high: float = 0.8, samples: int = 0
) -> AdaptiveThresholds:
    """Return thresholds in a state after so many samples, with the source of their random numbers."""
    state = ThresholdState(low=low, high=high, samples=samples) if samples else None
    return AdaptiveThresholds(RULE, COSTS, number, state=state)


def drawn(thresholds: AdaptiveThresholds, p: float, share: float = 0.0) -> ThresholdDraw:
    draw = thresholds.draw(prediction(p), share)
    assert draw
    return draw


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
        draw = drawn(thresholds, p, share)
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


def test_an_upper_threshold_of_1_uploads_all_samples_above_the_lower_one() -> None:
    thresholds = AdaptiveThresholds(TwoThresholds("yes", "no", low=0.2, high=1.0), COSTS, lambda: 0.5)
    assert thresholds.state.high > 0.95
    assert drawn(thresholds, 0.999).is_up


def test_they_come_near_the_best_fixed_pair_and_again_after_a_change() -> None:
    chance = random.Random(3)
    thresholds = adaptive(chance.random)
    for shift in (0.3, -0.3):
        run(thresholds, stream(6000, chance, shift=shift), chance)
        later = stream(6000, chance, shift=shift)
        before = thresholds.state
        assert run(thresholds, later, chance) < least(later) + 0.03
        assert before.low < 0.15 if shift > 0 else before.low > 0.25
    assert thresholds.state.samples == 24_000


def test_audits_become_fewer_and_never_end() -> None:
    shares = [adaptive(samples=samples).audit_share for samples in (0, 1000, 99_999, 100_000, 10_000_000)]
    assert shares == [pytest.approx(0.3 / n ** (1 / 3)) for n in (1, 1000, 99_999, 100_000, 100_000)]
    assert shares[2] > shares[3] == shares[4]


def test_an_answer_that_was_almost_never_expected_keeps_all_weights_finite() -> None:
    thresholds = AdaptiveThresholds(RULE, msgspec.structs.replace(COSTS, upload=1e9), random.random)
    for p in [0.001, 0.999, 0.5] * 20:
        draw = drawn(thresholds, p, 1e-9)
        thresholds.learn(draw, "yes")
        thresholds.learn(draw, "no")
    assert 0 <= thresholds.state.low <= thresholds.state.high <= 1


def test_a_sample_without_an_answer_or_without_a_chance_to_be_observed_teaches_nothing() -> None:
    thresholds = adaptive()
    draw, before = drawn(thresholds, 0.3, 0.5), thresholds.state
    thresholds.learn(draw, None)
    thresholds.learn(msgspec.structs.replace(draw, observed=0.0), "no")
    assert thresholds.state == before
    thresholds.learn(draw, "no")
    assert thresholds.state != before


def test_a_prediction_of_another_class_is_left_to_the_rule() -> None:
    thresholds, odd = adaptive(), Prediction(label="perhaps", score=0.5)
    assert thresholds.draw(odd, 0.1) is None
    decision = UploadPolicy(thresholds=thresholds).decide(judge(RULE, odd), odd, 100, 1.0, 0.0)
    assert (decision.hard, decision.draw) == (True, None)


def settings_of(folder: Path, **changes: object):
    parameters = {"positive": "yes", "negative": "no", "low": "0.2", "high": "0.8"}
    fields = {"hem_name": "TwoThresholds", "hem_parameters": parameters, "costs": COSTS, "uid": "u", "state": folder}
    return World(folder).settings("edge", "w0", **{**fields, **changes})


def test_the_policy_audits_for_them_and_learns_from_each_answer(tmp_path: Path) -> None:
    policy, answer = create(settings_of(tmp_path), RULE, random.Random(1).random), prediction(0.9)
    assert policy.thresholds
    assert policy.audits
    assert policy.audits.present() == policy.thresholds.audit_share
    before = policy.thresholds.state
    for _ in range(300):
        decision = policy.decide(judge(RULE, answer), answer, 100, 1.0, 0.0)
        assert decision.draw is not None
        if decision.ask:
            policy.learn(decision, Prediction(label="no"))
            policy.ended(decision, 0.0, 0.0, sent=True, answered=True)
    assert policy.thresholds.state.high > before.high


def test_without_adaptive_costs_there_are_none(tmp_path: Path) -> None:
    for costs in (None, msgspec.structs.replace(COSTS, adaptive=False)):
        policy = create(settings_of(tmp_path, costs=costs), RULE, random.random)
        assert (policy.thresholds, policy.audits) == (None, None)


async def test_a_restarted_worker_continues_unless_its_rule_or_costs_are_others(tmp_path: Path) -> None:
    settings, thresholds = settings_of(tmp_path), adaptive(low=0.4, high=0.6, samples=70)
    async with keeping_thresholds(settings, thresholds):
        pass
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


def test_each_pair_of_thresholds_has_the_weight_of_its_costs() -> None:
    """The same algorithm in plain loops over all pairs."""
    chance, numbers = random.Random(5), list[float]()

    def number() -> float:
        numbers.append(chance.random())
        return numbers[-1]

    thresholds = adaptive(number)
    limits = [1 / (1 + math.exp(-step / 2)) for step in range(-11, 12)]
    pairs = list(combinations_with_replacement(range(len(limits) + 2), 2))
    rule = bisect(limits, RULE.low), bisect(limits, RULE.high)
    weights = {pair: 0.1 / len(pairs) + 0.9 * (pair == rule) for pair in pairs}
    for time in range(1, 201):
        assert thresholds.audit_share == pytest.approx(0.3 / math.cbrt(max(1, time - 1)))
        p, is_positive = chance.random(), chance.random() < 0.6
        draw, index = drawn(thresholds, p, 0.2), bisect(limits, p)
        negative = sum(weight for (low, _), weight in weights.items() if low > index)
        positive = sum(weight for (_, high), weight in weights.items() if high <= index)
        up = 1 - negative - positive
        assert (draw.is_up, draw.observed) == (numbers[-1] < up, pytest.approx(up + (1 - up) * 0.2))
        says_yes = positive >= negative if draw.is_up else numbers[-1] >= up + negative
        assert draw.prediction.label == ("yes" if says_yes else "no")
        thresholds.learn(draw, "yes" if is_positive else "no")
        for low, high in pairs:
            cost = COSTS.upload
            if low > index or high <= index:
                cost = price("no" if low > index else "yes", is_positive=is_positive)
            weights[low, high] *= math.exp(-32 / math.cbrt(time) ** 2 / draw.observed * cost)
        total, share = sum(weights.values()), 1 / (time + 1)
        weights = {pair: (1 - share) * weight / total + share / len(pairs) for pair, weight in weights.items()}
        values, state = [0.0, *limits, 1.0], thresholds.state
        assert state.low == pytest.approx(sum(weight * values[low] for (low, _), weight in weights.items()))
        assert state.high == pytest.approx(sum(weight * values[high] for (_, high), weight in weights.items()))


def test_only_the_relation_of_the_costs_matters() -> None:
    states = []
    for unit in (1, 8):
        costs = Costs(miss=0.5 * unit, false_alarm=1.0 * unit, upload=0.1 * unit)
        chance = random.Random(4)
        thresholds = AdaptiveThresholds(RULE, costs, chance.random)
        run(thresholds, stream(200, chance, shift=0.2), chance)
        states.append(thresholds.state)
    assert states[0] == states[1]
    assert states[0] != ThresholdState(low=RULE.low, high=RULE.high, samples=200)


def test_a_drawn_number_at_the_share_of_uploads_is_none() -> None:
    up = drawn(adaptive(lambda: 0.0), 0.5)
    assert up.is_up
    for number, is_up in ((up.observed, False), (math.nextafter(up.observed, 0.0), True)):
        assert drawn(adaptive(lambda number=number: number), 0.5).is_up is is_up


def test_a_canarys_answers_are_not_decided_by_them() -> None:
    policy, answer = UploadPolicy(thresholds=adaptive(lambda: 0.0)), prediction(0.9)
    for on_trial in (True, False):
        decision = policy.decide(judge(RULE, answer), answer, 100, 1.0, 0.0, on_trial=on_trial)
        assert (decision.draw is None) is on_trial
    assert policy.decide(judge(RULE, answer), None, 100, 1.0, 0.0).draw is None


def test_audits_are_as_many_as_thresholds_or_the_desired_state_require(tmp_path: Path) -> None:
    for least in (0.0, 0.9):
        policy = create(settings_of(tmp_path), RULE, random.random, audits=lambda least=least: least)
        assert policy.audits
        assert policy.audits.present() == max(least, 0.3)
