"""Labels: when the big model's answer counts, and what happens if sources differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.calibration.temperature import calibrate
from halimede.learning_loop.labels import LabelSettings, SettledLabel, settle, sure_label, too_contested
from halimede.messages import Prediction
from halimede.stats.agreement import wilson


def cloud(*probabilities: float) -> Prediction:
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return Prediction(label=str(best), score=probabilities[best], probabilities=list(probabilities))


def test_a_confident_answer_is_a_label_and_an_uncertain_one_is_none() -> None:
    assert sure_label(cloud(0.02, 0.98), LabelSettings()) == "1"
    assert sure_label(cloud(0.45, 0.55), LabelSettings()) is None


def test_an_overconfident_model_is_sure_of_less_once_it_is_calibrated() -> None:
    assert sure_label(cloud(0.03, 0.97), LabelSettings(temperature=4.0)) is None


@pytest.mark.parametrize(
    "prediction",
    [None, Prediction(), Prediction(label="1"), Prediction(label="1", probabilities=[1.0]), cloud(math.nan, 0.9)],
)
def test_an_answer_without_a_confidence_is_no_label(prediction: Prediction | None) -> None:
    assert sure_label(prediction, LabelSettings()) is None


@pytest.mark.parametrize(
    ("sure", "persons", "found"),
    [
        (None, [], SettledLabel()),
        ("3", [], SettledLabel(label="3")),
        (None, ["5"], SettledLabel(label="5", by="person")),
        ("3", ["3"], SettledLabel(label="3", by="person", doubly=True)),
        ("3", ["5"], SettledLabel(by="person", doubly=True, contested=True)),
        ("3", ["5", "5"], SettledLabel(label="5", by="person", doubly=True)),
        (None, ["3", "5"], SettledLabel(by="person", doubly=True, contested=True)),
    ],
)
def test_labels_are_settled(sure: str | None, persons: list[str], found: SettledLabel) -> None:
    assert settle(sure, persons) == found


@pytest.mark.parametrize(
    ("sure", "persons", "label"),
    [
        ("3", ["5", "5", "3"], "5"),
        ("3", ["5", "5", "3", "3"], None),
        ("3", ["3", "5"], None),
        (None, ["5", "5"], "5"),
        (None, ["5", "5", "3"], "5"),
        (None, ["5", "5", "3", "4"], "5"),
        (None, ["5", "4", "3"], None),
    ],
)
def test_two_persons_settle_a_contested_label_if_no_other_has_as_many(
    sure: str | None, persons: list[str], label: str | None
) -> None:
    assert settle(sure, persons) == SettledLabel(label=label, by="person", doubly=True, contested=label is None)


def test_a_confidence_of_just_the_limit_is_enough() -> None:
    answer = cloud(0.1, 0.2, 0.7)
    confidence = float(calibrate(np.array([[0.1, 0.2, 0.7]]), 1.0).max())
    assert sure_label(answer, LabelSettings(confidence=confidence)) == "2"
    assert sure_label(answer, LabelSettings(confidence=confidence + 1e-9)) is None
    assert sure_label(answer, LabelSettings(confidence=1.0)) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_number_of_many_that_is_none_makes_no_label(bad: float) -> None:
    assert sure_label(Prediction(label="0", probabilities=[0.99, *[0.001] * 8, bad]), LabelSettings()) is None


def test_the_share_of_contested_labels_is_judged_by_the_lower_end_of_its_interval() -> None:
    both, differ = settle("3", ["3"]), settle("3", ["5"])
    assert too_contested([differ] * 10, LabelSettings()).startswith("10 of 10 samples")
    low = wilson(20, 50)[0]
    labels = [*[both] * 30, *[differ] * 20, *[settle("3", [])] * 500]
    assert not too_contested(labels, LabelSettings(most_contested=low))
    assert too_contested(labels, LabelSettings(most_contested=low - 1e-9)).startswith("20 of 50 samples")


@given(st.none() | st.sampled_from("012"), st.lists(st.sampled_from("012"), max_size=6))
def test_a_label_is_one_that_a_source_gave(sure: str | None, persons: list[str]) -> None:
    found = settle(sure, persons)
    assert found.label is None or found.label in {sure, *persons}
    assert not (found.contested and found.label)
    assert settle(sure, persons[::-1]) == found


def test_many_contested_labels_stop_the_loop_and_few_do_not() -> None:
    agreed = [settle("3", ["3"])] * 30
    assert too_contested([*agreed, *[settle("3", ["5"])] * 30], LabelSettings())
    assert not too_contested([*agreed, *[settle("3", ["5"])] * 2], LabelSettings())
    assert not too_contested([settle("3", [])] * 30, LabelSettings())
    assert not too_contested([settle("3", ["5"])] * 9, LabelSettings())
