"""Rules under Sedna's names: a CR's parameters are text, broken answers are hard, a script's own class is asked."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from halimede.compat.sedna.algorithms import hard_example_mining as hem
from halimede.compat.sedna.common.class_factory import ClassFactory, ClassType, post_processing
from halimede.compat.sedna.core.joint_inference import JointInference
from halimede.compat.sedna.core.joint_inference.joint_inference import rule_of
from halimede.compat.sedna.unsupported import NotThereError
from halimede.errors import InvalidFieldError

SURE, UNSURE = [[0, 0, 1, 1, 0.9, 1]], [[0, 0, 1, 1, 0.3, 1], [0, 0, 1, 1, 0.4, 1]]


@pytest.mark.parametrize(
    ("rule", "easy", "hard"),
    [
        (hem.ThresholdFilter(), SURE, UNSURE),
        (hem.ThresholdFilter("0.5"), SURE, UNSURE),
        (hem.ThresholdFilter(threshold=0.95), [[0, 0, 1, 1, 0.96]], SURE),
        (hem.IBTFilter(0.5, 0.5), SURE, UNSURE),
        (hem.IBTFilter(threshold_img="0.9", threshold_box="0.5"), SURE, [*SURE, *UNSURE]),
        (hem.CrossEntropyFilter(), [0.98, 0.01, 0.01], [0.4, 0.3, 0.3]),
        (hem.CrossEntropyFilter(), [1.0, 0.0], [0.5, 0.5]),
        (hem.EdgeOnlyFilter(), UNSURE, None),
        (hem.CloudOnlyFilter(), None, SURE),
        (hem.RandomFilter(0), object(), None),
        (hem.RandomFilter("1"), None, object()),
    ],
)
def test_sednas_rules_take_sednas_arguments_and_answers(rule: Any, easy: Any, hard: Any) -> None:
    assert easy is None or rule(easy) is False
    assert hard is None or rule(hard) is True
    assert easy is None or isinstance(rule, hem.RandomFilter) or rule(np.asarray(easy)) is False


@pytest.mark.parametrize("broken", [[], None, [0.5], "text", [[0, 0, 1, 1, float("nan"), 1]], [[0, 0, 1, 1, 7.0, 1]]])
def test_empty_and_broken_answers_are_hard(broken: Any) -> None:
    assert hem.IBTFilter()(broken) is True
    assert hem.IBTFilter(empty="easy")(broken) is (broken != [])


def test_what_a_rule_was_told_can_be_read_as_numbers() -> None:
    rule: Any = hem.IBTFilter("0.9", threshold_box="0.4")
    assert (rule.threshold_img, rule.threshold_box) == (0.9, 0.4)


def test_a_parameter_that_a_rule_does_not_have_is_ignored_aloud_and_a_wrong_one_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "sedna"):
        assert rule_of({"method": "Threshold", "param": {"threshold_img": 0.9}}).judge(SURE).hard is False
    assert "threshold_img" in caplog.text
    with pytest.raises(InvalidFieldError, match="threshold_box"):
        rule_of({"method": "IBT", "param": {"threshold_box": "much"}})


def test_halimedes_other_rules_are_there_by_name() -> None:
    rule = rule_of({"method": "Margin", "param": {"threshold_margin": "0.2"}})
    assert (rule.judge([0.7, 0.3]).hard, rule.judge([0.55, 0.45]).hard) == (False, True)
    with pytest.raises(InvalidFieldError, match="did you mean Margin"):
        rule_of({"method": "Margn"})
    with pytest.raises(InvalidFieldError, match="hard_example_mining"):
        rule_of({"method": "IBT", "param": [1]})


def test_a_registered_class_is_called_with_the_answer_and_gets_numbers_for_a_crs_text() -> None:
    @ClassFactory.register(ClassType.HEM, alias="Mine")
    class Mine:
        def __init__(self, least: float = 0.5, whole: int = 1, flag: bool = False, name: str = "", **_: Any) -> None:
            self.given = (least, whole, flag, name)

        def __call__(self, infer_result: Any = None) -> Any:
            return np.bool_(infer_result["score"] < self.given[0])

    text = {"least": "0.7", "whole": "3", "flag": "true", "name": "4", "other": "x"}
    rule: Any = rule_of({"method": "Mine", "param": text})
    assert rule.algorithm.given == (0.7, 3, True, "4")
    assert (rule({"score": 0.6}), rule({"score": 0.8})) == (True, False)
    failed = rule.judge("nothing like it")
    assert failed.hard
    assert "TypeError" in str(failed.error)
    with pytest.raises(InvalidFieldError, match="least"):
        rule_of({"method": "Mine", "param": {"least": "much"}})


def test_a_name_is_taken_once() -> None:
    def one(_: Any) -> None: ...

    def other(_: Any) -> None: ...

    ClassFactory.register_cls(one, ClassType.CALLBACK, "deal")
    ClassFactory.register_cls(one, ClassType.CALLBACK, "deal")
    with pytest.raises(ValueError, match="registered twice"):
        ClassFactory.register_cls(other, ClassType.CALLBACK, "deal")
    with pytest.raises(ValueError, match="IBT"):
        ClassFactory.register(ClassType.HEM, alias="IBT")(other)
    assert post_processing("deal") is one
    assert post_processing(None) is None
    with pytest.raises(ValueError, match="use one of deal"):
        post_processing("deals")


def test_what_the_service_says_of_mining_is_read_and_a_script_may_know_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEM_NAME", raising=False)
    assert JointInference.get_hem_algorithm_from_config() == {}
    monkeypatch.setenv("HEM_NAME", "IBT")
    monkeypatch.setenv("HEM_PARAMETERS", '[{"key": "threshold_img", "value": "0.9"}, {"key": "threshold_box"}]')
    found = JointInference.get_hem_algorithm_from_config(threshold_box=0.4)
    assert found == {"method": "IBT", "param": {"threshold_img": "0.9", "threshold_box": 0.4}}
    monkeypatch.setenv("HEM_PARAMETERS", "[1]")
    with pytest.raises(InvalidFieldError, match="HEM_PARAMETERS"):
        JointInference.get_hem_algorithm_from_config()


def test_routing_by_a_language_model_says_that_it_is_not_there() -> None:
    with pytest.raises(NotThereError, match="register a class of your own"):
        rule_of({"method": "BertRouter"})
