from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from halimede.api.mining import BEFORE
from halimede.calibration.calibrate import Goal, Samples, fit, gains_and_losses
from halimede.calibration.candidates import Candidate
from halimede.calibration.deferral import fit_head, fit_learned, hardness_by, predict
from halimede.calibration.service import describe_calibration, metric_rows
from halimede.errors import InvalidFieldError
from halimede.evaluation import curves
from halimede.evaluation.quality import right
from halimede.messages import Box, Prediction
from halimede.mining import create, hardness_of, judge
from halimede.mining.calibration_file import CalibrationFile, read_artefact
from halimede.mining.learned import expected_gain
from tests.unit.calibration.samples import LABELS, answers, pair, samples_of, saved

GOAL = Goal(target_upload=0.2)


def fitted(samples: int, goal: Goal = GOAL, **options):
    return fit(*pair(samples), goal=goal, labels=LABELS, **options)


def frames_that_are_often_empty():
    """Half of the frames are empty for the small model, and rightly so; of the others uncertain boxes are wrong."""
    chance = np.random.default_rng(0)
    truths, edge, cloud = [], [], []
    for _ in range(600):
        thing, score = Box(0, 0, 10, 10, 1.0, "cat"), float(chance.uniform(0.2, 1))
        is_empty, is_wrong = chance.random() < 0.55, score < 0.5
        seen = Box(0, 0, 4, 4, score, "cat") if is_wrong else Box(0, 0, 10, 10, score, "cat")
        truths.append([] if is_empty else [thing])
        edge.append(Prediction(boxes=[] if is_empty else [seen]))
        cloud.append(Prediction(boxes=truths[-1]))
    return edge, cloud, samples_of(600, boxes=truths)


def accuracy(hardness, ratio, edge, cloud, data):
    return curves.accuracy_at(curves.curve(hardness, right(data.truths, edge), right(data.truths, cloud)), ratio)


class TestLearned:
    def test_it_finds_errors_that_confidence_does_not_tell(self):
        edge, cloud, data = pair(1500)
        learnt = fit_learned(edge, *gains_and_losses(Samples(data, edge, cloud)))
        edge, cloud, data = pair(1500, seed=1)
        learned = accuracy(hardness_by(learnt.rule, edge), 0.2, edge, cloud, data)
        margin = accuracy(hardness_of(create("Margin", {}), edge), 0.2, edge, cloud, data)
        assert learned > margin + 0.015

    def test_a_worker_judges_one_sample_as_calibration_judges_all(self):
        edge, cloud, data = pair(300)
        learnt = fit_learned(edge, *gains_and_losses(Samples(data, edge, cloud)))
        one_by_one = [expected_gain(learnt.rule, answer) for answer in edge]
        assert one_by_one == pytest.approx(hardness_by(learnt.rule, edge), abs=1e-12)
        assert all(-1 <= value <= 1 for value in one_by_one)

    def test_the_hardness_of_what_it_was_fitted_on_is_out_of_fold(self):
        chance = np.random.default_rng(0)
        noise = answers(np.random.default_rng(1).dirichlet(np.ones(4), 400))
        gains = chance.random(400) < 0.3
        learnt = fit_learned(noise, gains, ~gains & False)
        assert learnt.hardness[gains].mean() - learnt.hardness[~gains].mean() < 0.02  # nothing is there to be known

    def test_penultimate_features_are_read_where_the_model_exports_them(self):
        edge, cloud, data = pair(600)
        gains, losses = gains_and_losses(Samples(data, edge, cloud))
        features = [np.array([gain, 1 - gain], "<f2").tobytes() for gain in gains.astype(float)]
        telling = [
            Prediction(label=answer.label, probabilities=answer.probabilities, embeddings=embeddings)
            for answer, embeddings in zip(edge, features, strict=True)
        ]
        learnt = fit_learned(telling, gains, losses)
        assert learnt.rule.embedding == 2
        assert learnt.hardness[gains].min() > learnt.hardness[~gains].max()

    def test_too_few_errors_are_refused_in_plain_words(self):
        edge, _, _ = pair(60)
        with pytest.raises(InvalidFieldError, match=r"--data: 0 .*calibrate --rule Margin"):
            fit_learned(edge, np.zeros(60, bool), np.zeros(60, bool))

    def test_a_head_finds_the_weights_that_made_the_samples(self):
        x = np.random.default_rng(0).normal(0, [1, 10, 0], (4000, 3))
        p = 1 / (1 + np.exp(-(x @ [1.5, -0.1, 0] - 0.5)))
        hits = (np.random.default_rng(1).random(4000) < p).astype(float)
        head = fit_head(x, hits, 0.01)
        assert head.weights == pytest.approx([1.5, -0.1, 0], abs=0.12)
        assert predict(head, x) == pytest.approx(p, abs=0.06)

    def test_samples_that_can_be_told_apart_without_fault_end_the_search(self):
        head = fit_head(np.array([[-1.0], [1.0]] * 20), np.array([0.0, 1.0] * 20), 1e-6)
        assert np.isfinite(head.weights).all()


