"""Every graded algorithm decides by its number exactly as its documented formula says, also where both are equal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halimede.errors import InvalidFieldError
from halimede.messages import Box, Prediction
from halimede.mining import Graded, Verdict, create, is_graded, judge, parameters_at
from halimede.mining.scores import EASIEST, HARDEST

#: few values, so that thresholds are met exactly
steps = st.integers(0, 20).map(lambda i: i / 20) | st.floats(0, 1)
boxes = st.lists(
    st.tuples(steps, st.integers(0, 60), st.integers(0, 60)).map(lambda b: Box(0, 0, b[1], b[2], b[0])), max_size=8
)
weights = st.lists(st.integers(0, 20), min_size=2, max_size=8).filter(any)
classes = weights.map(lambda values: [value / sum(values) for value in values])


def nats(p):
    return math.fsum(x * math.log(x) for x in p if x > 0)


#: the formulas of the docstrings, in their words
CLASSES = {
    "Margin": ("threshold_margin", lambda p, t: max(p) - sorted(p)[-2] < t),
    "MaxProbability": ("threshold_probability", lambda p, t: max(p) < t),
    "CrossEntropy": ("threshold_cross_entropy", lambda p, t: 1 + nats(p) / math.log(len(p)) < t),
    "Entropy": ("threshold_entropy", lambda p, t: -nats(p) / math.log(len(p)) >= t),
}
BOXES = {
    "Threshold": ("threshold", lambda s, b, t: math.fsum(s) / len(s) < t),
    "IBT": ("threshold_img", lambda s, b, t: sum(x <= 0.5 for x in s) / len(s) >= 1 - t),
    "UncertainBoxes": (
        "threshold_share", lambda s, b, t: sum(0.15 <= x < 0.5 for x in s) / sum(x >= 0.15 for x in s) >= t
    ),
}  # fmt: skip


def at(threshold):
    return repr(float(threshold))


@pytest.mark.parametrize("name", CLASSES)
@given(p=classes, threshold=steps)
def test_a_rule_for_classes_decides_as_its_formula(name, p, threshold):
    key, formula = CLASSES[name]
    miner = create(name, {key: at(threshold)})
    said = Prediction(probabilities=p)
    assert judge(miner, said).hard is miner(said) is formula(p, threshold)


@pytest.mark.parametrize("name", CLASSES)
@given(p=classes)
def test_a_threshold_that_is_met_exactly_is_decided_by_the_formula(name, p):
    key, formula = CLASSES[name]
    said = Prediction(probabilities=p)
    number = abs(create(name, {}).hardness(said))  # type: ignore[attr-defined]
    for threshold in (number, math.nextafter(number, 0), math.nextafter(number, 2)):
        if 0 <= threshold <= 1:
            assert judge(create(name, {key: at(threshold)}), said).hard is formula(p, threshold)


@pytest.mark.parametrize("name", BOXES)
@given(found=boxes.filter(bool), threshold=steps)
def test_a_rule_for_boxes_decides_as_its_formula(name, found, threshold):
    assume(name != "UncertainBoxes" or any(box.score >= 0.15 for box in found))
    key, formula = BOXES[name]
    miner = create(name, {key: at(threshold)})
    said = Prediction(boxes=found)
    assert judge(miner, said).hard is miner(said) is formula([box.score for box in found], found, threshold)


@given(found=boxes.filter(bool), count=st.integers(1, 9), score=steps)
def test_box_count_decides_as_its_formula(found, count, score):
    miner = create("BoxCount", {"threshold_count": str(count), "score": at(score), "empty": "easy"})
    assert miner(Prediction(boxes=found)) is (sum(box.score >= score for box in found) >= count)


@given(found=boxes.filter(bool), threshold=st.integers(0, 60) | st.floats(0, 60))
def test_smallest_box_decides_as_its_formula(found, threshold):
    miner = create("SmallestBox", {"threshold_side": at(threshold)})
    smallest = min(math.sqrt(box.x2 * box.y2) for box in found)
    assert miner(Prediction(boxes=found)) is (smallest < threshold)


def test_smallest_box_takes_corners_in_any_order_and_refuses_those_that_are_none():
    miner, easy = create("SmallestBox", {}), Verdict(hard=False, hardness=-40.0, cut=math.nextafter(-32, 0))
    assert judge(miner, Prediction(boxes=[Box(40, 40, 0, 0, 0.9)])) == easy
    for broken in (math.nan, None, "wide"):
        verdict = judge(miner, Prediction(boxes=[Box(0, 0, broken, 8, 0.9)]))
        assert verdict.hard
        assert "no numbers" in verdict.error or "NaN" in verdict.error


class TestEnergy:
    @given(p=classes, temperature=st.sampled_from([0.1, 0.3, 0.5, 0.9]))
    def test_of_probabilities_it_is_renyis_entropy(self, p, temperature):
        order = 1 / temperature
        renyi = math.log(math.fsum(x**order for x in p)) / (1 - order)
        miner = create("Energy", {"temperature": at(temperature)})
        energy = miner.hardness(Prediction(probabilities=p))  # type: ignore[attr-defined]
        assert energy == pytest.approx((1 - temperature) * renyi, abs=1e-9)
        assert -1e-9 <= energy <= (1 - temperature) * math.log(len(p)) + 1e-9

    @given(st.lists(st.floats(-50, 50), min_size=2, max_size=9), st.sampled_from([0.5, 1.0, 4.0]))
    def test_of_logits_it_is_the_papers(self, scores, temperature):
        miner = create("Energy", {"logits": "true", "temperature": at(temperature)})
        expected = -temperature * np.log(np.sum(np.exp(np.array(scores) / temperature)))
        assert miner.hardness(Prediction(probabilities=scores)) == pytest.approx(expected, abs=1e-9)  # type: ignore[attr-defined]

    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=9))
    def test_no_finite_logits_are_too_large(self, scores):
        assert judge(create("Energy", {"logits": "true"}), Prediction(probabilities=scores)).error is None

    def test_an_unseen_kind_of_sample_is_harder_than_a_known_one(self):
        miner, unseen, familiar = create("Energy", {"logits": "true"}), [0.2, 0.1], [9.0, 0.1]
        assert miner.hardness(Prediction(probabilities=unseen)) > miner.hardness(Prediction(probabilities=familiar))  # type: ignore[attr-defined]

    @pytest.mark.parametrize("scores", [[1.0], [], [math.nan, 1.0], [math.inf, 1.0]])
    def test_broken_logits_are_hard(self, scores):
        assert judge(create("Energy", {"logits": "true"}), Prediction(probabilities=scores)).error


@pytest.mark.parametrize("name", [*BOXES, "BoxCount", "SmallestBox"])
def test_frames_without_boxes_are_before_or_behind_all_others(name):
    for empty, hardness in (("hard", HARDEST), ("easy", EASIEST)):
        verdict = judge(create(name, {"empty": empty}), Prediction(boxes=[]))
        assert verdict.hardness == hardness
        assert verdict.hard is (empty == "hard")


@pytest.mark.parametrize("name", ["BoxCount", "SmallestBox", "UncertainBoxes"])
def test_what_looks_at_boxes_refuses_classes(name):
    verdict = judge(create(name, {}), Prediction(label="cat", score=0.9, probabilities=[0.9, 0.1]))
    assert verdict.hard
    assert "no boxes" in verdict.error


@pytest.mark.parametrize("name", [*CLASSES, *BOXES, "BoxCount", "SmallestBox", "Energy", "Random"])
def test_a_cut_is_given_back_as_the_parameters_that_make_it(name):
    miner = create(name, {})
    assert is_graded(miner)
    assert isinstance(miner, Graded)
    again = create(name, parameters_at(miner, miner.cut))
    assert again.cut == pytest.approx(miner.cut, abs=1e-12)  # type: ignore[attr-defined]
    for far in (-1e9, 1e9):
        create(name, parameters_at(miner, far))  # as near as parameters allow


@pytest.mark.parametrize("name", ["CloudOnly", "EdgeOnly"])
def test_no_cut_can_be_moved_where_nothing_is_compared(name):
    miner = create(name, {})
    assert not is_graded(miner)
    with pytest.raises(InvalidFieldError, match="whose threshold can be moved"):
        parameters_at(miner, 0.5)
