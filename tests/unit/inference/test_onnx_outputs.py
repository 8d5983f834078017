from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from halimede.api.processing import Postprocess
from halimede.inference import ModelError, SampleError, isolate, open_model
from tests.unit.inference.test_onnx_model import a_spec
from tests.unit.inference.world import write_constant

FLOAT = TensorProto.FLOAT


class TestOutputs:
    @pytest.mark.parametrize(("zipmap", "text"), [(True, "zipmap"), ("columns", r"several outputs.*zipmap")])
    def test_scikit_learns_dictionaries_and_outputs_a_class_are_refused_with_the_option_that_avoids_them(
        self, digits, tmp_path, zipmap, text
    ):
        with pytest.raises(ModelError, match=text):
            open_model(digits.export(tmp_path / "zip.onnx", zipmap=zipmap), a_spec())

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"postprocess": Postprocess(output="label")}, "holds no scores"),
            ({"labels": ["cat", "dog"]}, r"10 classes and spec\.labels names 2"),
            ({"postprocess": Postprocess(task="detection")}, r"no \[boxes, 6\]"),
            ({"format": "pb"}, r"'pb'.*spec\.format.*estimator"),
        ],
        ids=["an output of whole numbers", "other labels", "boxes of class scores", "another format"],
    )
    def test_a_spec_that_does_not_fit_the_classifier_is_refused(self, digits, fields, text):
        with pytest.raises(ModelError, match=text):
            open_model(digits.path, a_spec(**fields))

    def test_the_output_that_the_spec_names_is_read(self, two_outputs):
        model = open_model(two_outputs, a_spec(postprocess=Postprocess(output="soft")))
        assert model.predict([np.zeros(3, np.float32)])[0].probabilities == pytest.approx([1 / 3] * 3)
        with pytest.raises(ModelError, match=r"name one in spec\.postprocess\.output"):
            open_model(two_outputs, a_spec())
        with pytest.raises(ModelError, match=r"no output 'sort'.*soft"):
            open_model(two_outputs, a_spec(postprocess=Postprocess(output="sort")))

    def test_of_several_outputs_the_one_with_as_many_columns_as_labels_is_read(self, features_and_top):
        model = open_model(features_and_top, a_spec(labels=["a", "b", "c"]))
        assert model.predict([np.array([0, 0, 1], np.float32)])[0].label == "c"

    def test_scores_that_are_no_probabilities_ask_for_an_activation(self, tmp_path):
        path = write_constant(tmp_path / "m.onnx", [1, 2], y=np.array([[-4, 8]]))
        with pytest.raises(ModelError, match=r"from -4 to 8.*activation to softmax"):
            open_model(path, a_spec())
        model = open_model(path, a_spec(postprocess=Postprocess(activation="softmax")))
        assert sum(model.predict([np.zeros(2, np.float32)])[0].probabilities) == pytest.approx(1)

    def test_a_picture_for_an_output_is_no_classification(self, make_echo):
        with pytest.raises(ModelError, match=r"no class scores.*spec\.postprocess"):
            open_model(make_echo(["N", 3, 4]), a_spec())

    def test_an_output_without_columns_is_the_second_class_of_two(self, make_graph):
        path = make_graph([("ReduceMax", ["x"], ["y"], {"axes": [1], "keepdims": 0})], {"x": ["N", 2]}, {"y": ["N"]})
        model = open_model(path, a_spec(labels=["fine", "broken"]))
        answers = model.predict([np.array([0.1, 0.75], np.float32), np.array([0.25, 0.1], np.float32)])
        assert [(answer.label, answer.score) for answer in answers] == [("broken", 0.75), ("fine", 0.75)]

    def test_a_sample_that_gives_nan_takes_no_other_with_it(self, digits):
        model = open_model(digits.path, a_spec())
        rows = [np.zeros(64, np.float32) for _ in range(8)]
        rows[5][3] = np.nan
        answers = isolate(rows, model.predict)
        assert [i for i, answer in enumerate(answers) if isinstance(answer, SampleError)] == [5]

    def test_a_model_that_gives_nan_on_a_blank_frame_still_opens(self, make_graph):
        path = make_graph(
            [("ReduceSum", ["x", "axis"], ["s"], {}), ("Div", ["x", "s"], ["y"], {})],
            {"x": ["N", 2]},
            {"y": ["N", 2]},
            {"axis": np.array([1], np.int64)},
        )
        model = open_model(path, a_spec())
        assert model.predict([np.array([1, 3], np.float32)])[0].probabilities == [0.25, 0.75]
        with pytest.raises(SampleError, match="NaN"):
            model.predict([np.zeros(2, np.float32)])

    def test_a_detector_that_drops_the_batch_axis_answers_one_by_one(self, make_graph):
        path = make_graph(
            [("Squeeze", ["x", "axis"], ["y"], {})], {"x": [1, 3, 6]}, {"y": [3, 6]}, {"axis": np.array([0], np.int64)}
        )
        rows = np.array([[1, 2, 3, 4, 0.9, 1], [5, 6, 7, 8, 0.3, 0], [0, 0, 0, 0, 0, 0]], np.float32)
        answers = open_model(path, a_spec(postprocess=Postprocess(task="detection"))).predict([rows, rows])
        assert [[box.label for box in answer.boxes] for answer in answers] == [[1, 0], [1, 0]]
