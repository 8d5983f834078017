"""Large JPEG frames: no event loop decodes them, each user decodes only what it needs, and traces show the scale."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede import topics
from halimede.api.model import ModelSpec
from halimede.frames import encodings, new_frame
from tests.graphs import FLOAT, Node, write_graph
from tests.simulated import eventually
from tests.unit.worker.world import World, world

#: a model of 100 x 60 pixels, for which pictures of 1283 x 723 are decoded at 1/8; previews need 1/2
WIDTH, HEIGHT, SIZE = 1283, 723, {"width": 100, "height": 60}
SCALES = {8: (91, 161), 2: (362, 642)}
STEPS = [{"op": "grayscale"}, {"op": "resize", **SIZE}, {"op": "normalize"}, {"op": "layout", "order": "flat"}]
#: bytes of an upload, for which the second frame is decoded at 1/2 or less
MAX_BYTES = 20_000


class DecodedPictures:
    """The calls of the JPEG decoder: the thread of each, and height and width of its picture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple[int, int]]] = []
        self._decode = encodings.simplejpeg.decode_jpeg  # type: ignore[attr-defined]
        monkeypatch.setattr(encodings.simplejpeg, "decode_jpeg", self._record)  # type: ignore[attr-defined]

    def _record(self, *args: Any, **options: Any) -> np.ndarray:
        pixels: np.ndarray = self._decode(*args, **options)
        self.calls.append((threading.current_thread().name.partition("_")[0], pixels.shape[:2]))
        return pixels


def unsure_model(folder: Path) -> dict[str, Any]:
    """Return the settings of a model that finds two classes equally likely."""
    nodes: list[Node] = [("MatMul", ["x", "w"], ["z"], {}), ("Softmax", ["z"], ["y"], {})]
    pixels = SIZE["width"] * SIZE["height"]
    weights = {"w": np.ones((pixels, 2), np.float32)}
    path = write_graph(folder / "m.onnx", nodes, {"x": (FLOAT, ["N", pixels])}, {"y": (FLOAT, ["N", 2])}, weights)
    spec = {"url": str(path), "format": "onnx", "decode": "scaled", "preprocess": STEPS, "labels": ["a", "b"]}
    return {"model_path": str(path), "model": msgspec.convert(spec, ModelSpec)}


async def send_jpeg(w: World, seed: int) -> str:
    grain = np.random.default_rng(seed).integers(80, 150, (HEIGHT, WIDTH, 3), np.uint8)
    return await w.show(new_frame(grain, encoding="jpeg"))


async def test_no_event_loop_decodes_a_picture_and_each_user_decodes_only_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, decoded = unsure_model(tmp_path), DecodedPictures(monkeypatch)
    edge = {**model, "upload_max_bytes": MAX_BYTES, "deadline_s": 60.0}
    async with world(tmp_path) as w, w.worker("cloud", "c", **model), w.worker("edge", "e", **edge):
        previews = await w.hears(topics.HARD_SAMPLE.filter())
        result = await w.answer(await send_jpeg(w, 1))
        await eventually(lambda: previews)
        assert (result.by, previews[0].by) == ("cloud", "cloud")
        assert ("decode", SCALES[8]) in decoded.calls, "for the model"
        assert ("decode", SCALES[2]) in decoded.calls, "for the preview"
        decoded.calls.clear()
        await w.answer(await send_jpeg(w, 2))
        (upload,) = (shape for thread, shape in decoded.calls if thread == "upload")
        assert upload <= SCALES[2]
        threads = {thread for thread, _ in decoded.calls}
        assert threads == {"decode", "upload", "model"}


async def test_a_trace_has_the_scale_at_which_a_picture_was_decoded(tmp_path: Path) -> None:
    model = unsure_model(tmp_path)
    async with world(tmp_path) as w, w.worker("cloud", "c", **model), w.worker("edge", "e", **model):
        id_ = await send_jpeg(w, 1)
        await w.answer(id_)
        replies = await w.trace(id_)
    scales = {reply.role: [s.attributes for s in reply.spans if s.name == "decode"] for reply in replies}
    assert scales == {"edge": [{"scale": 8}], "cloud": [{"scale": 8}]}
