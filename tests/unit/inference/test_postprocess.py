from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from halimede.api.processing import Postprocess
from halimede.inference import SampleError
from halimede.inference.postprocess import ClassReader, activate, classify, rows_of
from halimede.messages import Prediction

any_scores = npst.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]), st.integers(1, 20), elements=st.floats(width=16)
)


@given(any_scores, st.sampled_from(["none", "softmax", "sigmoid"]))
def test_any_scores_are_either_a_prediction_or_an_error_of_the_sample(scores, activation):
    if not np.isfinite(scores).all():
        with pytest.raises(SampleError, match="NaN or infinity"):
            classify(scores, (), activation)
        return
    answer = classify(scores, (), activation)
    assert answer.score == max(answer.probabilities) == answer.probabilities[int(answer.label)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Prediction) == answer


@given(npst.arrays(np.float64, st.integers(2, 20), elements=st.floats(-1e308, 1e308)))
def test_softmax_adds_up_to_one_however_large_the_scores(scores):
    values = activate(scores, "softmax")
    assert values.sum() == pytest.approx(1)
    assert values[scores.argmax()] == values.max()


@given(st.floats(-1e308, 1e308))
def test_sigmoid_stays_in_its_range_and_mirrors(score):
    up, down = activate(np.array([score, -score]), "sigmoid")
    assert 0 <= up <= 1
    assert up + down == pytest.approx(1)


def test_softmax_and_sigmoid_agree_with_their_formulas():
    scores = np.array([-1.0, 0.0, 2.0])
    np.testing.assert_allclose(activate(scores, "softmax"), np.exp(scores) / np.exp(scores).sum())
    np.testing.assert_allclose(activate(scores, "sigmoid"), 1 / (1 + np.exp(-scores)))


def test_a_single_score_is_the_second_class_of_two_unless_one_label_says_otherwise():
    assert classify(np.array([0.25]), ("no", "yes")).probabilities == [0.75, 0.25]
    assert classify(np.array([0.25]), ("no", "yes")).label == "no"
    assert classify(np.array([0.25]), ("yes",)).probabilities == [0.25]
    assert classify(np.array([2.0]), (), "sigmoid").label == "1"


def test_the_best_classes_are_listed_where_the_spec_asks_for_them():
    spec = Postprocess(top_k=2, activation="softmax")
    answer = ClassReader("y", spec, ("a", "b", "c")).read((np.log([0.2, 0.5, 0.3]),))
    assert answer.label == "b"
    assert answer.probabilities == pytest.approx([0.2, 0.5, 0.3]), "mining decides by all of them"
    assert [(best["label"], round(best["score"], 6)) for best in answer.value] == [("b", 0.5), ("c", 0.3)]
    assert ClassReader("y", Postprocess(), ()).read((np.array([0.2, 0.8]),)).value is None
    assert len(ClassReader("y", Postprocess(top_k=9), ()).read((np.array([0.2, 0.8]),)).value) == 2


def test_a_class_without_a_label_is_an_error_of_the_sample():
    with pytest.raises(SampleError, match=r"class 2, and spec\.labels names 0 to 1"):
        classify(np.array([0, 0, 1.0]), ("a", "b"))


@pytest.mark.parametrize("shape", [(0,), (2, 2), ()])
def test_what_is_no_row_of_scores_is_refused(shape):
    with pytest.raises(SampleError, match="no class scores"):
        classify(np.zeros(shape))


@pytest.mark.parametrize("shape", [(), (2, 0), (2, 0, 3)])
def test_an_output_without_a_row_for_each_sample_is_refused(shape):
    with pytest.raises(SampleError, match="the model gives"):
        rows_of(np.ones(shape))
