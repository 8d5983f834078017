"""The step fit: a picture keeps its proportions, and boxes come back to the frame."""

from __future__ import annotations

import numpy as np
import pytest

from halimede.api.model import check
from halimede.api.processing import Fit
from halimede.errors import InvalidFieldError
from halimede.inference import SampleError, open_model
from halimede.inference.geometry import follow
from halimede.inference.preprocess import apply
from tests.graphs import FLOAT, write_graph
from tests.unit.inference.world import spec_of


@pytest.mark.parametrize(
    ("step", "frame", "size"),
    [
        (Fit(longest=640), (886, 1280), (443, 640)),
        (Fit(longest=640), (200, 100), (640, 320)),
        (Fit(longest=640, multiple=32), (886, 1280), (448, 640)),
        (Fit(longest=640, multiple=32), (4, 1280), (32, 640)),
        (Fit(multiple=32), (100, 47), (96, 32)),
        (Fit(multiple=32), (64, 96), (64, 96)),
        (Fit(height=48), (24, 100), (48, 200)),
        (Fit(height=48, multiple=8), (32, 101), (48, 152)),
        (Fit(height=50, multiple=32), (100, 100), (50, 64)),
    ],
)
def test_sizes(step, frame, size):
    picture = np.zeros((*frame, 3), np.uint8)
    assert apply([step], picture).shape == (*size, 3)
    assert apply([step], picture[..., 0]).shape == size
    geometry = follow([step], picture.shape)
    assert (geometry.y.size, geometry.x.size) == size
    corners = np.array([[0.0, 0, size[1], size[0]]])
    assert geometry.back(corners).tolist() == pytest.approx(np.array([[0, 0, frame[1], frame[0]]]))


def test_a_side_without_end_names_the_step_both_sizes_and_the_remedy():
    with pytest.raises(SampleError) as caught:
        apply([Fit(height=48)], np.zeros((1, 300), np.uint8))
    text = "the pre-processing step fit makes 14400 x 48 pixels of a picture of 300 x 1, more than 8192 a side"
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("step", [{}, {"multiple": 1}, {"longest": 8, "height": 8}])
def test_a_step_names_one_size(step):
    with pytest.raises(InvalidFieldError, match=r"spec.preprocess\[0\].longest: .* set longest or height, or multiple"):
        check(spec_of(preprocess=[{"op": "fit", **step}]))


def test_pictures_of_several_sizes_in_one_batch_run_one_by_one(tmp_path):
    nodes = [("ReduceMean", ["x"], ["m"], {"axes": [2, 3], "keepdims": 0})]
    ports = {"x": (FLOAT, ["N", 1, "H", "W"])}, {"m": (FLOAT, ["N", 1])}
    path = write_graph(tmp_path / "m.onnx", nodes, *ports)
    steps = [{"op": "grayscale"}, {"op": "fit", "height": 8}, {"op": "normalize"}, {"op": "layout", "order": "chw"}]
    with open_model(path, spec_of(preprocess=steps)) as model:
        frames = [np.full((8, width), value, np.uint8) for width, value in ((8, 51), (16, 102), (8, 204))]
        answers = model.predict([model.prepare(frame) for frame in frames])
    assert [answer.probabilities[1] for answer in answers] == pytest.approx([0.2, 0.4, 0.8])
