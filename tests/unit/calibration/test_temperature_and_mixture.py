from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.calibration.mixture import fit_mixture
from halimede.calibration.temperature import calibrate, calibration_error, temperature
from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import CalibrationFile, MixtureRule
from halimede.mining.mixture import mix, pool, temper


def distributions(samples: int, classes: int, seed: int = 0, sharp: float = 2.0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, sharp, (samples, classes))
    powers = np.exp(logits)
    return powers / powers.sum(axis=1, keepdims=True)


def drawn(rows: np.ndarray, seed: int = 1) -> np.ndarray:
    chance = np.random.default_rng(seed).random(len(rows))
    return (rows.cumsum(axis=1) < chance[:, None]).sum(axis=1).clip(max=rows.shape[1] - 1)


class TestTemperature:
    def test_of_a_model_that_is_too_sure_is_over_one_and_mends_that(self):
        honest = distributions(4000, 5)
        truth = drawn(honest)
        boastful = calibrate(honest, 0.4)
        warm = temperature(boastful, truth)
        assert warm == pytest.approx(2.5, rel=0.1)
        assert calibration_error(calibrate(boastful, warm), truth) < calibration_error(boastful, truth) / 3

    def test_of_nothing_is_one(self):
        assert temperature(np.zeros((0, 3)), np.zeros(0, np.int64)) == 1.0


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=8),
    st.floats(0.05, 20),
    st.floats(0.05, 20),
    st.sampled_from(["product", "sum"]),
    st.floats(0.1, 1),
)
def test_a_worker_mixes_one_sample_by_temperatures_as_calibration_fits_them(values, warm, warmer, kind, weight):
    total = sum(values)
    small = [value / total for value in values] if total > 1e-6 else [1 / len(values)] * len(values)
    big = small[::-1]
    rule = MixtureRule(kind=kind, edge=weight, cloud=1 - weight / 2)
    one = pool(rule, temper(small, warm), temper(big, warmer))
    low, high = (calibrate(np.array([each]), heat)[0] for each, heat in ((small, warm), (big, warmer)))
    assert temper(small, warm) == pytest.approx(low, abs=1e-9)
    mixed = rule.edge * low + rule.cloud * high if kind == "sum" else low**rule.edge * high**rule.cloud
    assert one == pytest.approx(mixed / mixed.sum(), abs=1e-9)


class TestFittingAMixture:
    def test_two_models_that_err_apart_are_mixed_and_know_more_than_either(self):
        truth = np.random.default_rng(0).integers(0, 4, 3000)
        sure = 1.5 * np.eye(4)[truth]
        small, big = (calibrate(distributions(3000, 4, seed, 1.2) * np.exp(sure), 1.0) for seed in (1, 2))
        small, big = (rows / rows.sum(axis=1, keepdims=True) for rows in (small, big))
        found = fit_mixture(small[:1500], big[:1500], truth[:1500])
        assert found.rule
        assert found.corrected > found.spoiled
        rows = zip(small[1500:].tolist(), big[1500:].tolist(), strict=True)
        mixed = np.array([pool(found.rule, *row) for row in rows]).argmax(axis=1)
        assert (mixed == truth[1500:]).mean() > (big[1500:].argmax(axis=1) == truth[1500:]).mean() + 0.02

    def test_where_the_small_model_knows_nothing_more_the_big_ones_word_stands(self):
        truth = np.random.default_rng(0).integers(0, 4, 500)
        big = calibrate(np.eye(4)[truth] * 0.9 + 0.025, 1.0)
        assert fit_mixture(distributions(500, 4), big, truth).rule is None

    def test_of_a_handful_of_samples_there_is_none(self):
        assert fit_mixture(distributions(10, 3), distributions(10, 3, 1), np.zeros(10, np.int64)).rule is None


EDGE = Prediction(label="a", score=0.9, probabilities=[0.9, 0.1])
CLOUD = Prediction(label="b", score=0.6, probabilities=[0.4, 0.6])


class TestMixing:
    rule = CalibrationFile(service="s", labels=["a", "b"], mixture=MixtureRule(edge=0.5, cloud=0.5))

    def test_two_answers_become_one_with_the_label_of_its_best_class(self):
        mixed = mix(self.rule, EDGE, CLOUD)
        assert mixed.label == "a"
        assert mixed.score == pytest.approx(max(mixed.probabilities))

    @pytest.mark.parametrize(
        ("edge", "changes"),
        [
            (Prediction(boxes=[Box(0, 0, 1, 1, 0.5, "a")]), {}),
            (Prediction(value={"any": 1}), {}),
            (Prediction(label="a", probabilities=[0.2, 0.3, 0.5]), {}),
            (EDGE, {"labels": ["b", "a"]}),
            (EDGE, {"labels": ["cat", "dog"]}),
            (EDGE, {"mixture": None}),
        ],
        ids=["boxes", "a value", "more classes", "labels in another order", "other labels", "no mixture"],
    )
    def test_what_cannot_be_mixed_leaves_the_clouds_answer_as_it_is(self, edge, changes):
        assert mix(msgspec.structs.replace(self.rule, **changes), edge, CLOUD) is CLOUD
