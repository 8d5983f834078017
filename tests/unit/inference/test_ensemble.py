"""A committee of small models answers by majority, and the rule Agreement judges its votes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from halimede import JointModel
from halimede.calibration.candidates import candidates
from halimede.errors import InvalidFieldError
from halimede.inference import Array, Model, ModelError, SampleError
from halimede.inference.ensemble import EnsembleModel
from halimede.inference.postprocess import classify
from halimede.messages import Box, Prediction
from halimede.mining import MiningError, create, judge, parameters_at


class Fixed(Model):
    """Gives the same probabilities for each sample; ``size``: the side of its input."""

    def __init__(self, *probabilities: float, labels: tuple[str, ...] = ("cat", "dog"), size: int = 2) -> None:
        self.probabilities, self.names, self.size, self.closed = probabilities, labels, size, False

    @property
    def labels(self) -> tuple[str, ...]:
        return self.names

    def prepare(self, image: Array) -> Array:
        return np.full((self.size, self.size), image.flat[0], np.float32)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        assert {sample.shape for sample in batch} == {(self.size, self.size)}
        return [classify(np.array(self.probabilities), self.names) for _ in batch]

    def close(self) -> None:
        self.closed = True


PICTURE = np.zeros((4, 4), np.uint8)


def answer(*members: Model) -> Prediction:
    committee = EnsembleModel(members)
    (prediction,) = committee.predict([committee.prepare(PICTURE)])
    return prediction


def test_the_majority_answers_and_members_may_have_other_inputs_and_orders_of_classes():
    prediction = answer(Fixed(0.9, 0.1, size=3), Fixed(0.6, 0.4), Fixed(0.8, 0.2, labels=("dog", "cat"), size=5))
    assert (prediction.label, prediction.score) == ("cat", pytest.approx(0.5))
    assert prediction.probabilities == pytest.approx([1.7 / 3, 1.3 / 3])
    assert prediction.value == {"votes": ["cat", "cat", "dog"], "scores": [0.9, 0.6, 0.8]}
    assert answer(Fixed(0.6, 0.4), Fixed(0.1, 0.9)).label == "dog", "of two that differ the surer one"


def test_a_batch_has_the_answer_of_each_sample_in_order():
    committee = EnsembleModel([Fixed(0.9, 0.1), Fixed(0.8, 0.2, size=3)])
    batch = [committee.prepare(PICTURE) for _ in range(5)]
    assert all(sample.flags.c_contiguous for sample in batch)
    assert [prediction.label for prediction in committee.predict(batch)] == ["cat"] * 5


def test_agreement_is_the_mean_score_of_the_majority_and_another_vote_counts_nothing():
    alike, unlike = answer(Fixed(0.9, 0.1), Fixed(0.7, 0.3)), answer(Fixed(0.9, 0.1), Fixed(0.3, 0.7))
    miner = create("Agreement", {"threshold_agreement": "0.8"})
    assert (judge(miner, alike).hard, judge(miner, unlike).hard) == (False, True)
    assert miner.hardness(alike) == pytest.approx(-0.8)  # type: ignore[attr-defined]
    assert miner.hardness(unlike) == pytest.approx(-0.45)  # type: ignore[attr-defined]
    assert float(parameters_at(miner, -0.6)["threshold_agreement"]) == pytest.approx(0.6)


@pytest.mark.parametrize("value", [None, {"votes": ["a"]}, {"votes": [], "scores": []}, {"votes": ["a"], "scores": []}])
def test_an_answer_without_votes_is_hard_with_the_reason(value):
    miner = create("Agreement", {})
    with pytest.raises(MiningError, match="has no votes"):
        miner.hardness(Prediction(label="a", score=1.0, value=value))  # type: ignore[attr-defined]
    assert judge(miner, Prediction(value=value)).hard


def test_calibrate_tries_agreement_where_there_are_votes():
    votes, plain = answer(Fixed(0.9, 0.1), Fixed(0.7, 0.3)), Prediction(label="a", probabilities=[1.0, 0.0])
    assert "Agreement" in [option.rule for option in candidates(None, "inference-then-mining", [votes, votes])]
    assert "Agreement" not in [option.rule for option in candidates(None, "inference-then-mining", [votes, plain])]


@pytest.mark.parametrize(
    ("members", "fix"),
    [
        ([Fixed(1.0, 0.0)], "1 models: a committee has 2 or 3 models"),
        ([Fixed(1.0, 0.0)] * 4, "4 models: a committee has 2 or 3 models"),
        ([Fixed(1.0, 0.0), Fixed(1.0, 0.0, labels=("cat", "cow"))], "different labels"),
        ([Fixed(1.0, 0.0), Fixed(1.0, 0.0, labels=())], "no labels"),
    ],
)
def test_models_that_cannot_vote_together_are_refused(members, fix):
    with pytest.raises(ModelError, match=fix):
        EnsembleModel(members)


def test_a_member_without_classes_fails_the_sample_with_the_reason():
    class Detector(Fixed):
        def predict(self, batch: Sequence[Array]) -> list[Prediction]:
            return [Prediction(boxes=[Box(0, 0, 1, 1, 0.5, "cat")]) for _ in batch]

    with pytest.raises(SampleError, match="use classifiers"):
        answer(Fixed(1.0, 0.0), Detector(1.0, 0.0))


def test_all_members_are_closed():
    members = [Fixed(1.0, 0.0), Fixed(0.0, 1.0)]
    EnsembleModel(members).close()
    assert all(member.closed for member in members)


def test_a_joint_model_takes_a_committee_as_its_edge():
    committee = EnsembleModel([Fixed(0.9, 0.1), Fixed(0.2, 0.8)])
    with JointModel(committee, Fixed(1.0, 0.0), mining="Agreement") as model:
        results = [model.predict(PICTURE) for _ in range(3)]
    assert {result.by for result in results} == {"cloud"}
    with pytest.raises(InvalidFieldError):
        JointModel(committee, Fixed(1.0, 0.0), mining="Agreement", parameters={"threshold_agreement": 2})
