from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from halimede.calibration import thresholds
from halimede.calibration.measurement import bootstrap, mean_interval, share
from halimede.calibration.thresholds import UploadPath, cut_for_budget, cut_for_risk, share_in_time


class TestBudget:
    @given(st.lists(st.floats(-10, 10), min_size=1, max_size=60), st.floats(0, 1))
    def test_no_other_cut_is_nearer_to_the_share_that_is_wanted(self, values, ratio):
        hardness = np.array(values)
        reached = (hardness >= cut_for_budget(hardness, ratio)).mean()
        possible = [(hardness >= cut).mean() for cut in (*values, math.inf)]
        assert abs(reached - ratio) <= min(abs(each - ratio) for each in possible) + 1e-12

    def test_samples_that_a_rule_fails_at_go_up_and_count(self):
        hardness = np.array([math.inf, math.inf, 0.4, 0.3, 0.2, 0.1, 0.0, -0.1, -0.2, -0.3])
        assert (hardness >= cut_for_budget(hardness, 0.3)).sum() == 3

    def test_the_cut_lies_between_two_samples(self):
        assert cut_for_budget(np.array([0.0, 1.0, 2.0, 3.0]), 0.5) == pytest.approx(1.5)


class TestRisk:
    @given(st.integers(1, 400), st.floats(0.005, 0.5), st.floats(0.5, 0.99))
    def test_so_many_losses_are_allowed_as_reject_the_limit(self, samples, limit, confidence):
        allowed = thresholds.losses_allowed(samples, limit, confidence)
        assert allowed == -1 or binom.cdf(allowed, samples, limit) <= 1 - confidence + 1e-9
        assert allowed == samples or binom.cdf(allowed + 1, samples, limit) > 1 - confidence - 1e-9

    def test_too_few_samples_show_nothing(self):
        assert thresholds.least_samples(0.02, 0.95) == 149
        assert cut_for_risk(np.zeros(148), np.zeros(148, bool), 0.02, 0.95) is None
        assert cut_for_risk(np.zeros(149), np.zeros(149, bool), 0.02, 0.95) == math.inf

    def test_no_risk_at_all_cannot_be_shown(self):
        assert cut_for_risk(np.zeros(1000), np.zeros(1000, bool), 0.0) is None

    def test_the_true_risk_is_over_the_limit_as_rarely_as_was_asked_for(self):
        chance, limit, held = np.random.default_rng(0), 0.05, 0
        for _ in range(400):
            hardness = chance.random(300)
            loss = chance.random(300) < (1 - hardness) * 0.2  # P(loss and kept at cut c) = 0.2 (c - c^2 / 2)
            cut = min(cut_for_risk(hardness, loss, limit, 0.9), 1.0)
            held += 0.2 * (cut - cut**2 / 2) <= limit
        assert held / 400 >= 0.9


class TestDeadline:
    way = UploadPath(edge_ms=5, cloud_ms=10, link_ms=20, link_kbps=1000)

    def test_samples_that_are_too_large_for_the_time_stay(self):
        sizes = np.array([1000.0] * 6 + [100_000.0] * 4)  # 8 ms, and 800 ms
        assert share_in_time(sizes, self.way, 100) == pytest.approx(0.6)

    def test_nothing_is_back_before_the_link_is(self):
        assert share_in_time(np.full(5, 10.0), self.way, 30) == 0

    def test_of_many_a_second_fewer_fit_and_never_more_than_the_link_carries(self):
        sizes = np.full(100, 1000.0)
        busy = UploadPath(edge_ms=5, cloud_ms=10, link_ms=20, link_kbps=1000, per_second=500)
        assert 0.1 < share_in_time(sizes, busy, 100) < 0.2  # 100 a second is all that the model can do
        assert share_in_time(sizes, self.way, 100) == 1.0


class TestIntervals:
    def test_a_share_of_all_has_an_interval_below_it(self):
        value, low, high = share(np.ones(50, bool), np.arange(50))
        assert (value, high) == (1.0, 1.0)
        assert 0.9 < low < 0.95

    def test_the_bootstrap_of_a_mean_is_near_to_theory(self):
        values = np.random.default_rng(0).normal(3, 1, 400)
        low, high = bootstrap(lambda drawn: float(values[drawn].mean()), np.arange(400))
        assert low == pytest.approx(values.mean() - 0.098, abs=0.02)
        assert high == pytest.approx(values.mean() + 0.098, abs=0.02)

    def test_the_mean_of_a_few_runs_has_students_interval(self):
        mean, _, high = mean_interval(np.array([1.0, 2.0, 3.0]))
        assert mean == 2.0
        assert high - mean == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
        assert mean_interval(np.array([1.0]))[1] == -math.inf
