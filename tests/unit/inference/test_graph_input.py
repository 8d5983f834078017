"""Pictures of 0 to 255 at a model of floats: the warning where that is certain enough, and no warning elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from halimede.api.model import ModelSpec
from halimede.inference.graph_input import graph_input, scale_warning
from tests.graphs import FLOAT, Node, write_graph
from tests.lite_files import write_classifier
from tests.unit.inference.world import spec_of

PICTURE: dict[str, Any] = {"op": "resize", "width": 4, "height": 4}
LAYOUT = {"op": "layout", "order": "chw"}
WEIGHTS = {"w": np.ones((2, 3, 4, 4), np.float32), "k": np.array(255, np.float32)}
CONV: Node = ("Conv", ["x", "w"], ["y"], {})


def spec(*steps: dict[str, Any], form: str = "onnx") -> ModelSpec:
    return spec_of(format=form, preprocess=list(steps))


def conv(path: Path, *before: Node, name: str = "x", kind: int = FLOAT) -> Path:
    """Write a convolution of ``x`` behind the nodes ``before``, which start from the input ``name``."""
    ports = {name: (kind, ["N", 3, 4, 4])}, {"y": (FLOAT, ["N", 2, 1, 1])}
    return write_graph(path / "m.onnx", [*before, CONV], *ports, WEIGHTS)


def test_pictures_that_a_convolution_weighs_as_they_are_are_warned_of(tmp_path: Path) -> None:
    said = scale_warning(conv(tmp_path), spec(PICTURE, LAYOUT))
    assert "input x takes floats" in said
    assert "0 to 255" in said
    assert "{op: normalize}" in said
    assert "{op: scale}" in said


def test_a_cast_alone_does_not_change_the_range(tmp_path: Path) -> None:
    assert scale_warning(conv(tmp_path), spec(PICTURE, {"op": "cast", "dtype": "float32"}, LAYOUT))


@pytest.mark.parametrize(
    "step",
    [{"op": "normalize"}, {"op": "scale"}, {"op": "scale", "mean": 127.5}, {"op": "script", "file": "pre.py"}],
    ids=["normalize", "an empty scale", "a mean", "a script"],
)
def test_whoever_decides_on_the_range_is_not_warned(tmp_path: Path, step: dict[str, Any]) -> None:
    assert scale_warning(conv(tmp_path), spec(PICTURE, step, LAYOUT)) == ""


def test_samples_that_no_step_for_pictures_prepares_are_not_warned_of(tmp_path: Path) -> None:
    assert scale_warning(conv(tmp_path), spec()) == ""
    assert scale_warning(conv(tmp_path), spec({"op": "cast", "dtype": "float32"})) == ""


@pytest.mark.parametrize("operator", ["Div", "Mul", "Sub", "Add"])
def test_a_model_that_scales_its_input_itself_is_not_warned_of(tmp_path: Path, operator: str) -> None:
    path = conv(tmp_path, (operator, ["pixels", "k"], ["x"], {}), name="pixels")
    assert scale_warning(path, spec(PICTURE, LAYOUT)) == ""


def test_scaling_is_found_behind_steps_that_only_move_values(tmp_path: Path) -> None:
    moved: list[Node] = [("Identity", ["a"], ["b"], {}), ("Transpose", ["b"], ["c"], {"perm": [0, 1, 3, 2]})]
    assert scale_warning(conv(tmp_path, *moved, ("Div", ["c", "k"], ["x"], {}), name="a"), spec(PICTURE, LAYOUT)) == ""
    assert scale_warning(conv(tmp_path, *moved, ("Identity", ["c"], ["x"], {}), name="a"), spec(PICTURE, LAYOUT))


def test_an_input_of_bytes_is_not_warned_of(tmp_path: Path) -> None:
    cast: Node = ("Cast", ["pixels"], ["x"], {"to": FLOAT})
    assert scale_warning(conv(tmp_path, cast, name="pixels", kind=TensorProto.UINT8), spec(PICTURE, LAYOUT)) == ""


def test_weights_that_an_old_file_lists_as_inputs_are_none(tmp_path: Path) -> None:
    ports = {"x": (FLOAT, ["N", 3, 4, 4]), "w": (FLOAT, [2, 3, 4, 4])}, {"y": (FLOAT, ["N", 2, 1, 1])}
    found = graph_input(write_graph(tmp_path / "m.onnx", [CONV], *ports, WEIGHTS), "onnx")
    assert (found.name, found.floats, found.operators) == ("x", True, frozenset({"Conv"}))


def test_a_file_that_cannot_be_read_is_left_to_who_opens_it(tmp_path: Path) -> None:
    whole = conv(tmp_path).read_bytes()
    for i, content in enumerate([b"", b"nothing", whole[: len(whole) // 2], whole[:20] + b"\xff" * 40 + whole[60:]]):
        path = tmp_path / f"{i}.onnx"
        path.write_bytes(content)
        assert scale_warning(path, spec(PICTURE, LAYOUT)) == ""
        assert scale_warning(path, spec(PICTURE, LAYOUT, form="tflite")) == ""
    assert scale_warning(tmp_path / "none.onnx", spec(PICTURE, LAYOUT)) == ""
    assert scale_warning(tmp_path, spec(PICTURE, LAYOUT, form="tensorflow")) == ""


def test_a_lite_file_is_read_too(tmp_path: Path) -> None:
    weights, bias = np.ones((16, 2), np.float32), np.zeros(2, np.float32)
    flat = spec({"op": "grayscale"}, PICTURE, {"op": "layout", "order": "flat"}, form="tflite")
    path = write_classifier(tmp_path / "m.tflite", weights, bias)
    assert "takes floats" in scale_warning(path, flat)
    # stored as int8 with a step of 1/16: it holds nothing over 16
    assert "takes floats" in scale_warning(write_classifier(tmp_path / "q.tflite", weights, bias, quantized=True), flat)
    scaled = spec({"op": "grayscale"}, PICTURE, {"op": "normalize"}, {"op": "layout", "order": "flat"}, form="tflite")
    assert scale_warning(path, scaled) == ""
