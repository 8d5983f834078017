"""What one frame costs before ``session.run``: from a JPEG to the array that a detector or a classifier reads.

All variants take turns in one process, with one thread each, and their processor time is counted. Ours is what a worker
calls: ``halimede.pipeline.inference.prepare``. OpenCV's is what a user writes: ``imdecode`` of the whole picture, or
reduced by libjpeg-turbo to a half, a quarter or an eighth, which is never below the size that is needed; ``resize``;
``copyMakeBorder``; ``blobFromImage``. Pillow's antialiasing has no counterpart in OpenCV, and stands beside ``area``.
"""

from __future__ import annotations

import itertools
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.camera_frames import SIZES, frame_of
from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.inference import Array, Model, open_model
from halimede.pipeline.inference import prepare

#: value of the margins, as YOLO has it
FILL = 114
FILTERS = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA}
REDUCED = {
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
#: each picture is prepared so often in a round
REPEATS = 2


@dataclass(frozen=True)
class Case:
    """Frames of one size for one kind of model; ``limit``: the most of our time, as a share of OpenCV's best."""

    name: str
    size: str
    side: int
    letterbox: bool
    limit: float

    @property
    def reduction(self) -> int:
        """The largest reduction of the picture that has at least the pixels that the model reads."""
        width, height = SIZES[self.size]
        scale = self.fitted[0] / width, self.fitted[1] / height
        return max(times for times in REDUCED if times * max(scale) <= 1)

    @property
    def fitted(self) -> tuple[int, int]:
        """Width and height of the whole picture in the model's input."""
        if not self.letterbox:
            return self.side, self.side
        width, height = SIZES[self.size]
        scale = self.side / max(width, height)
        return round(width * scale), round(height * scale)

    def steps(self, method: str) -> list[dict[str, Any]]:
        """Return the Model's steps."""
        size: dict[str, Any] = {"op": "resize", "width": self.side, "height": self.side, "method": method}
        if self.letterbox:
            size |= {"op": "letterbox", "fill": FILL}
        return [size, {"op": "normalize"}, {"op": "layout", "order": "chw"}]


CASES = (
    Case("1080p to 640 x 640", "1080p", 640, letterbox=True, limit=1.1),
    Case("1080p to 224 x 224", "1080p", 224, letterbox=False, limit=0.8),
    Case("4K to 640 x 640", "4K", 640, letterbox=True, limit=0.9),
)
#: how our models read a frame, and the filter of OpenCV beside which it stands
OURS = (("exact", "antialias", "area"), ("scaled", "antialias", "area"), ("scaled", "area", "area"),
        ("scaled", "linear", "linear"))  # fmt: skip


def reading_model(path: Path, side: int) -> Path:
    """Write the smallest model that reads an RGB picture of a size: its mean."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Unsqueeze", ["mean", "axis"], ["y"]),
        ],
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [1])],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def opened(path: Path, case: Case, decode: str, method: str) -> Model:
    """Return a model that reads frames in this manner."""
    steps = case.steps(method)
    body = {"url": str(path), "format": "onnx", "labels": ["dark", "bright"], "decode": decode, "preprocess": steps}
    return open_model(path, convert(body, ModelSpec, "spec"))


@dataclass(frozen=True)
class OpenCvReader:
    """Reads a JPEG as a model's input ``[1, 3, side, side]`` by OpenCV; around a smaller ``size`` there are margins.

    The picture is decoded at 1/``reduction``, and values are multiplied by ``scale``.
    """

    size: tuple[int, int]
    side: int
    method: str
    reduction: int
    scale: float

    def __call__(self, data: bytes) -> Array:
        """Read one."""
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), REDUCED[self.reduction])
        picture = cv2.resize(decoded, self.size, interpolation=FILTERS[self.method])
        left, top = (self.side - self.size[0]) // 2, (self.side - self.size[1]) // 2
        if left or top:
            right, below = self.side - self.size[0] - left, self.side - self.size[1] - top
            margins, fill = (top, below, left, right), (FILL, FILL, FILL)
            picture = cv2.copyMakeBorder(picture, *margins, cv2.BORDER_CONSTANT, value=fill)
        return cv2.dnn.blobFromImage(picture, self.scale, swapRB=True)


Prepare = Callable[[bytes], Array]


def variants(case: Case, folder: Path) -> Iterator[tuple[str, Prepare]]:
    """Yield all ways from a JPEG to the input of a case, ours first."""
    path = reading_model(folder / f"mean-{case.side}.onnx", case.side)
    for decode, method, _ in OURS:
        model = opened(path, case, decode, method)
        yield f"{decode}, {method}", lambda data, model=model: prepare(model, frame_of(data)).array
    for method, reduction in itertools.product(FILTERS, dict.fromkeys((1, case.reduction))):
        reader = OpenCvReader(case.fitted, case.side, method, reduction, 1 / 255)
        yield opencv_name(method, reduction), reader


def opencv_name(method: str, reduction: int) -> str:
    """Return the name of a variant of OpenCV."""
    return f"OpenCV {method}, {'whole' if reduction == 1 else f'reduced to 1/{reduction}'}"


def measure(folder: Path, files: Mapping[str, Sequence[bytes]], rounds: int) -> dict[str, Any]:
    """Return what a frame costs, by case: milliseconds of processor time, medians over interleaved rounds."""
    cv2.setNumThreads(1)
    prepared = {case: dict(variants(case, folder)) for case in CASES}
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for case, prepares in prepared.items():
            for name in prepares if number % 2 else reversed(prepares):
                cost_ms = _cost_ms(prepares[name], files[case.size])
                if number:  # the first is to warm up
                    times.setdefault((case.name, name), []).append(cost_ms)
    return {
        case.name: {
            name: {
                "ms": round(statistics.median(times[case.name, name]), 3),
                "spread": [round(min(times[case.name, name]), 3), round(max(times[case.name, name]), 3)],
                "memory_mb": round(_memory(prepare, files[case.size][0]) / 1e6, 1),
                "difference": round(_difference(prepare, prepares[opencv_name("area", 1)], files[case.size][0]), 4),
            }
            for name, prepare in prepares.items()
        }
        for case, prepares in prepared.items()
    }


def _cost_ms(prepare: Prepare, files: Sequence[bytes]) -> float:
    start = time.process_time()
    for data in [*files] * REPEATS:
        prepare(data)
    return (time.process_time() - start) * 1000 / len(files) / REPEATS


def _memory(prepare: Prepare, data: bytes) -> int:
    """Return the most bytes that Python and NumPy hold for one frame; libraries of C have more of their own."""
    tracemalloc.start()
    try:
        prepare(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _difference(prepare: Prepare, reference: Prepare, data: bytes) -> float:
    """Return the mean difference of the input from that of the whole picture, as a share of white."""
    return float(np.abs(prepare(data).reshape(-1) - reference(data).reshape(-1)).mean())


def ratios(costs_of_cases: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each case our variants beside OpenCV with the same filter: whole, and the better one, by its name."""
    rows = []
    for case in CASES:
        if case.name not in costs_of_cases:
            continue
        costs = {name: row["ms"] for name, row in costs_of_cases[case.name].items()}
        for decode, method, filter_ in OURS:
            theirs = {name: ms for name, ms in costs.items() if name.startswith(f"OpenCV {filter_},")}
            best = min(theirs, key=theirs.__getitem__)
            whole, ours = theirs[opencv_name(filter_, 1)], costs[f"{decode}, {method}"]
            rows.append({
                "case": case.name, "ours": f"{decode}, {method}", "ms": ours, "opencv_whole_ms": whole,
                "to_whole": round(ours / whole, 3), "best": best, "best_ms": theirs[best],
                "to_best": round(ours / theirs[best], 3), "limit": case.limit,
            })  # fmt: skip
    return rows
