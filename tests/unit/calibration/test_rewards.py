from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.calibration.calibrate import CalibrationResult, Goal, fit
from halimede.calibration.candidates import Candidate
from halimede.calibration.rewards import fit_reward, rewards_by
from halimede.calibration.service import describe_calibration
from halimede.errors import InvalidFieldError
from halimede.evaluation import rules
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.detection import Detection
from halimede.evaluation.service import EvaluatedTier
from halimede.messages import Box, Prediction
from halimede.mining import create, hardness_of, judge
from halimede.mining.calibration_file import CalibrationFile
from halimede.mining.mixture import mix
from tests.unit.calibration.samples import samples_of, saved

GOAL = Goal(target_upload=0.2)


def frames(samples: int, seed: int = 0) -> tuple[list[Prediction], list[Prediction], LabelledSamples]:
    """Answers to frames with cats and, where a bird is, more cats, which only the big model finds.

    The scores of all boxes are drawn alike, so that no rule that looks at scores or counts alone tells them.
    """
    chance = np.random.default_rng(seed)
    truths, edge, cloud = [], [], []
    for _ in range(samples):
        count, hidden = int(chance.integers(1, 4)), bool(chance.random() < 0.25)
        kinds = ["bird" if hidden and i == 0 else "cat" for i in range(count)]
        objects = [Box(20 * i, 0, 20 * i + 10, 10, 1.0, kind) for i, kind in enumerate(kinds)]
        missed = [Box(20 * i, 40, 20 * i + 10, 50, 1.0, "cat") for i in range(3 if hidden else 0)]
        scores = chance.uniform(0.2, 1, count).tolist()
        truths.append(objects + missed)
        edge_boxes = [Box(b.x1, b.y1, b.x2, b.y2, s, b.label) for b, s in zip(objects, scores, strict=True)]
        edge.append(Prediction(boxes=edge_boxes))
        cloud.append(Prediction(boxes=truths[-1]))
    return edge, cloud, samples_of(samples, boxes=truths)


def texts(samples: int, seed: int = 0) -> tuple[list[Prediction], list[Prediction], LabelledSamples]:
    """Answers to words: the small model errs in long ones, as sure as it is of short ones."""
    chance = np.random.default_rng(seed)
    truths, edge, cloud = [], [], []
    for _ in range(samples):
        text = "".join(chance.choice(list("abcdefgh"), int(chance.integers(2, 12))))
        is_wrong = len(text) > 8 and chance.random() < 0.8
        truths.append(text)
        edge.append(Prediction(label=text[:-1] + "?" if is_wrong else text, score=float(chance.uniform(0.6, 1))))
        cloud.append(Prediction(label=text, score=0.9))
    return edge, cloud, samples_of(samples, truths=truths, is_text=True)


