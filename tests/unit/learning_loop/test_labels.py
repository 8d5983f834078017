"""Labels: when the big model's answer counts, and what happens if sources differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.calibration.temperature import calibrate
from halimede.learning_loop.labels import LabelSettings, SettledLabel, settle, sure_label, why_contested
from halimede.messages import Prediction
from halimede.stats.agreement import wilson


def cloud(*probabilities: float) -> Prediction:
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return Prediction(label=str(best), score=probabilities[best], probabilities=list(probabilities))


@pytest.mark.parametrize(
    ("prediction", "temperature", "label"),
    [
        (cloud(0.02, 0.98), 1.0, "1"),
        (cloud(0.45, 0.55), 1.0, None),
        (cloud(0.03, 0.97), 4.0, None),  # it is overconfident
        *((answer, 1.0, None) for answer in (None, Prediction(), Prediction(label="1"), cloud(math.nan, 0.9))),
        (Prediction(label="1", probabilities=[1.0]), 1.0, None),
        (Prediction(label="0", probabilities=[0.99, *[0.001] * 8, math.nan]), 1.0, None),
        (Prediction(label="0", probabilities=[0.99, *[0.001] * 8, math.inf]), 1.0, None),
    ],
)
def test_only_a_confident_answer_is_a_label(prediction: Prediction | None, temperature: float, label: str) -> None:
    assert sure_label(prediction, LabelSettings(temperature=temperature)) == label


def doubly(label: str | None) -> SettledLabel:
    return SettledLabel(label=label, by="person", doubly=True, contested=label is None)


@pytest.mark.parametrize(
    ("sure", "persons", "settled"),
    [
        (None, "", SettledLabel()),
        ("3", "", SettledLabel(label="3")),
        (None, "5", SettledLabel(label="5", by="person")),
        ("3", "3", doubly("3")),
        ("3", "5", doubly(None)),
        (None, "35", doubly(None)),
        # two persons settle a contested label if no other one has as many
        ("3", "55", doubly("5")),
        ("3", "553", doubly("5")),
        ("3", "5533", doubly(None)),
        ("3", "35", doubly(None)),
        (None, "55", doubly("5")),
        (None, "553", doubly("5")),
        (None, "5534", doubly("5")),
        (None, "543", doubly(None)),
    ],
)
def test_labels_are_settled(sure: str | None, persons: str, settled: SettledLabel) -> None:
    assert settle(sure, list(persons)) == settled


def test_a_confidence_of_just_the_limit_is_enough() -> None:
    answer = cloud(0.1, 0.2, 0.7)
    confidence = float(calibrate(np.array([[0.1, 0.2, 0.7]]), 1.0).max())
    assert sure_label(answer, LabelSettings(confidence=confidence)) == "2"
    assert sure_label(answer, LabelSettings(confidence=confidence + 1e-9)) is None
    assert sure_label(answer, LabelSettings(confidence=1.0)) is None


def test_the_share_of_contested_labels_is_judged_by_the_lower_end_of_its_interval() -> None:
    both, differ = settle("3", ["3"]), settle("3", ["5"])
    assert why_contested([differ] * 10, LabelSettings()).startswith("10 of 10 samples")
    assert not why_contested([differ] * 9, LabelSettings())
    low = wilson(20, 50)[0]
    labels = [*[both] * 30, *[differ] * 20, *[settle("3", [])] * 500]
    assert not why_contested(labels, LabelSettings(most_contested=low))
    assert why_contested(labels, LabelSettings(most_contested=low - 1e-9)).startswith("20 of 50 samples")


@given(st.none() | st.sampled_from("012"), st.lists(st.sampled_from("012"), max_size=6))
def test_a_label_is_one_that_a_source_gave(sure: str | None, persons: list[str]) -> None:
    found = settle(sure, persons)
    assert found.label is None or found.label in {sure, *persons}
    assert not (found.contested and found.label)
    assert settle(sure, persons[::-1]) == found
