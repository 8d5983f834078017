"""The folder that an archive became is opened by the model in it; a file is opened as it is, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from halimede.models.desired_state import DesiredModel
from halimede.worker.model_reload import ModelOpener, UnfitError
from tests.graphs import FLOAT, Node, write_graph
from tests.lite_files import write_weigher
from tests.serving_world import adds


class Shows:
    """Remembers what it was given to load."""

    def load(self, model_url: str) -> None:
        self.given = model_url

    def predict(self, _: Any) -> None: ...


def wish(path: Path | str, format_: str = "onnx") -> DesiredModel:
    return DesiredModel(name="m", path=str(path), spec={"format": format_})


async def given(path: Path | str, format_: str = "onnx") -> str:
    """Return what an estimator is given to load."""
    estimator = Shows()
    loaded = await ModelOpener(estimator).open(wish(path, format_))
    await loaded.close()
    return estimator.given


async def test_an_estimator_gets_the_model_in_a_folder_of_onnx_and_of_another_format_the_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "small.onnx").touch()
    assert await given(tmp_path) == str(tmp_path / "deep" / "small.onnx")
    assert await given(tmp_path, "ONNX") == str(tmp_path / "deep" / "small.onnx")
    for format_ in ("tf", "tflite", "tensorflow"):
        assert await given(tmp_path, format_) == str(tmp_path)


async def test_the_model_in_a_folder_is_tried_and_opened(tmp_path: Path) -> None:
    (tmp_path / "lite").mkdir()
    lite = write_weigher(tmp_path / "lite" / "net.tflite")
    onnx = adds(tmp_path / "onnx" / "model.onnx", 1)
    for wished in (wish(onnx.parent), wish(onnx), wish(lite.parent, "tflite")):
        loaded = await ModelOpener().open(wished)
        await loaded.close()
    lite.write_bytes(b"\x08\x08")
    with pytest.raises(UnfitError, match="not a TensorFlow Lite model") as caught:
        await ModelOpener().open(wish(lite.parent, "tflite"))
    assert caught.value.reason == "ModelInvalid"


@pytest.mark.parametrize("format_", ["onnx", "pt"])
async def test_what_is_no_folder_is_opened_as_it_is(format_: str, tmp_path: Path) -> None:
    file = tmp_path / "m.tar.gz"
    file.touch()
    for path in (str(file), "https://llm.example//v1/chat", str(tmp_path / "none"), ""):
        assert await given(path, format_) == path


@pytest.mark.parametrize("names", [("notes.txt",), ("a.onnx", "b.onnx"), ()])
async def test_a_folder_without_one_model_is_refused_with_what_to_do(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    for opener in (ModelOpener(), ModelOpener(Shows)):
        with pytest.raises(UnfitError, match=r"model\.onnx") as caught:
            await opener.open(wish(tmp_path))
        assert caught.value.reason == "NoModelFile"
        assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("steps", "lines"), [([], 1), ([{"op": "normalize"}], 0)])
async def test_a_model_that_pictures_reach_unscaled_is_loaded_and_logged_once(
    tmp_path: Path, steps: list[dict[str, Any]], lines: int
) -> None:
    nodes: list[Node] = [("MatMul", ["x", "w"], ["z"], {}), ("Softmax", ["z"], ["y"], {})]
    weights = {"w": np.ones((16, 2), np.float32)}
    write_graph(tmp_path / "m.onnx", nodes, {"x": (FLOAT, ["N", 16])}, {"y": (FLOAT, ["N", 2])}, weights)
    picture = [{"op": "grayscale"}, {"op": "resize", "width": 4, "height": 4}]
    spec = {"format": "onnx", "preprocess": [*picture, *steps, {"op": "layout", "order": "flat"}]}
    with capture_logs() as seen:
        loaded = await ModelOpener().open(DesiredModel(name="m", path=str(tmp_path / "m.onnx"), spec=spec))
        await loaded.close()
    warned = [line for line in seen if line["event"] == "model input not scaled"]
    assert len(warned) == lines
    assert all(line["log_level"] == "warning" and "{op: normalize}" in line["advice"] for line in warned)
