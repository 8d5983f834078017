"""What calibration and evaluation measure by: a worker's own policy over a stream of known samples."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from halimede.mining import Verdict
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.pipeline.upload_policy.replay import replay


def graded(hardness: float, cut: float = 0.5) -> Verdict:
    return Verdict(hard=hardness >= cut, hardness=hardness, cut=cut)


def test_without_a_budget_mining_decides() -> None:
    played = replay([graded(0.4), graded(0.6)], target=None, cut=0.5)
    assert (played.up == [False, True]).all()
    assert played.cut == 0.5


def test_a_budget_takes_the_hardest_and_of_equally_hard_ones_any() -> None:
    spread = replay([graded(i / 200) for i in range(200)], target=0.2, cut=0.9)
    assert spread.up.mean() == pytest.approx(0.2, abs=0.01)
    assert spread.up[:, 170:].mean() > 0.95
    tied = replay([graded(1.0) for _ in range(200)], target=0.2, cut=0.9)
    assert tied.up.mean() == pytest.approx(0.2, abs=0.01)
    assert tied.up.mean(axis=0).max() < 0.9  # not always the same ones


def test_audits_are_sent_within_the_budget_and_their_answers_do_not_count() -> None:
    played = replay([graded(i / 200) for i in range(200)], target=0.2, cut=0.9, audit_share=0.1)
    assert played.sent.mean() == pytest.approx(0.2, abs=0.01)
    assert played.up.mean() == pytest.approx(0.2 - 0.08, abs=0.03)
    assert not (played.up & ~played.sent).any()


def test_yes_or_no_is_held_to_the_budget_and_the_typical_round_is_near_the_mean() -> None:
    played = replay([Verdict(hard=bool(i % 2)) for i in range(100)], target=0.3, cut=None)
    assert played.cut is None
    assert played.typical().mean() == pytest.approx(0.3, abs=0.02)
    assert not played.up[:, ::2].any()


def test_no_samples_are_no_decisions() -> None:
    played = replay([], target=0.2, cut=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert played.typical().shape == (0,)
    assert np.isfinite(replay([graded(0.1)], target=0.2, cut=0.5).sent).all()


@pytest.mark.parametrize(("samples", "rounds"), [(1, 10), (2000, 10), (2001, 9), (20_001, 1)])
def test_ten_rounds_count_or_as_many_as_have_twenty_thousand_samples(samples: int, rounds: int) -> None:
    assert replay([graded(0.1)] * samples, target=None, cut=0.5).up.shape == (rounds, samples)


def test_the_order_of_samples_is_the_same_each_time() -> None:
    verdicts = [graded(1.0)] * 50
    assert (replay(verdicts, target=0.2, cut=0.5).up == replay(verdicts, target=0.2, cut=0.5).up).all()


def test_no_round_counts_before_the_cut_of_a_budget_has_settled() -> None:
    verdicts = [graded(i / 60, cut=5.0) for i in range(60)]
    assert 8 <= replay(verdicts, target=0.2, cut=5.0).up[0].sum() <= 16


@pytest.mark.parametrize(("samples", "rounds"), [(100, 3), (150, 2), (299, 2), (300, 1), (301, 1)])
def test_three_hundred_samples_and_whole_rounds_come_before_those_that_count(
    samples: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, decide = [], UploadPolicy.decide
    monkeypatch.setattr(UploadPolicy, "decide", lambda *arguments: calls.append(1) or decide(*arguments))
    replay([graded(0.1)] * samples, target=0.2, cut=0.5)
    assert len(calls) == (rounds + 10) * samples