class TestFitting:
    def test_a_budget_is_met_on_samples_that_were_held_out(self):
        found = fitted(2000, Goal(target_upload=0.25), service="zoo")
        figures = found.artefact.metrics
        assert (found.fitted, found.held_out, found.artefact.reference.samples) == (1400, 600, 2000)
        assert figures["upload_ratio.low"] <= 0.25 <= figures["upload_ratio.high"]
        assert figures["edge_only"] < figures["joint"] <= figures["joint.high"]
        assert figures["calibration_error"] < figures["calibration_error.before"]
        assert sum(found.artefact.reference.classes.values()) == pytest.approx(1)

    def test_the_rule_that_is_written_decides_as_it_was_measured(self, tmp_path):
        edge, cloud, data = pair(900)
        found = fit(edge, cloud, data, goal=GOAL, labels=LABELS)
        path = saved(found.artefact, tmp_path)
        assert read_artefact(path) == found.artefact
        rule = create("Learned", {}, calibration=path)
        share = np.mean([judge(rule, answer).hard for answer in edge])
        assert share == pytest.approx(0.2, abs=0.03)

    @pytest.mark.parametrize("rule", ["Margin", "Entropy", "CrossEntropy", "MaxProbability", "Energy"])
    def test_any_rule_with_a_threshold_gets_the_one_for_the_budget(self, rule):
        edge, cloud, data = pair(600)
        found = fit(edge, cloud, data, goal=Goal(target_upload=0.3), rule=rule, labels=LABELS, held_out=0)
        made = create(found.artefact.rule, found.artefact.parameters)
        assert np.mean([judge(made, answer).hard for answer in edge]) == pytest.approx(0.3, abs=0.005)

    @pytest.mark.parametrize("rule", ["Learned", "Margin"])
    def test_a_limit_on_the_risk_is_kept_on_samples_that_nobody_has_seen(self, rule):
        figures = fitted(2000, Goal(max_risk=0.05), rule=rule).artefact.metrics
        assert figures["risk.low"] <= 0.05
        assert figures["upload_ratio"] < 0.9

    @pytest.mark.parametrize(
        ("samples", "goal", "options", "message"),
        [
            (60, GOAL, {}, r"--data: 60 .*at least 72"),
            (300, Goal(max_risk=0.01), {}, r"--max-risk.*too few.*at least 1312, .*gets 459"),
            (300, Goal(max_risk=0.0), {"rule": "Margin"}, r"--max-risk.*allow more than 0"),
            (449, Goal(max_risk=0.02), {}, r"449 samples are too few to show that with 0\.99: give.* 653,"),
            (200, GOAL, {"rule": "CloudOnly"}, r"--rule: 'CloudOnly'.*threshold"),
            (200, GOAL, {"rule": "Nonsense"}, r"--rule: 'Nonsense'"),
            (300, GOAL, {"rule": "Learned", "mode": BEFORE}, r"--rule: 'Learned' .*what the small model answers"),
            (300, GOAL, {"rule": "Margin", "mode": BEFORE}, r"--rule: 'Margin' .*what the small model answers"),
        ],
    )
    def test_what_cannot_be_fitted_is_refused_with_what_to_do(self, samples, goal, options, message):
        with pytest.raises(InvalidFieldError, match=message):
            fitted(samples, goal, **options)

    def test_without_labels_the_big_model_is_the_truth(self):
        edge, cloud, data = pair(600)
        found = fit(edge, cloud, replace(data, truths=None), goal=GOAL, labels=LABELS)
        assert (found.artefact.metrics["cloud_only"], found.artefact.mixture, found.labelled) == (1.0, None, False)
        assert any("no labels" in note for note in found.notes)

    def test_boxes_are_calibrated_by_what_asking_finds(self):
        chance = np.random.default_rng(0)
        truths, edge, cloud = [], [], []
        for _ in range(200):
            boxes = [Box(20 * i, 0, 20 * i + 10, 10, 1.0, "cat") for i in range(chance.integers(1, 5))]
            seen = [Box(b.x1, b.y1, b.x2, b.y2, float(chance.uniform(0.2, 1)), "cat") for b in boxes]
            truths.append(boxes)
            edge.append(Prediction(boxes=[box for box in seen if box.score > 0.4]))
            cloud.append(Prediction(boxes=seen))
        found = fit(edge, cloud, samples_of(200, boxes=truths), goal=Goal(target_upload=0.3), rule="Threshold")
        assert found.artefact.metrics["edge_only"] < found.artefact.metrics["cloud_only"]
        assert "agreement" not in found.artefact.metrics
        assert found.artefact.parameters["threshold"]

    def test_the_share_and_the_accuracy_are_those_of_a_budget_that_meets_equally_hard_frames(self):
        found = fit(*frames_that_are_often_empty(), goal=GOAL, rule="UncertainBoxes")
        figures = found.artefact.metrics
        assert figures["upload_ratio"] == pytest.approx(0.2, abs=0.01)
        assert figures["joint"] == pytest.approx(figures["edge_only"], abs=0.02)  # empty frames fill the budget
        assert (found.is_above_chance, found.metric) == (False, "mAP@0.5")
        (note,) = [note for note in found.notes if "equally hard" in note]
        assert re.match(r"5\d\.\d% of the samples are equally hard, so no cut .* between 0\.0% and 5\d\.\d%;", note)

    def test_a_search_finds_the_rule_and_the_empty_that_pay(self):
        own = Candidate("UncertainBoxes", {"empty": "hard"})
        found = fit(*frames_that_are_often_empty(), goal=GOAL, rule="", configured=own)
        assert (found.artefact.parameters["empty"], found.is_above_chance) == ("easy", True)
        assert found.tried > 20

    def test_a_search_falls_back_where_a_script_gives_a_score_alone_and_says_so(self):
        edge, cloud, data = pair(600)
        bare = [Prediction(label=answer.label, score=answer.score) for answer in edge]
        found = fit(bare, cloud, data, goal=GOAL, rule="", configured=Candidate("Margin", {}))
        assert found.artefact.rule == "MaxProbability"
        assert any(note.startswith("Learned is left out: ") for note in found.notes)
        nothing = [Prediction(label=answer.label) for answer in edge]
        with pytest.raises(InvalidFieldError, match=r"--service: .*script return a score"):
            fit(nothing, cloud, data, goal=GOAL, rule="", configured=Candidate("Margin", {}))

    def test_audits_take_their_part_of_the_budget(self):
        without, audited = (fitted(1000, rule="Margin", audit_share=share).artefact.metrics for share in (0.0, 0.1))
        assert audited["upload_ratio"] == pytest.approx(without["upload_ratio"], abs=0.01)
        assert audited["joint"] < without["joint"]

    def test_read_texts_are_measured_by_exact_match(self):
        edge, cloud, data = pair(600)
        read, texts = ([Prediction(label=f"word {a.label}", score=a.score) for a in tier] for tier in (edge, cloud))
        found = fit(read, texts, replace(data, truths=None), goal=GOAL, rule="MaxProbability", is_text=True)
        assert (found.metric, found.artefact.metrics["cloud_only"]) == ("exact match", 1.0)

    def test_a_limit_that_no_threshold_of_the_rule_can_hold_is_refused(self):
        thing = [Box(0, 0, 10, 10, 1.0, "cat")]
        data = samples_of(300, boxes=[thing] * 300)
        # where the edge sees nothing it is wrong; `easy` keeps just those, whatever the threshold
        edge = [Prediction(boxes=thing if i % 5 else []) for i in range(300)]
        cloud = [Prediction(boxes=thing)] * 300
        options = {"goal": Goal(max_risk=0.1), "rule": "BoxCount"}
        with pytest.raises(InvalidFieldError, match=r"--max-risk: 0\.1 .*cannot hold it.*`empty`"):
            fit(edge, cloud, data, **options, parameters={"empty": "easy"})
        assert fit(edge, cloud, data, **options).artefact.metrics["risk"] == 0

    def test_what_came_of_it_is_said_in_words(self):
        found = fitted(600, service="zoo")
        text = "\n".join(describe_calibration(found, "small", "big"))
        assert "zoo: small asks big, for upload ratio 0.2" in text
        assert "fitted on 420 samples, measured on 180 others; truth: labels" in text
        assert any("few" in note for note in found.notes)
        assert next(row for row in metric_rows(found) if row[0] == "big model alone")[1] == "1.0000"


