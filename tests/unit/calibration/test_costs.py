"""Calibration for the least cost: two thresholds, the bound on the cost, and the costs of answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from halimede.api.deferral import Costs
from halimede.calibration.calibrate import Goal, fit
from halimede.calibration.costs import cost_bound, least_cost_thresholds
from halimede.calibration.thresholds import cut_for_costs
from halimede.errors import InvalidFieldError
from halimede.evaluation.costs import check_positive, error_costs
from halimede.evaluation.data import LabelledSamples
from halimede.messages import Box, Prediction
from halimede.mining import create
from halimede.mining.calibration_file import CalibrationFile, MixtureRule
from halimede.mining.mixture import mix
from halimede.pipeline.inference import Inference, PlainSample
from tests.unit.calibration.samples import samples_of
from tests.unit.frames.clouds import Brightness, frame

CLASSES = ["no", "yes"]
COSTS = Costs(miss=10, false_alarm=1, upload=0.2, positive="yes")


def answers(logits: np.ndarray) -> list[Prediction]:
    return [
        Prediction(label=CLASSES[int(p > 0.5)], score=max(p, 1 - p), probabilities=[1 - p, p])
        for p in (1 / (1 + np.exp(-logits))).tolist()
    ]


def pair(samples: int, seed: int = 0) -> tuple[list[Prediction], list[Prediction], LabelledSamples]:
    """Edge, cloud and data of a two-class service: 30 % are positive, and the edge does not know."""
    chance = np.random.default_rng(seed)
    truth = (chance.random(samples) < 0.3).astype(int)
    edge = chance.normal(0, 1.5, samples) + 1.5 * (truth * 2 - 1)
    cloud = chance.normal(0, 1, samples) + 5 * (truth * 2 - 1)
    return answers(edge), answers(cloud), samples_of(samples, truths=[CLASSES[i] for i in truth])


def calibrated(samples: int = 600, costs: Costs = COSTS, *, seed: int = 0, **options):
    edge, cloud, data = pair(samples, seed)
    settings = {"labels": CLASSES, "cloud_labels": CLASSES, "rule": ""} | options
    return fit(edge, cloud, data, goal=Goal(costs=costs, confidence=0.95), **settings)


def test_thresholds_have_the_least_cost_of_all_pairs():
    chance = np.random.default_rng(1)
    for _ in range(20):
        p = chance.integers(0, 12, 30) / 11  # with equal ones
        negative, positive, uploaded = chance.random((3, 30))
        low, answer, high = least_cost_thresholds(p, negative, positive, uploaded)
        assert low <= answer <= high
        limits = [0.0, *((np.arange(11) + 0.5) / 11), 1.0 + 1e-9]

        sums = [
            np.where(p < lower, negative, np.where(p >= upper, positive, uploaded)).sum()
            for lower, upper in [*itertools.combinations_with_replacement(limits, 2), (low, high if high < 1 else 1.1)]
        ]
        assert sums[-1] == pytest.approx(min(sums))


def test_a_dear_miss_moves_both_thresholds_down_and_costs_less_than_one_threshold():
    result = calibrated(2000, Costs(miss=10, false_alarm=1, upload=0.6, positive="yes"))
    parameters, metrics = result.artefact.parameters, result.artefact.metrics
    assert result.artefact.rule == "TwoThresholds"
    assert (parameters["positive"], parameters["negative"]) == ("yes", "no")
    assert float(parameters["low"]) < 0.2
    assert float(parameters["high"]) < 0.7
    assert metrics["cost"] < min(metrics[f"cost_{name}"] for name in ("edge_only", "cloud_only", "single_threshold"))
    assert metrics["cost"] < metrics["cost_bound"] < 2 * metrics["cost"] + 0.3
    assert result.is_above_chance


def test_an_upload_that_is_dearer_than_any_error_is_never_made():
    result = calibrated(costs=Costs(miss=10, false_alarm=1, upload=30, positive="yes"))
    assert result.artefact.metrics["upload_ratio"] == 0
    assert result.notes[-1] == "an upload costs 30, more than it saves for any sample: none goes up"
    assert calibrated(costs=Costs(miss=1, upload=2)).artefact.metrics["upload_ratio"] == 0


def test_an_upload_that_costs_nothing_is_made_where_the_edge_errs():
    metrics = calibrated(costs=Costs(miss=1, false_alarm=1, upload=0, positive="yes")).artefact.metrics
    assert metrics["cost"] <= metrics["cost_edge_only"]
    assert metrics["upload_ratio"] > 0.1


def test_the_bound_holds_as_often_as_promised():
    chance = np.random.default_rng(0)
    for mean in (0.01, 0.2):
        bounds = [cost_bound(10.0 * (chance.random(200) < mean), 10, 0.9) for _ in range(300)]
        assert np.mean(np.array(bounds) >= 10 * mean) >= 0.9
        assert np.median(bounds) < 10 * mean + 1


def test_a_bound_narrows_with_samples_and_is_never_above_the_most_that_a_sample_costs():
    costs = np.tile([0.0, 0.0, 0.0, 1.0], 1000)
    bounds = [cost_bound(costs[:number], 2, 0.99) for number in (4, 40, 400, 4000)]
    assert bounds == sorted(bounds, reverse=True)
    assert 0.25 < bounds[-1] < 0.28
    assert bounds[0] <= 2


def test_the_cut_with_the_least_cost_keeps_equal_samples_together():
    hardness = np.array([0.9, 0.9, 0.5, 0.1, np.inf])
    alone, uploaded = np.array([1.0, 0.0, 1.0, 0.0, 0.0]), np.full(5, 0.3)
    assert cut_for_costs(hardness, alone, uploaded) == 0.3
    assert cut_for_costs(hardness, alone, uploaded + 9) == np.inf
    assert cut_for_costs(hardness, alone + 9, uploaded) == -np.inf


def test_without_a_class_to_find_each_wrong_class_costs_a_miss():
    data = samples_of(3, truths=["a", "b", "c"])
    predictions = [Prediction(label="a"), Prediction(label="c"), Prediction(label="c")]
    assert error_costs(data, predictions, Costs(miss=3, upload=1)).tolist() == [0, 3, 0]
    costs = Costs(miss=3, false_alarm=2, upload=1, positive="c")
    answers = predictions, predictions[::-1]
    assert [error_costs(data, labels, costs).tolist() for labels in answers] == [[0, 2, 0], [2, 2, 3]]


def test_a_picture_costs_a_miss_and_a_false_alarm_at_most():
    near, far = Box(0, 0, 10, 10, 1.0, "cat"), Box(50, 50, 60, 60, 1.0, "cat")
    dog = Box(0, 0, 10, 10, 0.9, "dog")
    data = samples_of(3, boxes=[[near, far], [near], []])
    predictions = [Prediction(boxes=[]), Prediction(boxes=[dog]), Prediction(boxes=[Box(0, 0, 9, 9, 0.4, "cat")])]
    assert error_costs(data, predictions, Costs(miss=5, false_alarm=1, upload=1)).tolist() == [5, 6, 0]
    assert error_costs(data, predictions, Costs(miss=5, false_alarm=1, upload=1, positive="cat")).tolist() == [5, 5, 0]


@pytest.mark.parametrize(
    ("costs", "options", "field", "fix"),
    [
        (Costs(miss=1, upload=1, positive="maybe"), {}, "--costs.positive", "use one of the classes, such as no, yes"),
        (Costs(miss=1, false_alarm=2, upload=1), {}, "--costs.falseAlarm", "name the class to find in positive"),
        (Costs(miss=1, upload=0.1), {"rule": "TwoThresholds"}, "--rule", "it is for two-class models"),
    ],
)
def test_costs_that_do_not_fit_the_data_are_refused(costs, options, field, fix):
    with pytest.raises(InvalidFieldError, match=rf"^{field}: .*{fix}"):
        calibrated(costs=costs, **options)
    if not options:
        with pytest.raises(InvalidFieldError):
            check_positive("spec.edgeWorker.costs", costs, samples_of(2, truths=CLASSES), ())


def test_thresholds_decide_the_class_of_what_they_keep():
    miner = create("TwoThresholds", {"positive": "yes", "negative": "no", "low": "0.1", "high": "0.3", "answer": "0.2"})
    labels = [miner.final_answer(answer).label for answer in answers(np.log([0.05 / 0.95, 0.25 / 0.75, 0.4 / 0.6, 9]))]  # type: ignore[attr-defined]
    assert labels == ["no", "yes", "yes", "yes"]
    odd = Prediction(label="other", probabilities=[0.5, 0.5])
    assert miner.final_answer(odd) is odd  # type: ignore[attr-defined]
    decided = miner.final_answer(answers(np.log([0.25 / 0.75]))[0])  # type: ignore[attr-defined]
    assert decided.score == pytest.approx(0.25)
    assert miner.final_answer(decided) == decided  # type: ignore[attr-defined]
    assert miner.probability(decided) == pytest.approx(0.25)  # type: ignore[attr-defined]


def test_a_worker_gives_the_class_of_the_thresholds():
    class Certain(Brightness):
        def predict(self, batch):
            return answers(np.array([np.log(image.flat[0] / (100 - image.flat[0])) for image in batch]))

    miner = create("TwoThresholds", {"positive": "yes", "negative": "no", "low": "0.1", "high": "0.1"})
    (outcome,) = Inference(4, miner)(Certain(), [PlainSample(frame(20), mined=True)])
    assert (outcome.prediction.label, outcome.verdict.hard) == ("yes", False)


def test_an_answer_of_the_thresholds_is_mixed_as_that_of_the_model():
    mixture = MixtureRule(edge=0.5, cloud=0.5)
    artefact = CalibrationFile(service="s", labels=CLASSES, rule="TwoThresholds", mixture=mixture)
    miner = create("TwoThresholds", {"positive": "yes", "negative": "no", "low": "0.1", "high": "0.3"})
    edge, cloud = answers(np.log([0.25 / 0.75]))[0], answers(np.log([4.0]))[0]
    decided = miner.final_answer(edge)  # type: ignore[attr-defined]
    assert decided.label != edge.label
    assert mix(artefact, decided, cloud) == mix(artefact, edge, cloud) != cloud
