from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto

from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, isolate, open_model

FLOAT = TensorProto.FLOAT


def a_spec(**fields: object) -> ModelSpec:
    return ModelSpec(**{"url": "/models/m.onnx", "format": "onnx", **fields})


class TestOutputs:
    def test_scikit_learns_dictionaries_are_refused_with_the_option_that_avoids_them(self, digits, tmp_path):
        with pytest.raises(ModelError, match="zipmap"):
            open_model(digits.export(tmp_path / "zip.onnx", zipmap=True), a_spec())

    def test_one_output_a_class_is_refused(self, digits, tmp_path):
        with pytest.raises(ModelError, match=r"several outputs.*zipmap"):
            open_model(digits.export(tmp_path / "zip.onnx", zipmap="columns"), a_spec())

    def test_the_output_that_the_spec_names_is_read(self, make_graph):
        path = make_graph(
            [("Identity", ["x"], ["same"], {}), ("Softmax", ["x"], ["soft"], {})],
            {"x": (FLOAT, ["N", 3])},
            {"same": (FLOAT, ["N", 3]), "soft": (FLOAT, ["N", 3])},
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
            {"x": (FLOAT, ["N", 3])},
            {"top": (FLOAT, ["N", 1]), "features": (FLOAT, ["N", 3])},
        )
        model = open_model(path, a_spec(labels=["a", "b", "c"]))
        assert model.predict([np.array([0, 0, 1], np.float32)])[0].label == "c"

    def test_an_output_of_whole_numbers_holds_no_scores(self, digits):
        with pytest.raises(ModelError, match="holds no scores"):
            open_model(digits.path, a_spec(postprocess=Postprocess(output="label")))

    def test_labels_that_do_not_match_the_classes_are_refused(self, digits):
        with pytest.raises(ModelError, match=r"10 classes and spec\.labels names 2"):
            open_model(digits.path, a_spec(labels=["cat", "dog"]))

    def test_scores_that_are_no_probabilities_ask_for_an_activation(self, make_graph):
        path = make_graph(
            [("Add", ["x", "bias"], ["y"], {})],
            {"x": (FLOAT, ["N", 2])},
            {"y": (FLOAT, ["N", 2])},
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
        path = make_graph(
            [("ReduceMax", ["x"], ["y"], {"axes": [1], "keepdims": 0})], {"x": (FLOAT, ["N", 2])}, {"y": (FLOAT, ["N"])}
        )
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
            {"x": (FLOAT, ["N", 2])},
            {"y": (FLOAT, ["N", 2])},
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
        assert [(box.x1, box.y2, round(box.score, 3), box.label) for box in first.boxes] == [
            (1, 4, 0.9, "helmet"),
            (5, 8, 0.3, "cap"),
        ]
        assert second.boxes == []

    def test_a_model_that_drops_the_batch_axis_answers_one_by_one(self, make_graph):
        path = make_graph(
            [("Squeeze", ["x", "axis"], ["y"], {})],
            {"x": (FLOAT, [1, 3, 6])},
            {"y": (FLOAT, [3, 6])},
            {"axis": np.array([0], np.int64)},
        )
        answers = open_model(path, a_spec(postprocess=self.DETECTION)).predict([self.ROWS, self.ROWS])
        assert [[box.label for box in answer.boxes] for answer in answers] == [[1, 0], [1, 0]]

    def test_class_scores_are_no_boxes(self, digits):
        with pytest.raises(ModelError, match=r"no \[boxes, 6\]"):
            open_model(digits.path, a_spec(postprocess=self.DETECTION))

    def test_an_activation_for_boxes_is_a_mistake_of_the_spec(self, make_echo):
        spec = a_spec(postprocess=Postprocess(task="detection", activation="sigmoid"))
        with pytest.raises(InvalidFieldError, match=re.escape("spec.postprocess.activation")):
            open_model(make_echo(["N", 3, 6]), spec)
