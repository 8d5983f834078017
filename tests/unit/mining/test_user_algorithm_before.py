from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from halimede.api.mining import AFTER, BEFORE
from halimede.errors import InvalidFieldError
from halimede.messages import Prediction
from halimede.mining import PreInferenceMiner, Verdict, check_mode, create, judge, judge_sample
from halimede.mining.margin import Margin
from halimede.mining.sharpness import variance_of_laplacian

MODE = "spec.edgeWorker.hardExampleMining.mode"
PICTURE = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)


@pytest.mark.parametrize("name", ["Random", "CloudOnly", "EdgeOnly"])
def test_what_looks_at_nothing_fits_both_modes(name):
    miner = create(name, {}, mode=BEFORE)
    check_mode(miner, AFTER)
    assert isinstance(miner, PreInferenceMiner)
    assert judge_sample(miner, PICTURE).error is None


@pytest.mark.parametrize("name", ["Margin", "IBT", "Entropy", "Energy", "BoxCount"])
def test_what_looks_at_predictions_cannot_judge_before_them(name):
    verdict = judge_sample(create(name, {}), PICTURE)
    assert verdict.hard
    assert "before inference" in verdict.error


def test_what_looks_at_samples_cannot_judge_predictions():
    verdict = judge(create("Sharpness", {}), Prediction(score=0.99))
    assert verdict == Verdict(hard=True, error=f"Sharpness looks at the sample itself: set mode to {BEFORE}")


def test_another_mode_is_refused_with_the_possible_ones():
    with pytest.raises(InvalidFieldError, match=f"^{MODE}: .*use one of {AFTER}, {BEFORE}"):
        create("Random", {}, mode="mining")


def test_random_draws_the_same_share_before_inference_as_after():
    before, after = create("Random", {"seed": "5"}), create("Random", {"seed": "5"})
    said = [judge_sample(before, PICTURE) for _ in range(1000)]
    assert said == [judge(after, Prediction()) for _ in range(1000)]
    assert sum(verdict.hard for verdict in said) == pytest.approx(300, abs=60)


class TestSharpness:
    def test_blur_makes_a_picture_hard(self):
        miner = create("Sharpness", {"threshold_sharpness": "500"})
        blurred = Image.fromarray(PICTURE).filter(ImageFilter.GaussianBlur(3))
        assert not judge_sample(miner, PICTURE).hard
        verdict = judge_sample(miner, np.asarray(blurred))
        assert (verdict.hard, verdict.error) == (True, None)

    @given(st.integers(3, 12), st.integers(3, 12), st.integers(0, 4), st.integers(0, 2**32 - 1))
    def test_it_is_the_variance_of_the_four_neighbours_laplacian(self, height, width, channels, seed):
        shape = (height, width, channels) if channels else (height, width)
        picture = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
        grey = picture[..., :3].mean(axis=2) if channels else picture.astype(float)
        kernel = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
        values = [(grey[y : y + 3, x : x + 3] * kernel).sum() for y in range(height - 2) for x in range(width - 2)]
        assert variance_of_laplacian(picture) == pytest.approx(np.var(values), rel=1e-4, abs=1e-3)

    def test_a_threshold_that_is_met_exactly_is_easy(self):
        sharp = variance_of_laplacian(PICTURE)
        for threshold, hard in ((sharp, False), (math.nextafter(sharp, math.inf), True)):
            assert judge_sample(create("Sharpness", {"threshold_sharpness": repr(threshold)}), PICTURE).hard is hard

    @pytest.mark.parametrize(
        "sample",
        [
            np.zeros(64, np.float32), np.zeros((2, 9), np.uint8), np.zeros((0, 0, 3), np.uint8), np.zeros((9, 9), bool),
            np.zeros((1, 9, 9, 3)), np.full((9, 9), math.nan, np.float32), None, "picture",
        ],
    )  # fmt: skip
    def test_what_is_no_picture_is_hard(self, sample):
        verdict = judge_sample(create("Sharpness", {}), sample)
        assert verdict.hard
        assert verdict.error


@dataclass
class Own:
    """A user's own, which knows nothing of numbers."""

    error: bool = False

    def __call__(self, prediction):
        return False

    def foresee(self, image):
        if self.error:
            raise IndexError("no such pixel")
        return np.bool_(image.mean() < 100)


def test_an_own_algorithm_needs_no_more_than_a_method():
    check_mode(Own(), BEFORE)
    check_mode(type("OwnMargin", (Margin,), {"foresee": Own.foresee})(), BEFORE)
    assert judge_sample(Own(), np.zeros((4, 4))) == Verdict(hard=True)
    assert judge_sample(Own(), np.full((4, 4), 200)) == Verdict(hard=False)
    assert judge_sample(Own(error=True), PICTURE) == Verdict(hard=True, error="IndexError: no such pixel")
