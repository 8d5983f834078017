"""Penultimate features beside a classifier's scores, which the mining rule Learned reads."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from halimede.api import parse
from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, open_model, unpack

FLOAT = TensorProto.FLOAT


def a_spec(**postprocess: object) -> ModelSpec:
    return ModelSpec(url="/m.onnx", format="onnx", postprocess=Postprocess(**postprocess))


@pytest.fixture
def path(make_graph):
    return make_graph(
        [("Identity", ["x"], ["hidden"], {}), ("Softmax", ["x"], ["soft"], {})],
        {"x": (FLOAT, ["N", 3])},
        {"soft": (FLOAT, ["N", 3]), "hidden": (FLOAT, ["N", 3])},
    )


def test_features_come_with_the_answer_at_length_one_and_need_no_name_for_the_scores(path):
    model = open_model(path, a_spec(features="hidden"))
    first, second = model.predict([np.array([3, 0, 4], np.float32), np.array([0, 1, 0], np.float32)])
    assert unpack(first.embeddings, 1)[0] == pytest.approx([0.6, 0, 0.8], abs=1e-3)
    assert unpack(second.embeddings, 1)[0] == pytest.approx([0, 1, 0], abs=1e-3)
    assert (first.label, second.label) == ("2", "1")


def test_without_the_field_there_are_none(path):
    assert open_model(path, a_spec(output="soft")).predict([np.ones(3, np.float32)])[0].embeddings is None


def test_an_output_that_is_not_there_is_refused_by_name(path):
    with pytest.raises(ModelError, match=r"no output 'hiden'.*spec\.postprocess\.features.*hidden"):
        open_model(path, a_spec(features="hiden"))


def test_what_is_no_vector_is_refused_when_the_model_is_opened(make_graph):
    path = make_graph(
        [("Softmax", ["x"], ["soft"], {}), ("Expand", ["x", "to"], ["map"], {})],
        {"x": (FLOAT, ["N", 3])},
        {"soft": (FLOAT, ["N", 3]), "map": (FLOAT, [2, 2, 3])},
        {"to": np.array([2, 2, 3])},
    )
    with pytest.raises((ModelError, SampleError)):
        open_model(path, a_spec(features="map"))


def test_only_classifiers_have_them():
    body = {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "m"},
        "spec": {"url": "/m", "format": "onnx", "postprocess": {"task": "detection", "features": "hidden"}},
    }
    with pytest.raises(InvalidFieldError, match=r"spec\.postprocess\.features: 'hidden'.*classification"):
        parse(body)
