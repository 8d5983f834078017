from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto

from halimede.api.processing import Postprocess
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, isolate, open_model
from tests.unit.inference.test_onnx_model import a_spec

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

    def test_the_output_that_the_spec_names_is_read(self, make_graph):
        path = make_graph(
            [("Identity", ["x"], ["same"], {}), ("Softmax", ["x"], ["soft"], {})],
            {"x": ["N", 3]},
            {"same": ["N", 3], "soft": ["N", 3]},
        )
        model = open_model(path, a_spec(postprocess=Postprocess(output="soft")))
        assert model.predict([np.zeros(3, np.float32)])[0].probabilities == pytest.approx([1 / 3] * 3)
        with pytest.raises(ModelError, match=r"name one in spec\.postprocess\.output"):
            open_model(path, a_spec())
        with pytest.raises(ModelError, match=r"no output 'sort'.*soft"):
            open_model(path, a_spec(postprocess=Postprocess(output="sort")))

    def test_of_several_outputs_the_one_with_as_many_columns_as_labels_is_read(self, make_graph):
        path = make_graph(
            [("Identity", ["x"], ["features"], {}), ("ReduceMax", ["x"], ["top"], {"axes": [1]})],
            {"x": ["N", 3]},
            {"top": ["N", 1], "features": ["N", 3]},
        )
        model = open_model(path, a_spec(labels=["a", "b", "c"]))
        assert model.predict([np.array([0, 0, 1], np.float32)])[0].label == "c"

    def test_scores_that_are_no_probabilities_ask_for_an_activation(self, make_graph):
        path = make_graph(
            [("Add", ["x", "bias"], ["y"], {})],
            {"x": ["N", 2]},
            {"y": ["N", 2]},
            {"bias": np.array([-4, 8], np.float32)},
        )
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


class TestDetection:
    DETECTION = Postprocess(task="detection")
    ROWS = np.array([[1, 2, 3, 4, 0.9, 1], [5, 6, 7, 8, 0.3, 0], [0, 0, 0, 0, 0, 0]], np.float32)

    def test_rows_become_boxes_and_padding_is_left_out(self, make_echo):
        model = open_model(make_echo(["N", 3, 6]), a_spec(postprocess=self.DETECTION, labels=["cap", "helmet"]))
        first, second = model.predict([self.ROWS, np.zeros((3, 6), np.float32)])
        rows = [(box.x1, box.y2, round(box.score, 3), box.label) for box in first.boxes]
        assert rows == [(1, 4, 0.9, "helmet"), (5, 8, 0.3, "cap")]
        assert second.boxes == []

    def test_a_model_that_drops_the_batch_axis_answers_one_by_one(self, make_graph):
        path = make_graph(
            [("Squeeze", ["x", "axis"], ["y"], {})], {"x": [1, 3, 6]}, {"y": [3, 6]}, {"axis": np.array([0], np.int64)}
        )
        answers = open_model(path, a_spec(postprocess=self.DETECTION)).predict([self.ROWS, self.ROWS])
        assert [[box.label for box in answer.boxes] for answer in answers] == [[1, 0], [1, 0]]

    def test_an_activation_for_boxes_is_a_mistake_of_the_spec(self, make_echo):
        spec = a_spec(postprocess=Postprocess(task="detection", activation="sigmoid"))
        with pytest.raises(InvalidFieldError, match=re.escape("spec.postprocess.activation")):
            open_model(make_echo(["N", 3, 6]), spec)
