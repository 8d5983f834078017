"""What detection models give, in each form, becomes the same boxes: in pixels of the frame."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto

from halimede.api.model import ModelSpec
from halimede.api.processing import Boxes, Crop, Letterbox, Nms, Postprocess, Resize
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, open_model
from halimede.inference.detection import MAX_BOXES, BoxReader
from halimede.inference.geometry import follow

FLOAT = TensorProto.FLOAT
LABELS = ["cap", "helmet", "none"]
#: three boxes of cxcywh: the first two overlap and are of one class, the third is of another
YOLO = np.array(
    [[10, 10, 8, 8, 0.9, 0.1, 0], [11, 10, 8, 8, 0.8, 0, 0], [10, 10, 8, 8, 0, 0.7, 0.2]], np.float64
)  # fmt: skip


def reader(labels=LABELS, names=("y",), top=0, **fields) -> BoxReader:
    of_graph = {name: fields.pop(name) for name in ("nms", "activation") if name in fields}
    return BoxReader(names, Postprocess(task="detection", boxes=Boxes(**fields), top_k=top, **of_graph), labels)


def detecting(boxes: Boxes | None = None, nms: Nms | None = None, **fields: object) -> ModelSpec:
    return ModelSpec(
        url="/m", format="onnx", postprocess=Postprocess(task="detection", boxes=boxes, nms=nms), **fields
    )  # fmt: skip


def rows(prediction) -> list[list[object]]:
    return [[box.x1, box.y1, box.x2, box.y2, round(box.score, 6), box.label] for box in prediction.boxes]


class TestForms:
    @pytest.mark.parametrize("turned", [False, True], ids=["boxes first", "channels first"])
    def test_yolo_takes_the_best_class_of_each_box(self, turned):
        found = reader(decode="yolo").read((YOLO.T if turned else YOLO,))
        assert rows(found) == [[6, 6, 14, 14, 0.9, "cap"], [7, 6, 15, 14, 0.8, "cap"], [6, 6, 14, 14, 0.7, "helmet"]]

    def test_suppression_keeps_the_best_of_each_class(self):
        found = reader(decode="yolo", nms=Nms()).read((YOLO.T,))
        assert [box.label for box in found.boxes] == ["cap", "helmet"]
        assert [box.score for box in reader(decode="yolo", nms=Nms(score=0.75)).read((YOLO.T,)).boxes] == [0.9]
        assert len(reader(decode="yolo", nms=Nms(iou=1)).read((YOLO.T,)).boxes) == 3
        assert len(reader(decode="yolo", nms=Nms(iou=1, max=2)).read((YOLO.T,)).boxes) == 2
        assert len(reader(decode="yolo", nms=Nms(iou=1), top=1).read((YOLO.T,)).boxes) == 1

    def test_yolov5_multiplies_with_the_score_for_anything(self):
        values = np.insert(YOLO, 4, [0.5, 1, 0], axis=1)
        assert [box.score for box in reader(decode="yolov5").read((values,)).boxes] == pytest.approx([0.45, 0.8])

    def test_without_labels_the_longer_axis_counts_boxes(self):
        values = np.zeros((7, 50))
        values[:, 3] = [10, 10, 8, 8, 0, 0.7, 0.2]
        for part in (values, values.T):
            assert rows(reader(labels=[], decode="yolo").read((part,))) == [[6, 6, 14, 14, 0.7, 1]]

    def test_scores_without_activation_are_activated_where_the_spec_says_so(self):
        logits = YOLO.copy()
        logits[:, 4:] = [[4, -9, -9], [-9, -9, -9], [-9, 2, -9]]
        with pytest.raises(SampleError, match=r"score 4.*activation"):
            reader(decode="yolo").read((logits,))
        found = reader(decode="yolo", activation="sigmoid", nms=Nms()).read((logits,))
        assert [box.score for box in found.boxes] == pytest.approx([1 / (1 + np.exp(-4)), 1 / (1 + np.exp(-2))])

    def test_boxes_apart_from_scores(self):
        two = reader(names=("s", "b"), output="b", form="cxcywh")
        assert rows(two.read((YOLO[:, 4:], YOLO[:, :4])))[2] == [6, 6, 14, 14, 0.7, "helmet"]
        three = reader(names=("s", "b", "c"), output="b", classes="c", form="xywh")
        found = three.read((np.array([0.5, 0]), np.array([[1, 2, 3, 4], [0, 0, 0, 0]]), np.array([2.0, 0])))
        assert rows(found) == [[1, 2, 4, 6, 0.5, "none"]]

    def test_after_softmax_a_class_more_than_labels_means_nothing(self):
        logits = np.array([[9, 0, 0, 0], [0, 0, 0, 9]], float)
        found = reader(names=("s", "b"), output="b", activation="softmax", nms=Nms()).read((logits, YOLO[:2, :4]))
        assert [box.label for box in found.boxes] == ["cap"]

    def test_rows_stay_as_they_came_unless_something_is_asked_for(self):
        values = np.array([[5, 1, 2, 7, 0.5, 0], [0, 0, 1, 1, 0.9, 1]])
        assert rows(reader().read((values,)))[0][:4] == [5, 1, 2, 7]
        assert [box.score for box in reader(top=1).read((values,)).boxes] == [0.9]

    def test_boxes_keep_their_order_and_have_plain_numbers_and_none_are_an_answer_too(self):
        answer = reader(labels=[]).read((np.array([[0, 1, 2, 3, 0.5, 7], [4, 5, 6, 7, 1, 0]], np.float32),))
        assert [box.label for box in answer.boxes] == [7, 0]
        assert all(type(value) is float for box in answer.boxes for value in (box.x1, box.score))
        assert reader().read((np.zeros((0, 6)),)).boxes == []
        assert reader().read((np.array([[0, 0, 0, 0, -1.0, -1]]),)).boxes == []


class TestTheWayBack:
    def test_boxes_are_in_pixels_of_the_frame(self):
        geometry = follow([Letterbox(width=416, height=416)], (480, 640, 3))
        values = np.array([[208, 208, 65, 130, 0.9, 0, 0]])
        found = reader(decode="yolo").read((values,), geometry)
        assert rows(found) == [[270, 140, 370, 340, 0.9, "cap"]]
        shares = values.copy()
        shares[:, :4] /= 416
        again = reader(decode="yolo", normalized=True).read((shares,), geometry)
        np.testing.assert_allclose(rows(again)[0][:4], [270, 140, 370, 340])

    def test_each_frame_of_a_batch_has_a_way_of_its_own(self, make_graph):
        path = make_graph(
            [("ReduceMax", ["x"], ["m"], {"axes": [1, 2], "keepdims": 1}), ("Mul", ["m", "zero"], ["z"], {}),
             ("ReduceMax", ["z"], ["flat"], {"axes": [3], "keepdims": 0}), ("Add", ["flat", "boxes"], ["y"], {})],
            {"x": (FLOAT, ["N", 8, 8, 3])},
            {"y": (FLOAT, ["N", 1, 6])},
            {"zero": np.zeros(1, np.float32), "boxes": np.array([[[2, 2, 6, 6, 0.5, 1]]], np.float32)},
        )  # fmt: skip
        steps = [Crop(width=16, height=16), Resize(width=8, height=8)]
        model = open_model(path, detecting(nms=Nms(), labels=LABELS, preprocess=steps))
        samples = [model.prepare(np.zeros((16 + 2 * i, 16 + 4 * i, 3), np.float32)) for i in range(3)]
        alone = [model.predict([sample])[0] for sample in samples]
        for i, answer in enumerate(alone):
            assert rows(answer) == [[4 + 2 * i, 4 + i, 12 + 2 * i, 12 + i, 0.5, "helmet"]]
        assert model.predict(samples) == alone

    def test_a_sample_that_nobody_prepared_keeps_the_models_own_pixels(self):
        assert rows(reader(decode="yolo").read((YOLO,)))[0][:4] == [6, 6, 14, 14]


class TestRefusals:
    @pytest.mark.parametrize(
        ("part", "fields", "says"),
        [
            (np.zeros((8, 50)), {"decode": "yolo"}, r"no \[boxes, 4 \+ 3\] of yolo"),
            (np.zeros(7), {"decode": "yolo"}, "no .*yolo"),
            (np.zeros((3, 50)), {"decode": "yolo", "labels": []}, "no .*yolo"),
            (np.full((7, 50), np.nan), {"decode": "yolo"}, "NaN"),
            (np.full((7, 50), 1e308), {"decode": "yolo"}, "score 1e.308"),
            ([[0, 0, 1, 1, 0.5, 1e300]], {"labels": []}, "no class index"),
            ([[0, 0, 1, 1, np.nan, 0]], {}, "NaN"),
            ([[0, np.inf, 1, 1, 0.5, 0]], {}, "infinity"),
            ([[0, 0, 1, 1, 1.5, 0]], {}, "score 1.5"),
            ([[0, 0, 1, 1, 0.5]], {}, r"no \[boxes, 6\]"),
            ([[0, 0, 1, 1, 0.5, 3]], {}, "class 3"),
            ([[0, 0, 1, 1, 0.5, -1]], {}, "class -1"),
            ([[0, 0, 1, 1, 0.5, 0]] * (MAX_BOXES + 1), {}, "suppress overlaps"),
        ],
    )
    def test_what_does_not_fit_is_an_error_of_the_sample(self, part, fields, says):
        with pytest.raises(SampleError, match=says):
            reader(**fields).read((np.array(part),))

    @pytest.mark.parametrize(("scores", "classes"), [((2, 1), (2, 1)), ((2,), (3,))])
    def test_classes_apart_from_scores_need_one_score_for_each_box(self, scores, classes):
        with pytest.raises(SampleError, match="want one a box"):
            reader(names=("s", "b", "c"), output="b", classes="c").read(
                (np.zeros(scores), np.zeros((2, 4)), np.zeros(classes))
            )

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"boxes": Boxes(decode="yolo", output="b")}, "boxes.decode"),
            ({"boxes": Boxes(classes="c")}, "boxes.classes"),
            ({"activation": "sigmoid"}, "activation"),
        ],
    )
    def test_a_spec_that_contradicts_itself_is_refused(self, make_echo, fields, field):
        spec = ModelSpec(url="/m", format="onnx", postprocess=Postprocess(task="detection", **fields))
        with pytest.raises(InvalidFieldError, match=re.escape(f"spec.postprocess.{field}")):
            open_model(make_echo(["N", 3, 6]), spec)

    def test_an_output_that_is_not_there_is_named(self, make_echo):
        with pytest.raises(ModelError, match=r"no output 'boxes': set spec\.postprocess\.boxes\.output to one of y"):
            open_model(make_echo(["N", 3, 6]), detecting(Boxes(output="boxes")))

    def test_labels_that_do_not_fit_are_found_when_the_model_is_opened(self, make_echo):
        with pytest.raises(ModelError, match=r"\[9, 20\].*spec\.labels"):
            open_model(make_echo(["N", 9, 20]), detecting(Boxes(decode="yolo"), labels=LABELS))

    @given(npst.arrays(np.float32, st.tuples(st.integers(0, 9), st.just(7)), elements=st.floats(width=32)))
    def test_any_numbers_are_boxes_or_an_error_of_the_sample(self, values):
        try:
            found = reader(decode="yolo", nms=Nms()).read((values,), follow([Resize(width=9, height=3)], (30, 90)))
        except SampleError:
            return
        for box in found.boxes:
            assert 0 <= box.x1 <= box.x2 <= 90
            assert 0 <= box.y1 <= box.y2 <= 30
