from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halimede.api.mining import BUILT_IN as DECLARED
from halimede.messages import Box, Prediction
from halimede.mining import MiningError, create

BUILT_IN = sorted(DECLARED.keys() - {"Agreement", "Learned", "TwoThresholds"})
DETECTORS = ("IBT", "Threshold", "BoxCount", "SmallestBox", "UncertainBoxes")

ratios = st.floats(0, 1)
score_lists = st.lists(st.floats(0, 1), min_size=1, max_size=30)
any_numbers = st.lists(st.floats() | st.integers() | st.sampled_from([None, "0.5", "high", np.float32(0.3), [1]]))


def text_of(number: float) -> str:
    return repr(float(number))


def with_boxes(scores: list) -> Prediction:
    return Prediction(boxes=[Box(0, 0, 1, 1, score) for score in scores])


def with_classes(probabilities: list) -> Prediction:
    return Prediction(probabilities=probabilities)


@given(any_numbers, st.sampled_from(["boxes", "probabilities", "score"]))
@example([math.nan], "boxes")
@example([math.inf], "score")
def test_any_prediction_is_judged_or_refused_with_a_mining_error(numbers, form):
    if form == "score":
        prediction = Prediction(score=numbers[0] if numbers else None)
    else:
        prediction = with_boxes(numbers) if form == "boxes" else with_classes(numbers)
    for name in BUILT_IN:
        with contextlib.suppress(MiningError):
            assert create(name, {})(prediction) in {True, False}


@given(st.lists(st.floats(0, 1), max_size=5), st.sampled_from([math.nan, -0.01, 1.01, math.inf, -math.inf, 87.0]))
def test_a_score_outside_its_range_is_never_easy_in_silence(scores, broken):
    for name in DETECTORS:
        with pytest.raises(MiningError, match=r"not in 0\.\.1"):
            create(name, {})(with_boxes([*scores, broken]))
    for name in ("IBT", "Threshold", "MaxProbability"):
        with pytest.raises(MiningError, match=r"not in 0\.\.1"):
            create(name, {})(Prediction(score=broken))
    for name in ("CrossEntropy", "Margin", "Entropy", "MaxProbability", "Energy"):
        with pytest.raises(MiningError, match=r"not in 0\.\.1"):
            create(name, {})(with_classes([*scores, broken]))


class TestIBT:
    @given(score_lists, ratios, ratios)
    def test_it_follows_the_formula(self, scores, threshold_img, threshold_box):
        miner = create("IBT", {"threshold_img": text_of(threshold_img), "threshold_box": text_of(threshold_box)})
        unsure = len([score for score in scores if score <= threshold_box])
        assert miner(with_boxes(scores)) is (unsure / len(scores) >= 1 - threshold_img)


class TestIBTAndThreshold:
    @pytest.mark.parametrize("name", ["IBT", "Threshold"])
    @given(score=ratios)
    def test_a_classification_counts_as_one_box_with_its_top_score(self, name, score):
        miner = create(name, {})
        assert miner(Prediction(label="cat", score=score)) is miner(with_boxes([score]))
        assert miner(with_classes([score, score / 2])) is miner(with_boxes([score]))

    @pytest.mark.parametrize("name", ["IBT", "Threshold"])
    def test_a_prediction_without_scores_is_refused(self, name):
        for prediction in (Prediction(value={"speed": 3}), Prediction(label="cat"), with_classes([])):
            with pytest.raises(MiningError, match="neither boxes nor a score"):
                create(name, {})(prediction)


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize(
    ("parameters", "hard"),
    [
        ({}, {True}),
        ({"empty": "hard"}, {True}),
        ({"empty": "easy"}, {False}),
        ({"empty": "sample(0)"}, {False}),
        ({"empty": "sample(1.0)"}, {True}),
        ({"empty": "sample(.5)"}, {True, False}),
    ],
)
def test_an_empty_detection_is_judged_by_its_own_rule(name, parameters, hard):
    miner = create(name, parameters)
    assert {miner(with_boxes([])) for _ in range(200)} == hard


@pytest.mark.parametrize("name", ["CrossEntropy", "Margin", "Entropy", "Energy"])
class TestClassProbabilities:
    @given(p=ratios)
    def test_a_single_one_counts_as_two_classes(self, name, p):
        assert create(name, {})(with_classes([p])) is create(name, {})(with_classes([p, 1 - p]))

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_numpy_arrays_are_read_like_lists(self, name, dtype):
        for values, hard in (([0.98, 0.01, 0.01], False), ([0.4, 0.3, 0.3], True)):
            assert create(name, {})(with_classes(np.array(values, dtype))) is hard
        with pytest.raises(MiningError):
            create(name, {})(with_classes(np.array([[0.9, 0.1]])))

    def test_rounding_over_one_is_no_error(self, name):
        assert not create(name, {})(with_classes([1.000001, -0.000001]))

    def test_boxes_are_refused_with_the_algorithms_that_take_them(self, name):
        for boxes in ([], [0.5]):
            with pytest.raises(MiningError, match="use IBT, Threshold or UncertainBoxes"):
                create(name, {})(with_boxes(boxes))

    def test_a_score_alone_is_refused(self, name):
        with pytest.raises(MiningError, match="no class probabilities"):
            create(name, {})(Prediction(label="cat", score=0.9))

    @pytest.mark.parametrize("values", [[0, 0, 0], [0.9, 0.9], [0.2, 0.3]])
    def test_independent_scores_are_refused(self, name, values):
        with pytest.raises(MiningError, match="instead of 1"):
            create(name, {})(with_classes(values))


class TestRandom:
    def test_the_share_of_hard_samples_is_the_ratio(self):
        miner = create("Random", {"random_ratio": "0.3", "seed": "7"})
        assert sum(miner(Prediction()) for _ in range(10_000)) == pytest.approx(3000, abs=200)

    def test_a_seed_repeats_its_choice(self):
        def choice(seed):
            miner = create("Random", {"seed": seed})
            return [miner(Prediction()) for _ in range(64)]

        assert choice("1") == choice("1") != choice("2")

    @pytest.mark.parametrize(("ratio", "hard"), [("0", False), ("1", True)])
    def test_none_and_all_are_exact(self, ratio, hard):
        miner = create("Random", {"random_ratio": ratio})
        assert {miner(Prediction()) for _ in range(500)} == {hard}


@pytest.mark.parametrize("prediction", [Prediction(), with_boxes([]), with_classes([math.nan])])
def test_cloud_only_and_edge_only_look_at_nothing(prediction):
    assert create("CloudOnly", {})(prediction) is True
    assert create("EdgeOnly", {})(prediction) is False
