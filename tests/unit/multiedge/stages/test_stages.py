from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.errors import InvalidFieldError
from halimede.inference import SampleError, open_model
from halimede.messages import Box, Prediction
from halimede.multiedge import Item
from halimede.multiedge.stages import Classify, Crop, Detect, Embed, vectors
from tests.graphs import FLOAT, write_graph
from tests.staged import a_picture, an_item, some_tools

LEFT, RIGHT = (4, 8, 20, 24), (40, 10, 60, 40)


def corners(prediction: Prediction) -> list[tuple[float, ...]]:
    return [(box.x1, box.y1, box.x2, box.y2) for box in prediction.boxes]


def boxed(boxes: list[Box], *corners_of_things):
    """Return an item with these boxes, and something at each of these corners."""
    item = an_item(*corners_of_things)
    item.prediction.boxes = boxes
    return item


def run(stages, models, *items, **tools):
    for make in stages:
        make(some_tools(models, **tools)).run(items)
    return items


class TestClassify:
    def test_says_what_each_picture_shows_and_keeps_what_was_found_before(self, models):
        first, second = an_item(), an_item((0, 0, 64, 48))
        first.prediction.boxes = [Box(1, 2, 3, 4, 1.0)]
        run([Classify], models, first, second, model="weigher")
        assert [item.prediction.label for item in (first, second)] == ["dark", "bright"]
        assert second.prediction.probabilities[1] == second.prediction.score > 0.8
        assert corners(first.prediction) == [(1, 2, 3, 4)]

    def test_names_boxes_by_their_crops(self, models):
        item = boxed([Box(*LEFT, 0.5), Box(*RIGHT, 0.6)], RIGHT)
        run([Crop, partial(Classify, crops=True)], models, item, model="weigher")
        assert [box.label for box in item.prediction.boxes] == ["dark", "bright"]
        assert corners(item.prediction) == [LEFT, RIGHT]
        assert item.prediction.label is None

    def test_names_the_picture_where_nobody_has_looked_for_boxes(self, models):
        (item,) = run([Crop, partial(Classify, crops=True)], models, an_item(), model="weigher")
        assert (item.prediction.label, item.prediction.boxes) == ("dark", None)

    @pytest.mark.parametrize(
        ("before", "model", "text"), [([], "weigher", "1 boxes and 0 crops"), ([Crop], "describer", "no label")]
    )
    def test_of_crops_wants_crops_and_a_model_that_gives_labels(self, models, before, model, text):
        item = boxed([Box(*RIGHT, 0.6)], RIGHT)
        with pytest.raises(SampleError, match=text):
            run([*before, partial(Classify, crops=True)], models, item, model=model)

    def test_without_a_model_is_a_mistake_of_the_resource(self, models):
        with pytest.raises(InvalidFieldError, match=r"spec\.edgeWorkers\[\]\.model.*edge0"):
            Classify(some_tools(models))


class TestDetect:
    def test_sets_the_boxes_of_the_detector_or_of_the_model_where_there_is_none(self, models):
        items = run([Detect], models, an_item(LEFT), an_item(), an_item(RIGHT), model="weigher", detector="spotter")
        assert [corners(item.prediction) for item in items] == [[LEFT], [], [RIGHT]]
        assert items[0].prediction.boxes[0].label == "thing"
        (item,) = run([Detect], models, an_item(LEFT), model="spotter")
        assert corners(item.prediction) == [LEFT]

    def test_leaves_out_boxes_below_the_least_score(self, models):
        (item,) = run([Detect], models, an_item(LEFT), model="spotter", minScore="1")
        assert corners(item.prediction) == [LEFT]
        item.image = item.image // 4 * 3
        run([Detect], models, item, model="spotter", minScore="1")
        assert item.prediction.boxes == []

    def test_leaves_out_boxes_outside_of_the_picture(self, tmp_path):
        ports = ({name: (FLOAT, ["N", 2, 6])} for name in "xy")
        path = write_graph(tmp_path / "echo.onnx", [("Identity", ["x"], ["y"], {})], *ports)
        spec = ModelSpec(url="/m", format="onnx", postprocess=Postprocess(task="detection"))
        item = Item(np.array([[50, 50, 60, 60, 0.9, 0], [1, 0, 3, 1, 0.8, 0]], np.float32))  # of 6 x 2 pixels
        with open_model(path, spec) as echo:
            run([Detect], {"echo": echo}, item, model="echo")
        assert corners(item.prediction) == [(1, 0, 3, 1)]

    def test_with_a_model_that_gives_no_boxes_says_what_to_set(self, models):
        with pytest.raises(SampleError, match=r"spec\.postprocess\.task"):
            run([Detect], models, an_item(), model="weigher")

    @pytest.mark.parametrize("given", [{"minScore": "2"}, {"maxBoxes": "0"}, {"maxBoxes": "257"}])
    def test_refuses_parameters_that_mean_nothing(self, models, given):
        with pytest.raises(InvalidFieldError, match=rf"spec\.application\.parameters\.{next(iter(given))}"):
            Detect(some_tools(models, model="spotter", **given))


