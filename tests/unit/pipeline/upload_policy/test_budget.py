"""What can be counted as hard or easy only is held to the budget as well, and audits have to fit into it."""

from __future__ import annotations

import math
import random

import pytest

from halimede.errors import InvalidFieldError
from halimede.mining import Verdict
from halimede.pipeline.upload_policy.budget import Budget, check_shares

HARD, EASY = Verdict(hard=True), Verdict(hard=False)


def test_with_fewer_hard_samples_than_budget_all_of_them_go_and_no_easy_one() -> None:
    chance, budget = random.Random(2), Budget(0.5)
    verdicts = [HARD if chance.random() < 0.1 else EASY for _ in range(2000)]
    assert [budget.admits(verdict)[0] for verdict in verdicts] == [verdict.hard for verdict in verdicts]


def test_what_was_saved_in_a_quiet_time_is_not_spent_at_once() -> None:
    budget = Budget(0.2)
    for _ in range(10_000):
        budget.admits(EASY)
    burst = [budget.admits(HARD)[0] for _ in range(1000)]
    assert sum(burst) < 1000 * 0.2 + 60


def test_a_graded_miner_whose_sample_failed_is_held_to_the_same_budget() -> None:
    chance, budget, sent = random.Random(3), Budget(0.2, 0.8), 0
    for _ in range(5000):
        failed = chance.random() < 0.3
        hardness = chance.random()
        verdict = Verdict(hard=True, error="odd") if failed else Verdict(hardness > 0.8, None, hardness, 0.8)
        sent += budget.admits(verdict)[0]
    assert sent / 5000 == pytest.approx(0.2, abs=0.005)


def test_the_cut_that_decided_is_told() -> None:
    budget = Budget(0.5, 0.3)
    assert budget.admits(Verdict(hard=True, hardness=0.4, cut=0.3)) == (True, 0.3)
    for hardness in (None, math.inf, -math.inf, math.nan):
        assert budget.admits(Verdict(hard=False, hardness=hardness, cut=0.3)) == (False, None)
    assert budget.cut == 0.3
    assert budget.admits(HARD) == (True, None)
    assert Budget(0.5).cut is None
    assert Budget(0.5).admits(Verdict(hard=False, hardness=1.0)) == (False, None)


@pytest.mark.parametrize(("target", "goes"), [(0.0, [False] * 4), (0.5, [True, False, True, False]), (1.0, [True] * 4)])
def test_each_hard_sample_goes_up_once_there_is_no_debt(target: float, goes: list[bool]) -> None:
    budget = Budget(target)
    assert [budget.admits(HARD)[0] for _ in range(4)] == goes


def test_what_nobody_here_could_answer_goes_up_and_is_paid_for_later() -> None:
    budget = Budget(0.2, 0.5)
    for _ in range(10):
        budget.count_forced()
    assert not any(budget.admits(Verdict(hard=True, hardness=1.0, cut=0.5))[0] for _ in range(10))


def test_audits_beyond_the_budget_are_refused_with_what_to_do() -> None:
    check_shares(None, 1.0)
    check_shares(0.1, 0.1)
    with pytest.raises(InvalidFieldError, match=r"AUDIT_SHARE.*TARGET_UPLOAD_RATIO"):
        check_shares(0.05, 0.1)