def learnable(data: LabelledSamples, edge: list[Prediction], cloud: list[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    measured = Detection(data.boxes, edge, cloud)
    return measured.rewards(), measured.gain() > 0


def share_closed(hardness: np.ndarray, ratio: float, measured: Detection) -> float:
    """The share of the gap between both models that uploads of the hardest frames close."""
    number = len(measured)
    uploaded = np.zeros(number, bool)
    uploaded[np.argsort(-hardness, kind="stable")[: round(ratio * number)]] = True
    low, joint, high = (measured.measure(which)[0] for which in (uploaded & False, uploaded, uploaded | True))
    return (joint - low) / (high - low)


def learned_of(calibrated: CalibrationResult, tmp_path):
    artefact = calibrated.artefact
    return create(artefact.rule, artefact.parameters, saved(artefact, tmp_path))


def tier_of(calibration: Path) -> EvaluatedTier:
    spec = ModelSpec(url="small.onnx", format="onnx")
    return EvaluatedTier(
        name="edge", model="small", spec=spec, path=Path("small.onnx"), deferral=None, calibration=calibration
    )


class TestBoxes:
    def test_it_finds_frames_with_missed_objects_that_no_score_tells(self):
        edge, cloud, data = frames(400)
        rule = fit_reward("boxes", edge, *learnable(data, edge, cloud)).rule
        edge, cloud, data = frames(400, seed=1)
        measured = Detection(data.boxes, edge, cloud)
        learned = share_closed(rewards_by(rule, edge), 0.25, measured)
        fixed = share_closed(hardness_of(create("Threshold", {}), edge), 0.25, measured)
        assert learned > 0.9
        assert fixed < 0.5

    def test_a_worker_judges_one_frame_as_calibration_judges_all(self, tmp_path):
        edge, cloud, data = frames(300)
        calibrated = fit(edge, cloud, data, goal=GOAL)
        assert (calibrated.artefact.rule, calibrated.artefact.learned) == ("Learned", None)
        verdicts = [judge(learned_of(calibrated, tmp_path), answer) for answer in edge]
        assert [verdict.hardness for verdict in verdicts] == rewards_by(calibrated.artefact.reward, edge).tolist()
        assert {verdict.error for verdict in verdicts} == {None}
        assert np.mean([verdict.hard for verdict in verdicts]) == pytest.approx(0.2, abs=0.06)
        cut = f"rule: Learned (cut {calibrated.artefact.reward.cut:.4g})"
        assert cut in "\n".join(describe_calibration(calibrated, "a", "b"))

    def test_the_hardness_of_the_fitted_frames_is_out_of_fold(self):
        edge, _, _ = frames(400)
        noise = np.random.default_rng(1).normal(0, 1, 400)
        hardness = fit_reward("boxes", edge, noise, noise > 0).hardness
        assert abs(np.corrcoef(hardness, noise)[0, 1]) < 0.15

    def test_a_search_tries_it_and_takes_it_where_it_is_the_best(self):
        calibrated = fit(*frames(500), goal=GOAL, rule="", configured=Candidate("UncertainBoxes", {}))
        assert (calibrated.artefact.rule, calibrated.is_above_chance) == ("Learned", True)

    def test_a_search_takes_a_fixed_rule_where_learning_is_no_better(self):
        edge, _, data = frames(500)
        # where the small model finds nothing the big one finds a cat: each rule with `empty: hard` is perfect
        truths = [[Box(0, 0, 10, 10, 1.0, "cat")] for _ in edge]
        low = [Prediction(boxes=[] if i % 5 == 0 else boxes) for i, boxes in enumerate(truths)]
        high = [Prediction(boxes=boxes) for boxes in truths]
        fits = [fit(low, high, replace(data, boxes=truths), goal=GOAL, rule=rule) for rule in ("", "Threshold")]
        searched, fixed = (fitted.artefact.metrics["joint"] for fitted in fits)
        assert searched == pytest.approx(fixed, abs=0.02)

    def test_without_labels_it_learns_from_the_big_model(self, tmp_path):
        edge, cloud, data = frames(400)
        calibrated = fit(edge, cloud, replace(data, boxes=None), goal=GOAL)
        assert not calibrated.labelled
        hidden = np.array([any(box.label == "bird" for box in answer.boxes) for answer in edge])
        hardness = hardness_of(learned_of(calibrated, tmp_path), edge)
        assert hardness[hidden].mean() > hardness[~hidden].mean() + 0.1

    def test_a_limit_on_the_risk_is_kept_on_frames_that_nobody_has_seen(self):
        measured = fit(*frames(1200), goal=Goal(max_risk=0.1)).artefact.metrics
        assert measured["risk.low"] <= 0.1
        assert measured["upload_ratio"] < 0.5

    def test_with_a_limit_on_the_risk_it_learns_what_the_limit_counts(self):
        edge, cloud, data = frames(1200)
        rewards, gains = learnable(data, edge, cloud)
        hardness = rewards_by(fit(edge, cloud, data, goal=Goal(max_risk=0.1)).artefact.reward, edge)
        estimates = hardness / (1 - np.abs(hardness))
        assert gains.mean() - rewards.mean() > 0.08
        assert estimates.mean() == pytest.approx(gains.mean(), abs=0.03)

    def test_the_reference_of_drift_is_of_its_hardness(self):
        edge, cloud, data = frames(300)
        artefact = fit(edge, cloud, data, goal=GOAL).artefact
        hardness = rewards_by(artefact.reward, edge)
        assert artefact.reference.hardness[10] == pytest.approx(float(np.median(hardness)), abs=0.1)

    def test_a_big_model_that_is_never_better_is_refused(self):
        edge, _, data = frames(300)
        with pytest.raises(InvalidFieldError, match=r"--data: 0 .*big model's answer is better.*another --rule"):
            fit(edge, edge, data, goal=GOAL)

    def test_a_search_without_anything_to_learn_says_so_and_takes_another_rule(self):
        edge, _, data = frames(300)
        calibrated = fit(edge, edge, data, goal=GOAL, rule="")
        assert calibrated.artefact.reward is None
        assert any(note.startswith("Learned is left out: samples where the big model's") for note in calibrated.notes)

    def test_a_class_that_the_calibration_does_not_know_is_judged_by_all_else(self):
        edge, cloud, data = frames(300)
        rule = fit_reward("boxes", edge, *learnable(data, edge, cloud)).rule
        fish = Prediction(boxes=[Box(0, 0, 10, 10, 0.5, "fish")])
        assert -1 <= rewards_by(rule, [fish])[0] <= 1

    def test_more_classes_than_have_features_keep_the_frequent_ones(self):
        edge, cloud, data = frames(300)
        rare = [Prediction(boxes=[*answer.boxes, Box(0, 60, 5, 65, 0.3, f"kind {i}")]) for i, answer in enumerate(edge)]
        rule = fit_reward("boxes", rare, *learnable(data, rare, cloud)).rule
        assert len(rule.classes) == 64
        assert {"cat", "bird"} <= set(rule.classes)

    def test_boxes_are_never_mixed(self):
        _, cloud, _ = frames(1)
        assert mix(CalibrationFile(service="s"), cloud[0], cloud[0]) is cloud[0]


class TestEvaluation:
    def test_it_has_a_curve_together_with_the_fixed_rules(self, tmp_path):
        edge, cloud, data = frames(300)
        tier = tier_of(saved(fit(edge, cloud, data, goal=GOAL).artefact, tmp_path))
        by_rule, _ = rules.hardness_by_rule(tier, data, edge, ["Learned", "Threshold"])
        measured = Detection(data.boxes, edge, cloud)
        learned, fixed = (measured.curve(by_rule[rule])[8]["accuracy"] for rule in ("Learned", "Threshold"))
        assert learned > fixed

    def test_one_of_another_kind_of_answers_has_no_curve_but_a_reason(self, tmp_path):
        tier = tier_of(saved(fit(*texts(300), goal=GOAL, is_text=True).artefact, tmp_path))
        edge, _, data = frames(20)
        by_rule, left_out = rules.hardness_by_rule(tier, data, edge, ["Learned"])
        assert not by_rule
        assert "about texts: calibrate again" in left_out["Learned"]


class TestTexts:
    def test_it_learns_which_texts_are_misread_and_a_search_is_no_worse_than_a_rule_of_scores(self, tmp_path):
        data = texts(500)
        calibrated = fit(*data, goal=GOAL, is_text=True)
        searched, by_score = (fit(*data, goal=GOAL, is_text=True, rule=rule) for rule in ("", "MaxProbability"))
        joint, at_best, fixed = (fitted.artefact.metrics["joint"] for fitted in (calibrated, searched, by_score))
        assert calibrated.artefact.reward.answers == "texts"
        assert joint > fixed + 0.05
        assert at_best >= fixed
        assert judge(learned_of(calibrated, tmp_path), Prediction(label="abcdefghab?", score=0.8)).hard

    def test_texts_without_a_score_are_refused_with_what_to_do(self):
        edge, cloud, data = texts(100)
        bare = [Prediction(label=answer.label) for answer in edge]
        with pytest.raises(InvalidFieldError, match=r"--rule: 'Learned'.*no score.*script return one"):
            fit(bare, cloud, data, goal=GOAL, is_text=True)
