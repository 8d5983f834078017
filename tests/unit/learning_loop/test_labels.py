"""Labels: when the big model's answer counts, and what happens if sources differ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.learning_loop.labels import LabelSettings, SettledLabel, settle, sure_label, too_contested
from halimede.messages import Prediction


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
