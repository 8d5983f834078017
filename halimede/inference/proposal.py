"""Proposes the pre- and post-processing of a model file from its declared inputs and outputs and one trial run.

A file shows shapes, types and its first operators. It does not show on which range, and which order of channels, it was
trained: each such assumption is a note for the user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.inference import preprocess
from halimede.inference.detection import BOX_COLUMNS
from halimede.inference.graph_input import GraphInput, graph_input
from halimede.inference.model import Array, SampleError
from halimede.inference.session import Declared, RuntimeSession
from halimede.inference.tensor_ports import FLOATS, InputPort, choose_input

#: pixels of a side that a file leaves open
OPEN_SIDE = 224
#: a row of fewer values is no picture
LEAST_SIDE = 4
CHANNELS = frozenset({1, 3, 4})
#: height, width and channels of the random picture of the trial run
TRIAL_SIZE = 256, 256, 3
#: tolerance of a sum of probabilities
SUM_SLACK = 1e-2
RANGES = (
    "normalize makes 0 to 1 of a picture's 0 to 255. If the model was trained on -1 to 1, write"
    " {op: normalize, mean: 0.5, std: 0.5}; on ImageNet with PyTorch, {op: normalize, mean: [0.485, 0.456, 0.406],"
    " std: [0.229, 0.224, 0.225]}; on 0 to 255, {op: scale}"
)
ORDER = "pictures are RGB. If the model was trained on BGR, as with OpenCV, put {op: channels, format: bgr} first"

Steps = list[dict[str, Any]]


@dataclass(slots=True)
class Proposal:
    """The fields ``preprocess`` and ``postprocess`` of a Model as plain data, and what the user has to check."""

    preprocess: Steps
    postprocess: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PictureShape:
    """A picture as a model's input: its size in pixels (0: open), and the order of its axes."""

    height: int
    width: int
    channels: int
    order: str


def propose(session: RuntimeSession, path: Path, file_format: str) -> Proposal:
    """Return a proposal for an opened file. Raises ModelError for a model that cannot take a sample."""
    port = choose_input(session.get_inputs())
    made = _propose_steps(port, graph_input(path, file_format))
    floats = [each for each in session.get_outputs() if each.type in FLOATS]
    pairs = _boxes_and_scores(floats)
    rank = len(floats[0].shape) if floats else 0
    if pairs:
        _propose_pair(made, *pairs)
    elif rank == 3:
        _propose_boxes(made, floats[0], several=len(floats) > 1)
    elif floats:
        _propose_classes(made, session, port, floats)
    return made


