"""What sources say, and what it makes together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.calibration.temperature import calibrate
from halimede.messages import Box, Prediction
from halimede.multiedge.fusion.class_distribution import RULES, align_classes, read

ONES = np.ones(3)
distributions = st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda v: sum(v) > 0.01)


def rows(*given_: list[float]) -> np.ndarray:
    return calibrate(np.array(given_), np.ones(len(given_)))


def said(probabilities: list[float], labels: list[str] | None = None) -> Prediction:
    best = int(np.argmax(probabilities))
    names = labels or [str(i) for i in range(len(probabilities))]
    value = {"labels": labels} if labels else None
    return Prediction(label=names[best], score=probabilities[best], probabilities=probabilities, value=value)


def test_two_that_are_unsure_outvote_one_and_a_sure_one_outweighs_them():
    views = rows([0.4, 0.6, 0], [0.45, 0.55, 0], [0.99, 0.01, 0])
    assert {name: rule(views, ONES)[0] for name, rule in RULES.items()} == {"vote": 1, "product": 0, "max": 0}


def test_weights_count():
    views = rows([0.9, 0.1, 0], [0.9, 0.1, 0], [0.1, 0.9, 0])
    for rule in RULES.values():
        assert [rule(views, np.array(weights))[0] for weights in ([1.0, 1, 1], [1, 1, 9.0], [0, 0, 1.0])] == [0, 1, 1]


def test_of_equal_votes_the_surer_voters_win():
    assert RULES["vote"](rows([0.6, 0.4, 0], [0.1, 0.9, 0]), np.ones(2))[0] == 1
    assert RULES["vote"](rows([0.9, 0.1, 0], [0.4, 0.6, 0]), np.ones(2))[0] == 0


def test_the_product_is_that_of_independent_sources():
    _, fused = RULES["product"](rows([0.6, 0.3, 0.1], [0.5, 0.2, 0.3]), np.ones(2))
    assert fused == pytest.approx(np.array([0.30, 0.06, 0.03]) / 0.39, abs=1e-3)


def test_no_source_alone_can_say_that_a_class_is_impossible():
    assert RULES["product"](rows([0, 1, 0], *[[0.999, 0.001, 0]] * 3), np.ones(4))[0] == 0


def test_temperature_makes_less_sure_or_surer_and_changes_no_choice():
    hot, cold = calibrate(np.array([[0.8, 0.15, 0.05]] * 2), np.array([3, 0.3]))
    assert 1 / 3 < hot.max() < 0.8 < cold.max() < 1
    assert hot.argmax() == cold.argmax() == 0


@given(st.lists(st.tuples(distributions, st.floats(0.01, 100), st.floats(0.05, 20)), min_size=1, max_size=8))
def test_every_rule_gives_a_distribution_whose_best_class_some_source_named_possible(sources):
    views, weights, temperatures = map(np.array, zip(*sources, strict=True))
    views = calibrate(views / views.sum(axis=1, keepdims=True), temperatures)
    for rule in RULES.values():
        best, fused = rule(views, weights)
        assert fused.sum() == pytest.approx(1)
        assert (fused >= 0).all()
        assert 0 <= best < 3


def test_models_whose_classes_stand_in_another_order_are_compared_by_name():
    answers = said([0.7, 0.2, 0.1], ["a", "b", "c"]), said([0.5, 0.4, 0.1], ["c", "a", "d"])
    names, matrix = align_classes([*map(read, answers)])
    assert names == ("a", "b", "c", "d")
    assert matrix == pytest.approx(np.array([[0.7, 0.2, 0.1, 0], [0.4, 0, 0.5, 0.1]]))


def test_a_label_and_a_score_leave_the_rest_to_the_classes_that_others_name():
    answers = Prediction(label="b", score=0.8), said([0.5, 0.3, 0.2], ["a", "b", "c"])
    names, matrix = align_classes([*map(read, answers)])
    assert dict(zip(names, matrix[0], strict=True)) == pytest.approx({"b": 0.8, "a": 0.1, "c": 0.1})
    names, matrix = align_classes([read(Prediction(label="b", score=0.8))])
    assert names == ("b",)
    assert matrix[0] == pytest.approx([1])


@pytest.mark.parametrize(
    ("prediction", "names"),
    [
        (Prediction(boxes=[Box(0, 0, 1, 1, 0.5)]), None),
        (Prediction(value={"people": 3}), None),
        (Prediction(probabilities=[0.2, 0.8]), ("0", "1")),
        (Prediction(probabilities=[0.0, 0.0], label="cat"), ("cat",)),
        (Prediction(probabilities=[-1.0, 2.0], label="1"), ("0", "1")),
        (Prediction(probabilities=[1e308, 1e308], label="0"), ("0", "1")),
        # nobody says how the others are called: only the label can be compared
        (Prediction(probabilities=[0.2, 0.8], label="cat"), ("cat",)),
        (Prediction(probabilities=[0.2, 0.8], label="cat", value={"labels": ["cat", "cat"]}), ("cat",)),
        (Prediction(probabilities=[0.2, 0.8], label="cat", value={"labels": [1, 2]}), ("cat",)),
        (Prediction(label="cat", score=7.0), ("cat",)),
    ],
)
def test_whatever_is_said_is_read_or_left_out(prediction, names):
    opinion = read(prediction)
    assert (opinion and opinion.names) == names
    if opinion:
        assert opinion.probabilities.sum() + opinion.remainder == pytest.approx(1)
