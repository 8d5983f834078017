"""Learned of boxes and texts, as a worker has it: answers that are no frame's, and files that calibrate never wrote."""

from __future__ import annotations

import math

import pytest

from halimede.errors import InvalidFieldError
from halimede.messages import Box, Prediction, TextLine
from halimede.mining import Miner, create, judge
from halimede.mining.calibration_file import CalibrationFile, Head, LearnedRule, RewardRule, write_artefact
from halimede.mining.learned import width
from halimede.mining.reward import box_features, expected_reward, feature_count

CLASSES = ["bird", "cat"]


def rule_of(answers: str = "boxes", **changes: object) -> RewardRule:
    fields = {"answers": answers, "classes": CLASSES if answers == "boxes" else [], "bias": 0.1, "cut": 0.0}
    count = feature_count(RewardRule(**fields, weights=[], lows=[], highs=[]))
    fields |= {"weights": [0.01 * (-1) ** i for i in range(count)], "lows": [-5.0] * count, "highs": [50.0] * count}
    return RewardRule(**(fields | changes))


def miner_of(tmp_path, rule: RewardRule | LearnedRule, **parameters: str) -> Miner:
    path = tmp_path / "zoo.calibration"
    field = "reward" if isinstance(rule, RewardRule) else "learned"
    path.write_bytes(write_artefact(CalibrationFile(service="zoo", **{field: rule})))
    return create("Learned", parameters, path)


def box(x: float, score: float, label: str = "cat", side: float = 10) -> Box:
    return Box(x, 0, x + side, side, score, label)


BOXES, TEXTS = rule_of(), rule_of("texts")
OF_CLASSES = LearnedRule(classes=2, gain=Head(bias=0.0, weights=[0.0] * width(2)), cut=0.0)


class TestAnswers:
    @pytest.mark.parametrize(
        "prediction",
        [
            Prediction(boxes=[]),
            Prediction(boxes=[box(1, 0.5)] * 10_000),
            Prediction(boxes=[Box(5, 5, 5, 5, 0.5, "cat"), Box(9, 9, 2, 2, 0.4, "cat")]),
            Prediction(boxes=[Box(-1e308, -1e308, 1e308, 1e308, 1.0, "cat")] * 3),
            Prediction(boxes=[box(1, 0.5, "a class that nobody calibrated"), Box(0, 0, 3, 3, 0.2, 7)]),
            Prediction(boxes=[box(1, 0.0), box(1, 1.0)]),
            Prediction(label="", score=0.0),
            Prediction(label="x" * 100_000, score=0.999),
            Prediction(lines=[TextLine(text="two", score=0.9), TextLine(text="lines")]),
        ],
        ids=[
            *("none", "10,000", "no area", "beyond any frame", "unknown classes", "ends of scores"),
            *("empty text", "long text", "lines alone"),
        ],
    )
    def test_any_boxes_and_texts_have_a_hardness(self, tmp_path, prediction):
        if prediction.boxes is not None:
            assert all(map(math.isfinite, box_features(prediction, CLASSES)))
        rule = rule_of("texts" if prediction.boxes is None else "boxes")
        verdict = judge(miner_of(tmp_path, rule), prediction)
        assert verdict.error is None
        assert -1 <= verdict.hardness <= 1

    @pytest.mark.parametrize(
        ("rule", "prediction", "reason"),
        [
            (BOXES, Prediction(boxes=[Box(math.nan, 0, 1, 1, 0.5, "cat")]), "corners nan"),
            (BOXES, Prediction(boxes=[Box(0, 0, math.inf, 1, 0.5, "cat")]), "corners 0"),
            (BOXES, Prediction(boxes=[box(0, math.nan)]), "box score nan"),
            (BOXES, Prediction(boxes=[box(0, 1.5)]), "box score 1.5"),
            (BOXES, Prediction(label="cat", probabilities=[0.5, 0.5]), "no boxes"),
            (BOXES, Prediction(label="cat"), "no boxes"),
            (TEXTS, Prediction(boxes=[box(0, 0.5)]), "about texts"),
            (TEXTS, Prediction(label="word"), "no score"),
            (TEXTS, Prediction(label="word", score=math.nan), "score nan"),
            (TEXTS, Prediction(label="word", score=0.5, lines=[TextLine(text="word", score=7)]), "line score 7"),
            (OF_CLASSES, Prediction(boxes=[box(0, 0.5)]), "boxes have no class probabilities"),
        ],
    )
    def test_an_answer_that_it_cannot_judge_is_hard_and_says_why(self, tmp_path, rule, prediction, reason):
        verdict = judge(miner_of(tmp_path, rule), prediction)
        assert verdict.hard
        assert reason in verdict.error

    def test_the_order_of_boxes_makes_no_difference(self):
        boxes = [box(4 * i, (i + 1) / 12, CLASSES[i % 2]) for i in range(10)]
        forwards, backwards = (Prediction(boxes=order) for order in (boxes, boxes[::-1]))
        assert box_features(forwards, CLASSES) == pytest.approx(box_features(backwards, CLASSES))

    def test_boxes_beyond_the_best_25_are_only_counted(self):
        best = [box(20 * i, 0.5) for i in range(25)]
        few, many = (box_features(Prediction(boxes=boxes), CLASSES) for boxes in (best, [*best, box(700, 0.1, "bird")]))
        assert few[0] < many[0]
        assert few[1:] == many[1:]

    def test_what_lies_beyond_the_calibrations_samples_counts_as_their_end(self):
        rule = rule_of(highs=[2.0] * len(rule_of().weights))
        full, fuller = (Prediction(boxes=[box(30 * i, 0.95) for i in range(count)]) for count in (20, 25))
        assert expected_reward(rule, full) == expected_reward(rule, fuller)

    def test_the_parameter_cut_replaces_that_of_the_calibration(self, tmp_path):
        prediction = Prediction(boxes=[box(0, 0.5)])
        assert judge(miner_of(tmp_path, rule_of(), cut="-1"), prediction).hard
        assert not judge(miner_of(tmp_path, rule_of(), cut="1"), prediction).hard


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"weights": [0.0]}, "needs 35 weights, lows and highs"),
            ({"lows": []}, "needs 35 weights, lows and highs"),
            ({"highs": [-1e9] * 35}, "low is over its high"),
            ({"bias": 1e300}, "no calibration .*reward.bias"),
            ({"weights": [1e300] * 35}, "no calibration .*reward.weights"),
            ({"weights": [0.0] * 2000}, "no calibration .*reward.weights"),
            ({"classes": [str(i) for i in range(65)]}, "no calibration .*reward.classes"),
            ({"classes": ["x" * 257]}, "no calibration .*reward.classes"),
            ({"answers": "classes"}, "no calibration .*reward.answers"),
        ],
    )
    def test_a_rule_that_calibrate_never_wrote_is_refused_with_its_field(self, tmp_path, change, reason):
        with pytest.raises(InvalidFieldError, match=rf"(?s)parameters\.calibration.*{reason}"):
            miner_of(tmp_path, rule_of(**change))

    def test_no_numbers_that_a_file_may_have_give_another_result_than_a_hardness(self, tmp_path):
        count = len(rule_of().weights)
        extreme = rule_of(bias=1e12, weights=[1e12] * count, lows=[-1e12] * count, highs=[1e12] * count)
        verdict = judge(miner_of(tmp_path, extreme), Prediction(boxes=[box(0, 0.5)] * 30))
        assert verdict.error is None
        assert verdict.hardness == pytest.approx(1)
