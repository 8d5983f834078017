"""For tests of stages: pictures with bright things in known places, and small real models that see them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from halimede.api.model import ModelSpec
from halimede.api.processing import Cast, Grayscale, Layout, Postprocess, Resize, Scale
from halimede.inference import Array, Model, open_model
from halimede.multiedge import Item, Parameters, Tools
from tests.graphs import write_describer, write_spotter, write_weigher

Place = tuple[int, int, int, int]
GREY = [Grayscale(), Scale(factor=1 / 255), Cast(dtype="float32")]
FLAT = [Grayscale(), Resize(width=4, height=4), Scale(factor=1 / 255), Layout(order="flat"), Cast(dtype="float32")]


def a_picture(*things: Place, size: tuple[int, int] = (48, 64)) -> Array:
    """Black, with bright things (x1, y1, x2, y2) that are a little darker in their left half."""
    image = np.zeros((*size, 3), np.uint8)
    for x1, y1, x2, y2 in things:
        image[y1:y2, x1:x2] = 255
        image[y1:y2, x1 : (x1 + x2) // 2] = 191
    return image


def an_item(*things: Place, camera: str = "cam0") -> Item:
    return Item(a_picture(*things), camera=camera)


def some_tools(models: Mapping[str, Model], *, model: str = "", detector: str = "", **parameters: str) -> Tools:
    """Return tools with models by their names in ``models``, and parameters."""
    named = {"model": model, "detector": detector}
    chosen = {role: models[name] for role, name in named.items() if name}
    return Tools(models=chosen, parameters=Parameters(parameters), worker="edge0")


def open_models(folder: Path) -> dict[str, Model]:
    """Return a detector of one bright thing, and models of 4 x 4 grey values: dark or bright, and features."""
    detection, embedding = Postprocess(task="detection"), Postprocess(task="embedding")
    spot = ModelSpec(url="/m", format="onnx", labels=["thing"], preprocess=GREY, postprocess=detection)
    weigh = ModelSpec(url="/m", format="onnx", labels=["dark", "bright"], preprocess=FLAT)
    describe = ModelSpec(url="/m", format="onnx", preprocess=FLAT, postprocess=embedding)
    return {
        "spotter": open_model(write_spotter(folder / "spot.onnx"), spot),
        "weigher": open_model(write_weigher(folder / "weigh.onnx", 16), weigh),
        "describer": open_model(write_describer(folder / "describe.onnx", 16), describe),
    }
