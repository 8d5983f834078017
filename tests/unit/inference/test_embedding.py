"""Vectors of embedding models, and penultimate features beside a classifier's scores, which the rule Learned reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

from halimede.api.model import ModelSpec, check
from halimede.api.processing import Postprocess
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, open_model, pack, unit, unpack
from halimede.inference.postprocess import ClassReader, FeaturedClassReader
from tests.graphs import write_describer

FLOAT = TensorProto.FLOAT


def a_spec(**fields: object) -> ModelSpec:
    return ModelSpec(**{"url": "/m", "format": "onnx", "postprocess": Postprocess(task="embedding"), **fields})


class TestAnEmbeddingModel:
    def test_answers_with_vectors_of_length_one_or_of_zeros_for_a_blank_picture(self, tmp_path):
        with open_model(write_describer(tmp_path / "m.onnx", 4), a_spec()) as model:
            answers = model.predict([np.array(row, np.float32) for row in ([1, 0, 0, 0], [30, 20, 20, 10], [0] * 4)])
        first, second, blank = (unpack(answer.embeddings, 1)[0] for answer in answers)
        np.testing.assert_allclose(first, np.array([3, -1, -1, -1]) / np.sqrt(12), atol=1e-3)
        np.testing.assert_allclose(second, np.array([1, 0, 0, -1]) / np.sqrt(2), atol=1e-3)
        assert not blank.any()
        assert all(answer.label is None and answer.probabilities is None for answer in answers)

    def test_is_read_off_pooled_features_whatever_labels_the_spec_names(self, make_graph):
        path = make_graph([("GlobalAveragePool", ["x"], ["y"], {})], {"x": ["N", 3, 4, 4]}, {"y": ["N", 3, 1, 1]})
        with open_model(path, a_spec(labels=["a", "b"])) as model:
            (answer,) = model.predict([np.ones((3, 4, 4), np.float32)])
        np.testing.assert_allclose(unpack(answer.embeddings, 1), [[0.5773] * 3], atol=1e-3)

    def test_with_several_outputs_wants_one_named_however_many_labels_there_are(self, features_and_top):
        with pytest.raises(ModelError, match=r"name one in spec\.postprocess\.output"):
            open_model(features_and_top, a_spec(labels=["a"]))
        features = Postprocess(task="embedding", output="features")
        with open_model(features_and_top, a_spec(postprocess=features)) as model:
            assert unpack(model.predict([np.ones(3, np.float32)])[0].embeddings, 1).shape == (1, 3)

    def test_that_gives_pictures_is_refused(self, make_echo):
        with pytest.raises(ModelError, match=r"\[3, 4\].*no vector.*spec\.postprocess"):
            open_model(make_echo(["N", 3, 4]), a_spec())

    def test_that_gives_nan_fails_for_that_sample_alone(self, tmp_path):
        with open_model(write_describer(tmp_path / "m.onnx", 2), a_spec()) as model:
            with pytest.raises(SampleError, match="NaN"):
                model.predict([np.array([np.nan, 1], np.float32)])
            assert model.predict([np.array([0, 1], np.float32)])

    def test_with_an_activation_is_a_mistake_of_the_spec(self, tmp_path):
        spec = a_spec(postprocess=Postprocess(task="embedding", activation="softmax"))
        with pytest.raises(InvalidFieldError, match=r"spec\.postprocess\.activation"):
            open_model(write_describer(tmp_path / "m.onnx", 4), spec)


@given(hnp.arrays(np.float64, st.integers(1, 64), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_any_finite_vector_gets_length_one_or_says_nothing(values):
    vector = unpack(pack(unit(values)), 1)[0]
    assert np.linalg.norm(vector) == pytest.approx(1 if values.any() else 0, abs=2e-3)


@given(st.binary(max_size=64), st.integers(0, 8))
def test_any_bytes_are_features_or_an_error_of_the_sample(data, count):
    try:
        vectors = unpack(data, count)
    except SampleError:
        return
    assert len(vectors) == count
    assert np.isfinite(vectors).all()
    assert pack(vectors) == data


@pytest.mark.parametrize("values", [[], [[1.0]], [np.inf, 1], np.ones(8193)])
def test_what_is_no_vector_of_numbers_is_refused(values):
    with pytest.raises(SampleError):
        unit(np.array(values))


def test_features_come_with_the_answer_at_length_one_and_need_no_name_for_the_scores(two_outputs):
    model = open_model(two_outputs, a_spec(postprocess=Postprocess(features="hidden")))
    first, second = model.predict([np.array([3, 0, 4], np.float32), np.array([0, 1, 0], np.float32)])
    assert unpack(first.embeddings, 1)[0] == pytest.approx([0.6, 0, 0.8], abs=1e-3)
    assert unpack(second.embeddings, 1)[0] == pytest.approx([0, 1, 0], abs=1e-3)
    assert (first.label, second.label) == ("2", "1")
    with open_model(two_outputs, a_spec(postprocess=Postprocess(output="soft"))) as model:
        assert model.predict([np.ones(3, np.float32)])[0].embeddings is None


def test_an_output_that_is_not_there_is_refused_by_name(two_outputs):
    with pytest.raises(ModelError, match=r"no output 'hiden'.*spec\.postprocess\.features.*hidden"):
        open_model(two_outputs, a_spec(postprocess=Postprocess(features="hiden")))


def test_what_is_no_vector_is_refused_when_the_model_is_opened(make_graph):
    path = make_graph(
        [("Softmax", ["x"], ["soft"], {}), ("Expand", ["x", "to"], ["map"], {})],
        {"x": ["N", 3]},
        {"soft": ["N", 3], "map": [2, 2, 3]},
        {"to": np.array([2, 2, 3])},
    )
    with pytest.raises((ModelError, SampleError)):
        open_model(path, a_spec(postprocess=Postprocess(features="map")))


@pytest.mark.parametrize(("scores", "features"), [(5, 3), (2, 3), (3, 5), (3, 2)])
def test_as_many_rows_of_scores_and_of_features_are_needed_as_samples(scores, features):
    reader = FeaturedClassReader(ClassReader("scores", Postprocess(), ()), "features")
    with pytest.raises(SampleError, match="for 3 samples"):
        reader.split([np.ones((scores, 2)), np.ones((features, 4))], 3)


def test_only_classifiers_have_them():
    with pytest.raises(InvalidFieldError, match=r"spec\.postprocess\.features: 'hidden'.*classification"):
        check(a_spec(postprocess=Postprocess(task="detection", features="hidden")))
