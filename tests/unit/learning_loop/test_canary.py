"""The canary's trial: which audits roll it out, which withdraw it, and how often chance decides."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from halimede.api.learning_loop import CanarySettings
from halimede.learning_loop import canary
from halimede.learning_loop.canary import VersionCounts, judge
from halimede.learning_loop.gate import difference_text
from halimede.stats.agreement import Estimate, wilson
from halimede.stats.differences import share, weighted_sum

SETTINGS = CanarySettings(least=40)
PRESENT = VersionCounts(answered=8000, hard=1600, audited=300, agreed=270)


def counts(agreed: int, of: int, hard: float = 0.2) -> VersionCounts:
    answered = of * 25
    return VersionCounts(answered=answered, hard=round(hard * answered), audited=of, agreed=agreed)


def test_before_enough_audits_nothing_is_decided() -> None:
    assert judge(counts(0, 39), PRESENT, SETTINGS, checks=0) == canary.CanaryDecision(step="wait", checks=0)


@pytest.mark.parametrize(
    ("tried", "present", "checks", "step", "reason"),
    [
        (counts(159, 160), counts(210, 300), 1, "roll-out", canary.PROVEN),
        (counts(90, 160), PRESENT, 1, "withdraw", canary.AUDITS_WORSE),
        (counts(155, 160, hard=0.6), PRESENT, 1, "withdraw", canary.MORE_UPLOADS),
        (counts(144, 160), PRESENT, 1, "wait", ""),
        # the last look must prove it
        (counts(1152, 1280), PRESENT, 4, "wait", ""),
        (counts(1152, 1280), PRESENT, 5, "withdraw", canary.NOT_PROVEN),
    ],
)
def test_the_audits_decide(tried: VersionCounts, present: VersionCounts, checks: int, step: str, reason: str) -> None:
    decision = judge(tried, present, SETTINGS, checks=checks)
    assert (decision.step, decision.reason, decision.checks) == (step, reason, checks + 1)


@pytest.mark.parametrize(
    ("low", "high", "step", "reason"),
    [
        (-0.30, -1e-9, "withdraw", canary.AUDITS_WORSE),
        (-0.30, 0.0, "wait", ""),
        (-0.02, 0.1, "wait", ""),
        (-0.0199, 0.1, "roll-out", canary.PROVEN),
    ],
)
def test_each_end_of_the_gain_has_its_limit(
    low: float, high: float, step: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "weighted_sum", lambda _: Estimate((low + high) / 2, low, high))
    found = judge(counts(36, 40), PRESENT, SETTINGS, checks=0)
    assert (found.step, found.reason) == (step, reason)


def figures(tried: VersionCounts, looks: int) -> tuple[Estimate, Estimate]:
    """More uploads, and the gain, at a look: the error of 5 % is divided by 1 x 2, 2 x 3, 3 x 4, ..."""
    z = NormalDist().inv_cdf(1 - 0.05 / ((looks + 1) * (looks + 2)) / 2)
    more = weighted_sum([(1.0, share(tried.hard, tried.answered, z)), (-1.0, share(PRESENT.hard, PRESENT.answered, z))])
    return more, weighted_sum([(1.0, tried.agreement(z)), (-1.0, PRESENT.agreement(z)), (-0.1, more)])


@pytest.mark.parametrize("looks", range(5))
def test_each_look_has_its_own_interval_and_its_end_decides(looks: int) -> None:
    tried = counts(144 << looks, 160 << looks, hard=0.3)
    more, gain = figures(tried, looks)
    lenient = CanarySettings(least=40, most_uploads=1.0, most_loss=1.0)
    assert difference_text(gain) in judge(tried, PRESENT, lenient, checks=looks).message
    for most_uploads, most_loss, step, reason in (
        (1.0, -gain.low, "wait", ""),
        (1.0, -gain.low + 1e-9, "roll-out", canary.PROVEN),
        (more.low, 1.0, "roll-out", canary.PROVEN),
        (more.low - 1e-9, 1.0, "withdraw", canary.MORE_UPLOADS),
    ):
        settings = CanarySettings(least=40, most_uploads=most_uploads, most_loss=most_loss)
        found = judge(tried, PRESENT, settings, checks=looks)
        assert (found.step, found.reason) == (step, reason)
    assert difference_text(more) in found.message


def test_hard_frames_agree_and_audits_speak_for_the_easy_ones() -> None:
    low, high = wilson(40, 50, 1.5)
    found = VersionCounts(answered=100, hard=20, audited=50, agreed=40).agreement(1.5)
    assert (found.value, found.low, found.high) == pytest.approx((0.84, 0.2 + 0.8 * low, 0.2 + 0.8 * high))
    # counts of several workers may be of different moments
    assert VersionCounts(answered=10, audited=5, agreed=7).agreement(1.5).value == 1.0
    assert VersionCounts().agreement(1.5) == Estimate(0.5, 0.0, 1.0)


@pytest.mark.parametrize(
    ("now", "since"),
    [
        (VersionCounts(answered=130, hard=12, audited=9, agreed=7),
         VersionCounts(answered=30, hard=2, audited=4, agreed=3)),
        (VersionCounts(answered=100, hard=10, audited=6, agreed=5), VersionCounts(audited=1, agreed=1)),
        (VersionCounts(answered=130, hard=12, audited=5, agreed=4), VersionCounts(answered=30, hard=2)),
        (VersionCounts(answered=130, hard=12, audited=4, agreed=4), VersionCounts()),
        (VersionCounts(answered=99, hard=10, audited=9, agreed=4), VersionCounts()),
        (VersionCounts(answered=130, hard=9, audited=9, agreed=3), VersionCounts(answered=30, audited=4)),
        (VersionCounts(answered=70, hard=7, audited=4, agreed=4), VersionCounts()),
    ],
)  # fmt: skip
def test_counts_since_a_time_are_differences_and_never_negative(now: VersionCounts, since: VersionCounts) -> None:
    before = VersionCounts(answered=100, hard=10, audited=5, agreed=4)
    assert now.since(before) == since
    assert before.since(VersionCounts()) == before