class TestCrop:
    def test_cuts_boxes_out_in_their_order_with_a_margin(self, models):
        item = boxed([Box(*RIGHT, 0.5), Box(*LEFT, 0.9)], LEFT, RIGHT)
        run([Crop], models, item, margin="0.25")
        assert [crop.shape for crop in item.crops] == [(46, 29, 3), (24, 24, 3)]  # the first reaches the edges
        np.testing.assert_array_equal(item.crops[1][4:-4, 4:-4], item.image[8:24, 4:20])
        assert item.crops[1].base is item.image

    def test_takes_the_whole_picture_where_nobody_has_looked_for_boxes(self, models):
        (item,) = run([Crop], models, an_item())
        assert [crop.shape for crop in item.crops] == [(48, 64, 3)]
        assert item.prediction.boxes is None

    @pytest.mark.parametrize("place", [(70, 5, 90, 9), (-9, 0, -1, 9), (5, 5, 5, 9), (1e308, 0, -1e308, -1e300)])
    def test_leaves_out_boxes_without_a_pixel(self, models, place):
        item = boxed([Box(*place, 0.9), Box(*LEFT, 0.8)], LEFT)  # type: ignore[call-arg]
        run([Crop], models, item, margin="1")
        assert corners(item.prediction) == [LEFT]
        assert len(item.crops) == 1

    def test_keeps_boxes_beyond_all_measure_within_the_picture(self, models):
        item = boxed([Box(-1e308, -1e308, 1e308, 1e308, 0.9)])
        run([Crop], models, item, margin="2")
        assert item.crops[0].shape == item.image.shape

    def test_keeps_so_many_of_the_best(self, models):
        item = boxed([Box(i, 0, i + 4, 4, score) for i, score in enumerate((0.3, 0.9, 0.1, 0.5))])
        run([Crop], models, item, maxBoxes="2")
        assert [box.score for box in item.prediction.boxes] == [0.9, 0.5]
        assert len(item.crops) == 2


class TestEmbed:
    def test_describes_each_crop_in_a_vector_of_length_one(self, models):
        one, two = boxed([Box(*LEFT, 0.9), Box(*RIGHT, 0.8)], LEFT, RIGHT), boxed([Box(*RIGHT, 0.8)], RIGHT)
        none = boxed([])
        run([Crop, Embed], models, one, none, two, model="describer")
        np.testing.assert_allclose(np.linalg.norm(vectors(one.prediction), axis=1), 1, atol=1e-3)
        np.testing.assert_allclose(vectors(one.prediction)[1], vectors(two.prediction)[0])
        assert vectors(one.prediction).shape == (2, 16)
        assert len(vectors(none.prediction)) == 0

    def test_leaves_out_boxes_of_which_the_model_says_nothing(self, models):
        item = boxed([Box(*LEFT, 0.9), Box(*RIGHT, 0.8)], RIGHT)  # the left one is black
        run([Crop, Embed], models, item, model="describer")
        assert corners(item.prediction) == [RIGHT]
        assert len(vectors(item.prediction)) == len(item.crops) == 1

    def test_describes_the_whole_picture_without_boxes(self, models):
        first, black = run([Crop, Embed], models, an_item(LEFT), an_item(), model="describer")
        assert vectors(first.prediction).shape == (1, 16)
        assert vectors(black.prediction).size == 0

    def test_takes_any_number_of_crops_of_any_size(self, models):
        item = boxed([Box(i % 30, i % 20, 60 - i % 7, 44 - i % 5, 0.9) for i in range(100)], (0, 0, 64, 48))
        run([Crop, Embed], models, item, model="describer", maxBoxes="90")
        assert vectors(item.prediction).shape == (90, 16)

    @pytest.mark.parametrize(
        ("stages", "model", "text"),
        [
            ([Crop, Embed], "spotter", "task of its Model to embedding"),
            ([Embed], "describer", "put the stage Crop before"),
        ],
    )
    def test_wants_crops_and_features_of_its_model(self, models, stages, model, text):
        with pytest.raises(SampleError, match=text):
            run(stages, models, boxed([Box(*LEFT, 0.9)], LEFT), model=model)

    def test_refuses_more_features_than_a_message_holds(self, models, monkeypatch):
        monkeypatch.setattr("halimede.multiedge.stages.model_stages.MAX_BYTES", 31)
        with pytest.raises(SampleError, match="maxBoxes lower"):
            run([Crop, Embed], models, an_item(LEFT), model="describer")


def test_features_that_are_not_as_many_as_boxes_are_refused():
    with pytest.raises(SampleError, match="do not make 3 vectors"):
        vectors(Prediction(boxes=[Box(0, 0, 1, 1, 1.0)] * 3, embeddings=bytes(8)))


def test_pictures_are_left_as_they_are(models):
    item = an_item(LEFT)
    item.image.setflags(write=False)
    run([Detect, Crop, Embed], models, item, model="describer", detector="spotter")
    np.testing.assert_array_equal(item.image, a_picture(LEFT))
