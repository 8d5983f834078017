"""The canary's trial: which audits roll it out, which withdraw it, and how often chance decides."""

from __future__ import annotations

import random

import pytest

from halimede.api.learning_loop import CanarySettings
from halimede.learning_loop import canary
from halimede.learning_loop.canary import VersionCounts, judge

SETTINGS = CanarySettings(least=40)
PRESENT = VersionCounts(answered=8000, hard=1600, audited=300, agreed=270)


def counts(agreed: int, of: int, hard: float = 0.2) -> VersionCounts:
    answered = of * 25
    return VersionCounts(answered=answered, hard=round(hard * answered), audited=of, agreed=agreed)


def test_before_enough_audits_nothing_is_decided() -> None:
    assert judge(counts(0, 39), PRESENT, SETTINGS, looks=0) == canary.CanaryDecision(step="wait", looks=0)


@pytest.mark.parametrize(
    ("tried", "present", "step", "reason"),
    [
        (counts(159, 160), counts(210, 300), "roll-out", canary.PROVEN),
        (counts(90, 160), PRESENT, "withdraw", canary.AUDITS_WORSE),
        (counts(155, 160, hard=0.6), PRESENT, "withdraw", canary.MORE_UPLOADS),
        (counts(144, 160), PRESENT, "wait", ""),
    ],
)
def test_the_audits_decide(tried: VersionCounts, present: VersionCounts, step: str, reason: str) -> None:
    found = judge(tried, present, SETTINGS, looks=1)
    assert (found.step, found.reason) == (step, reason)
    assert found.looks == 2


def test_a_canary_that_the_last_look_does_not_prove_is_withdrawn() -> None:
    found = judge(counts(1152, 1280), PRESENT, SETTINGS, looks=5)
    assert (found.step, found.reason) == ("withdraw", canary.NOT_PROVEN)


@pytest.mark.parametrize(("right", "present_right", "most"), [(0.80, 0.90, 0.06), (0.86, 0.90, 0.06)])
def test_a_worse_canary_is_rolled_out_seldom(right: float, present_right: float, most: float) -> None:
    rolled = sum(_trial(random.Random(seed), right, present_right) == "roll-out" for seed in range(300))
    assert rolled / 300 <= most


def test_a_better_canary_is_mostly_rolled_out() -> None:
    rolled = sum(_trial(random.Random(seed), 0.97, 0.75) == "roll-out" for seed in range(200))
    assert rolled / 200 >= 0.95


def test_counts_that_fell_say_nothing_of_the_time_since() -> None:
    before = VersionCounts(answered=100, hard=10, audited=5, agreed=4)
    now = VersionCounts(answered=70, hard=7, audited=4, agreed=4)
    assert now.since(before) == VersionCounts()
    assert before.since(VersionCounts()) == before


def _trial(chance: random.Random, right: float, present_right: float) -> str:
    """Simulate audits of both versions, the canary with a fifth of the frames, until the trial ends."""
    looks, hits, of, base, base_of = 0, 0, 0, 0, 0
    while True:
        of += 1
        hits += chance.random() < right
        base_of += 4
        base += sum(chance.random() < present_right for _ in range(4))
        found = judge(counts(hits, of), counts(base, base_of), SETTINGS, looks=looks)
        looks = found.looks
        if found.step != "wait":
            return found.step