def picture_shape(shape: Sequence[int | None] | None) -> PictureShape | None:
    """Return how a picture has this shape, that of one sample; None if it is none."""
    sizes = [size or 0 for size in shape or ()]
    if len(sizes) == 3 and sizes[0] in CHANNELS:
        return PictureShape(sizes[1], sizes[2], sizes[0], "chw")
    if len(sizes) == 3 and sizes[2] in CHANNELS:
        return PictureShape(sizes[0], sizes[1], sizes[2], "hwc")
    if len(sizes) == 2:
        return PictureShape(sizes[0], sizes[1], 1, "")
    if len(sizes) == 1:
        for channels in (1, 3):
            side = math.isqrt(sizes[0] // channels)
            if side >= LEAST_SIDE and side * side * channels == sizes[0]:
                return PictureShape(side, side, channels, "flat")
    return None


def _propose_steps(port: InputPort, graph: GraphInput | None) -> Proposal:
    picture = picture_shape(port.shape)
    if picture is None:
        return Proposal([], notes=["the input is no picture that halimede knows: send arrays, or add steps yourself"])
    steps: Steps = []
    notes: list[str] = []
    if picture.channels == 1:
        steps.append({"op": "grayscale"})
    if picture.channels == 4:
        notes.append("the model takes four channels, and pictures have three: send raw frames, or add a script step")
    if not picture.height or not picture.width:
        notes.append(f"the file leaves height or width open: write the size of its training, not {OPEN_SIDE}")
    steps.append({"op": "resize", "width": picture.width or OPEN_SIDE, "height": picture.height or OPEN_SIDE})
    if port.dtype.kind == "f" and (graph is None or graph.floats):
        if graph and graph.operators and graph.scales:
            names = ", ".join(sorted(graph.operators))
            notes.append(f"the model computes {names} first, so it may scale its input itself: no scaling is proposed")
        else:
            steps.append({"op": "normalize"})
            notes.append(RANGES)
    if picture.order in {"chw", "flat"}:
        steps.append({"op": "layout", "order": picture.order})
    if picture.channels == 3:
        notes.append(ORDER)
    return Proposal(steps, notes=notes)


def _boxes_and_scores(floats: Sequence[Declared]) -> tuple[str, str] | None:
    """Return the names of an output of boxes and of one of scores for each, if they are separate."""
    boxes = [each for each in floats if len(each.shape) == 3 and each.shape[-1] == 4]
    scores = [each for each in floats if len(each.shape) in {2, 3} and each.shape[-1] != 4]
    return (boxes[0].name, scores[0].name) if len(boxes) == 1 and scores else None


def _propose_pair(made: Proposal, boxes: str, scores: str) -> None:
    made.postprocess = {"task": "detection", "output": scores, "boxes": {"output": boxes}, "nms": {}}
    made.notes.append(
        "boxes are read as two corners in pixels: set boxes.form and boxes.normalized if that is not so, and remove"
        " nms if the model suppresses overlapping boxes itself"
    )


def _propose_boxes(made: Proposal, output: Declared, *, several: bool) -> None:
    rows, columns = (size if isinstance(size, int) else 0 for size in output.shape[1:])
    made.postprocess = {"task": "detection"}
    if several:
        made.postprocess["output"] = output.name
    if columns == BOX_COLUMNS:
        made.notes.append("rows of six are read as x1, y1, x2, y2, score and class, in pixels of the model's input")
        return
    decode = "yolov5" if rows > columns > 0 else "yolo"
    made.postprocess |= {"boxes": {"decode": decode}, "nms": {}}
    made.notes.append(
        f"the output is read as that of {'YOLOv5' if decode == 'yolov5' else 'YOLOv8'}: set boxes.decode to yolo,"
        " yolov5 or rows if it is another one. Pictures of such models keep their proportions: letterbox, not resize"
    )
    for step in made.preprocess:
        if step["op"] == "resize":
            step["op"] = "letterbox"


def _propose_classes(made: Proposal, session: RuntimeSession, port: InputPort, floats: Sequence[Declared]) -> None:
    output = next((each for each in floats if len(each.shape) == 2), floats[0])
    made.postprocess = {"task": "classification"}
    if len(floats) > 1:
        made.postprocess["output"] = output.name
        made.notes.append(f"the model has several outputs of floats: {output.name} is read as the scores of classes")
    scores = _trial(made.preprocess, session, port, output.name)
    if scores is None:
        made.notes.append("the model did not answer a random picture, so it is not known whether it gives logits")
    elif scores.min() < -SUM_SLACK or scores.max() > 1 + SUM_SLACK:
        made.postprocess["activation"] = "softmax"
        made.notes.append("the scores are logits: softmax is for one class a picture, sigmoid for several at a time")
    elif scores.size > 1 and abs(scores.sum() - 1) > SUM_SLACK:
        made.notes.append("the scores do not sum to 1, as if several classes may be true at a time")
    size = output.shape[-1] if output.shape else None
    many = f" {size}" if isinstance(size, int) else ""
    made.notes.append(f"name the{many} classes in spec.labels, in the model's order; without names they are numbers")


def _trial(steps: Steps, session: RuntimeSession, port: InputPort, output: str) -> Array | None:
    """Return the output for a random picture; None if the model cannot answer it."""
    picture = np.random.default_rng(0).integers(0, 256, TRIAL_SIZE, np.uint8)
    spec = convert({"url": "/none", "format": "onnx", "preprocess": steps}, ModelSpec, "spec")
    try:
        sample = port.fit(preprocess.apply(spec.preprocess, picture))
        (found,) = session.run([output], {port.name: sample[np.newaxis]})
    except SampleError:
        return None
    except Exception:  # noqa: BLE001  # whatever the runtime raises: opening the model says why
        return None
    scores = np.asarray(found, np.float64)
    return scores if scores.size and np.isfinite(scores).all() else None