class TestTheFile:
    @pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"service": 1}', b"\xff", b'{"service": "s", "v": 2}'])
    def test_what_is_none_is_refused_by_name(self, tmp_path, data):
        path = tmp_path / "broken.calibration"
        path.write_bytes(data)
        with pytest.raises(InvalidFieldError, match=r"broken\.calibration.*halimede calibrate"):
            read_artefact(path)

    def test_one_that_is_missing_or_too_large_is_refused(self, tmp_path):
        with pytest.raises(InvalidFieldError, match="cannot be read"):
            read_artefact(tmp_path / "none")
        (tmp_path / "large").write_bytes(b" " * (1024 * 1024 + 1))
        with pytest.raises(InvalidFieldError, match="bytes"):
            read_artefact(tmp_path / "large")

    def test_a_file_that_has_changed_is_read_again(self, tmp_path):
        for service in ("one", "another"):
            assert read_artefact(saved(CalibrationFile(service=service), tmp_path)).service == service

    def test_a_learned_rule_of_other_features_is_refused(self, tmp_path):
        found = fitted(300)
        found.artefact.learned.gain.weights.pop()
        with pytest.raises(InvalidFieldError, match=r"calibration.*needs 25 weights"):
            create("Learned", {}, calibration=saved(found.artefact, tmp_path))
        with pytest.raises(InvalidFieldError, match="no learned rule"):
            create("Learned", {"calibration": str(saved(CalibrationFile(service="s"), tmp_path))})
