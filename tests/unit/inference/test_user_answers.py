from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede.inference import SampleError
from halimede.inference.user_answers import as_prediction
from halimede.messages import Box, PicturePoint, Prediction, Result, TextLine

LABELS = ("cap", "helmet", "none")
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


class TestClasses:
    @pytest.mark.parametrize(
        "answer",
        [
            [0.2, 0.7, 0.1],
            (0.2, 0.7, 0.1),
            np.array([0.2, 0.7, 0.1]),
            np.array([[0.2, 0.7, 0.1]]),
            [np.float64(0.2), np.float64(0.7), np.float64(0.1)],
            {"probabilities": np.array([0.2, 0.7, 0.1])},
        ],
    )
    def test_probabilities_are_read_in_any_form(self, answer):
        read = as_prediction(answer, LABELS)
        assert (read.label, read.score, read.probabilities) == ("helmet", 0.7, [0.2, 0.7, 0.1])

    def test_single_precision_is_kept_as_it_is(self):
        read = as_prediction(np.array([0.1, 0.9], np.float32))
        assert read.probabilities == pytest.approx([0.1, 0.9], abs=1e-7)
        assert all(type(value) is float for value in read.probabilities)

    @pytest.mark.parametrize("answer", ["helmet", np.str_("helmet"), 1, np.int64(1), np.array(1), np.array([1]), [1]])
    def test_a_label_is_read_by_name_or_index(self, answer):
        assert as_prediction(answer, LABELS) == Prediction(label="helmet")
        assert as_prediction(7).label == "7", "without labels an index is its own name"

    def test_a_dict_gives_fields_and_the_rest_as_value(self):
        read = as_prediction({"label": np.int32(2), "score": np.float32(0.5), "track": 9, "box": (1, 2)}, LABELS)
        assert read == Prediction(label="none", score=0.5, value={"track": 9, "box": [1, 2]})

    def test_what_a_dict_says_of_its_label_counts_more_than_its_probabilities(self):
        read = as_prediction({"label": "cap", "probabilities": [0.4, 0.6]}, LABELS)
        assert (read.label, read.score, read.probabilities) == ("cap", 0.6, [0.4, 0.6])

    def test_six_classes_are_told_from_one_box_by_their_sum(self):
        assert as_prediction(np.array([[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]])).label == "0"
        assert as_prediction(np.array([[0.5, 0.1, 0.9, 0.9, 0.8, 1.0]])).boxes == [Box(0.5, 0.1, 0.9, 0.9, 0.8, 1)]


class TestBoxes:
    @pytest.mark.parametrize(
        "answer",
        [
            [[10, 20, 30, 40, 0.9, 1]],
            [(10, 20, 30, 40, 0.9, "helmet")],
            np.array([[10, 20, 30, 40, 0.9, 1]]),
            [np.array([10, 20, 30, 40, 0.9, 1])],
            [Box(10, 20, 30, 40, 0.9, "helmet")],
            {"boxes": [[10, 20, 30, 40, 0.9, "helmet"]]},
            Prediction(boxes=[Box(np.float32(10), 20, 30, 40, np.float64(0.9), "helmet")]),
        ],
    )
    def test_boxes_are_read_in_any_form(self, answer):
        read = as_prediction(answer, LABELS)
        assert read == Prediction(boxes=[Box(10.0, 20.0, 30.0, 40.0, 0.9, "helmet")])
        assert all(type(number) is float for box in read.boxes for number in (box.x1, box.score))

    def test_rows_of_five_have_the_first_class(self):
        assert as_prediction(np.array([[1, 2, 3, 4, 0.5], [1, 2, 3, 4, 0.25]])).boxes[1] == Box(1, 2, 3, 4, 0.25, 0)

    @pytest.mark.parametrize("answer", [[], (), np.zeros((0, 6)), {"boxes": []}])
    def test_nothing_found_is_no_boxes(self, answer):
        assert as_prediction(answer) == Prediction(boxes=[])


class TestPointsAndLines:
    def test_landmarks_and_lines_of_text_are_typed_and_may_be_arrays(self):
        read = as_prediction({
            "boxes": np.array([[10, 20, 30, 40, 0.9, 1]]),
            "landmarks": np.array([[[12, 22], [28, 22]]]),
            "lines": [{"text": "EXIT", "score": np.float32(0.5), "corners": [(0, 0), (8, 0), (8, 4), (0, 4)]}, "2"],
        }, LABELS)  # fmt: skip
        assert read.landmarks == [[PicturePoint(12, 22), PicturePoint(28, 22)]]
        corners = [PicturePoint(0, 0), PicturePoint(8, 0), PicturePoint(8, 4), PicturePoint(0, 4)]
        assert read.lines == [TextLine(text="EXIT", score=0.5, corners=corners), TextLine(text="2")]
        assert read.value is None

    def test_points_outside_of_the_frame_and_markup_in_text_stay_as_they_are(self):
        read = as_prediction({"boxes": [[-1e6, -5, 1e6, 5, 0.5, "<b>"]], "lines": ["<script>alert(1)</script>"]})
        assert read.boxes == [Box(-1e6, -5, 1e6, 5, 0.5, "<b>")]
        assert read.lines == [TextLine(text="<script>alert(1)</script>")]

    def test_ten_thousand_boxes_are_an_answer_that_a_consumer_can_read(self):
        read = as_prediction(np.tile([[0.25, 0.5, 99.5, 100.25, 0.123456789, 3]], (10_000, 1)), (*LABELS, "x"))
        result = Result(id="0" * 32, service="s", by="edge", prediction=read, worker="w")
        assert codec.decode(topics.RESULT, codec.encode(topics.RESULT, result)) == result


