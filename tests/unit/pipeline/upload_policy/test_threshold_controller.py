"""The share of samples that go up is the target's: in the long run, in every window, and through drift."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.pipeline.upload_policy.budget import ThresholdController, initial_debt

SAMPLES, WINDOW, TARGET = 20_000, 2_000, 0.2


DIFFICULTIES: dict[str, Callable[[random.Random, int], float]] = {
    "slowly harder": lambda chance, i: min(1.0, max(0.0, chance.gauss(0.3 + 0.3 * i / SAMPLES, 0.15))),
    "at once": lambda chance, i: chance.betavariate(2, 8) if (i // 5000) % 2 == 0 else chance.betavariate(8, 2),
    "in waves": lambda chance, i: chance.gauss(math.sin(i / 1500), 0.3),
    "with two values": lambda chance, i: float(chance.random() < 0.1 + 0.5 * i / SAMPLES),
    "with one value": lambda _, __: 0.0,
    "ever harder": lambda _, i: float(i),
    "ever easier": lambda _, i: -float(i),
}


@pytest.mark.parametrize("difficulty", list(DIFFICULTIES.values()), ids=list(DIFFICULTIES))
def test_the_target_is_held_in_the_long_run_and_in_every_window(
    difficulty: Callable[[random.Random, int], float],
) -> None:
    chance = random.Random(7)
    steering = ThresholdController(TARGET, cut=0.5)
    sent = list(accumulate((steering.steer(difficulty(chance, i)) for i in range(SAMPLES)), initial=0))
    windows = [(sent[i + WINDOW] - sent[i]) / WINDOW for i in range(SAMPLES - WINDOW + 1)]
    assert abs(sent[-1] / SAMPLES - TARGET) < 0.003
    assert max(abs(share - TARGET) for share in windows) < 0.03


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=400), st.floats(0.0, 1.0))
def test_whatever_comes_the_debt_stays_bounded(hardnesses: list[float], target: float) -> None:
    steering = ThresholdController(target, cut=0.0)
    sent = sum(steering.steer(hardness) for hardness in hardnesses)
    assert sent - target * len(hardnesses) == pytest.approx(steering.debt, abs=1e-6)
    assert -(1 - target) / 0.02 - 1 <= steering.debt <= target / 0.02 + 1


@pytest.mark.parametrize(("target", "sent"), [(0.0, 0), (1.0, 1000)])
def test_nothing_and_everything_are_targets_too(target: float, sent: int) -> None:
    chance, steering = random.Random(1), ThresholdController(target, cut=0.5)
    assert sum(steering.steer(chance.random()) for _ in range(1000)) == sent


def test_a_worker_that_starts_anew_pays_what_its_predecessor_owed() -> None:
    chance = random.Random(11)
    spent = ThresholdController(TARGET, cut=0.0, debt=initial_debt(TARGET, uploaded=300, samples=1000))
    assert not any(spent.steer(chance.random()) for _ in range(20))
    saved = ThresholdController(TARGET, cut=0.8, debt=initial_debt(TARGET, uploaded=100, samples=1000))
    assert sum(saved.steer(chance.random()) for _ in range(500)) > 500 * TARGET + 20


def test_debts_are_bounded_where_nothing_or_everything_goes_up() -> None:
    steering = ThresholdController(TARGET, cut=0.5)
    for _ in range(1000):
        steering.count(goes=True)
    assert (steering.debt, steering.cut) == (pytest.approx(TARGET / 0.02 + 1), math.inf)
    for _ in range(1000):
        steering.refund()
    assert (steering.debt, steering.cut) == (pytest.approx((TARGET - 1) / 0.02 - 1), -math.inf)


def test_the_first_cut_counts_until_fifty_hardnesses_are_known_and_the_last_three_hundred_after_that() -> None:
    steering = ThresholdController(TARGET, cut=0.5)
    for _ in range(49):
        steering.steer(0.1)
        steering.debt = 0.0
    assert steering.cut == 0.5
    steering.steer(0.1)
    assert steering.cut == 0.1
    for i in range(300):
        steering.steer(10 + i)
    steering.debt = 0.0
    assert steering.cut == 10 + 0.8 * 300 - 1


def test_of_equally_hard_samples_each_fifth_goes_up_and_never_two_in_a_row() -> None:
    steering = ThresholdController(TARGET, cut=0.5)
    sent = [steering.steer(0.5) for _ in range(200)][100:]
    assert [number for number, goes in enumerate(sent) if goes] == list(range(sent.index(True), 100, 5))


def test_before_fifty_hardnesses_are_known_no_sample_goes_up_while_there_is_a_debt() -> None:
    steering = ThresholdController(0.25, cut=0.5)
    assert [steering.steer(0.6) for _ in range(6)] == [True, False, False, False, True, False]
    steering.refund()
    assert (steering.debt, steering.cut) == (-0.5, 0.5)
    steering.debt = 0.0
    assert steering.steer(0.5), "a sample at the cut, without a debt"
    assert not steering.steer(0.9)
    steering.spend()
    assert (steering.debt, steering.used, steering.cut) == (1.5, math.inf, math.inf)