class TestValues:
    @pytest.mark.parametrize(
        ("answer", "value"),
        [
            ({"speed": 3, "lane": None}, {"speed": 3, "lane": None}),
            ({1: np.float32(0.5)}, {"1": 0.5}),
            ([3, 17.5, 250], [3, 17.5, 250]),
            ([["a", 1], ["b", 2]], [["a", 1], ["b", 2]]),
            (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
            (True, True),
            (0.25, 0.25),
            (np.bool_(False), False),
        ],
    )
    def test_anything_else_that_json_can_say_is_the_value(self, answer, value):
        assert as_prediction(answer) == Prediction(value=value)
        assert as_prediction({"label": "cap", "value": answer}) == Prediction(label="cap", value=value)


NAN = float("nan")
REFUSED: list[tuple[object, str]] = [
    # boxes
    ([[1, 2, 3, 4, NAN, 0]], "NaN"),
    ([[1, 2, float("inf"), 4, 0.5, 0]], "infinity"),
    ([[1, 2, 3, 4, 87, 0]], "score 87"),
    ([[1, 2, 3, 4, 0.5, 9]], "class 9"),
    ([[1, 2, 3, 4, 0.5, None]], "None as a box's label"),
    ([[1, 2, 3, 4, 0.5, 1.5]], "1.5 as a box's label"),
    ({"boxes": [[1, 2, 3]]}, r"\[1, 2, 3\] as a box"),
    ({"boxes": "none"}, "no valid prediction"),
    (Prediction(boxes=[Box(0, 0, 1, NAN, 0.5)]), "NaN"),
    ([[0, 0, 1, 1, 0.5, "x" * 10_000]], "a box's label of 10000 characters"),
    ([[0, 0, 1, 1, 0.5, 0]] * 10_001, "10001 boxes, more than 10000"),
    ({"boxes": [[0, 0, 1, 1, 0.5, 0]] * 10_001}, "10001 boxes, more than 10000"),
    # points and lines
    ({"landmarks": [[[1, NAN]]]}, "landmarks"),
    ({"landmarks": [[1, 2]]}, "landmarks"),
    ({"landmarks": [[[1, 2]] * 513]}, "length <= 512"),
    ({"landmarks": 5}, "landmarks"),
    ({"lines": "EXIT"}, "lines"),
    ({"lines": ["x"] * 1001}, "length <= 1000"),
    ({"lines": ["<b>" * 3500]}, "length <= 4096"),
    ({"lines": [{"text": "x", "score": NAN}]}, "lines"),
    ({"lines": [{"text": "x", "corners": [[0, 0], [1, 0], [1, 1]]}]}, "length"),
    # classes
    (3, "class 3"),
    ({"label": "<b>" * 3500}, "length <= 1024"),
    ([NAN, 0.5], "NaN"),
    ({"probabilities": [0.5, NAN]}, "NaN"),
    ({"label": "cap", "score": NAN}, "NaN"),
    ({"label": "cap", "score": "high"}, "no valid prediction"),
    ({"label": ["cap"]}, "no valid prediction"),
    # values
    (None, "nothing"),
    (object(), "type object"),
    (b"raw", "bytes"),
    ({"x": {"y": object()}}, "type object"),
    ({"x": 2**70}, "JSON cannot say"),
    (np.array([object()]), "type object"),
    (ENDLESS, "JSON cannot say"),
]


@pytest.mark.parametrize(("answer", "says"), REFUSED)
def test_what_is_no_prediction_is_an_error_of_the_sample_that_says_why(answer, says):
    with pytest.raises(SampleError, match=says):
        as_prediction(answer, LABELS)


FIELDS = ["label", "score", "probabilities", "boxes", "landmarks", "lines", "value", "x"]
numbers = st.floats() | st.integers(-(2**63), 2**63 - 1)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=7)
        | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
        | st.lists(numbers, max_size=6).map(np.array)
    ),
    max_leaves=12,
)


@given(anything)
def test_whatever_an_estimator_returns_is_a_prediction_that_travels_or_a_sample_error(answer):
    try:
        read = as_prediction(answer, LABELS)
    except SampleError:
        return
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(read), type=Prediction)
    assert repr(again) == repr(read)  # text, because NaN inside a value equals nothing
    msgspec.json.encode(read)
