"""The families of models that halimede reads, each recognised by the structure of its outputs and by its metadata.

A family is a kind of outputs, such as the boxes of YOLOv8. Its recogniser returns how the outputs are read, or None
where the structure does not show the family. With ``chosen`` the user has named the family: then only the outputs that
it reads must exist. There is no default: outputs that no recogniser knows are reported as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from halimede.inference.decoders.anchors import cell_middles
from halimede.inference.decoders.centers import STRIDE
from halimede.inference.decoders.ctc import METADATA_KEY, lines_of
from halimede.inference.detection import BOX_COLUMNS, LEADING_COLUMNS
from halimede.inference.model import Array
from halimede.inference.proposals.structure import FileStructure
from halimede.inference.session import Declared

#: tolerance of a probability, of a sum of probabilities, and of the length of a vector
SLACK = 1e-2
#: pixels of a cell in each layer of YOLO models
YOLO_STRIDES = (8, 16, 32)
#: anchors of YOLOv5 in a cell
YOLOV5_ANCHORS = 3
#: pixels of a cell in each layer, and anchors in a cell, as MediaPipe's published graphs configure SsdAnchorsCalculator
SSD_GRIDS = (((8, 16, 16, 16), 2), ((16, 32, 32, 32), 2), ((4,), 1), ((8, 16, 32, 32, 32), 2))
#: by the columns of MediaPipe's detectors of faces, hands and poses: whether pixels are -1 to 1, by their model cards
SSD_COLUMNS = {16: True, 18: False, 12: True}
#: most rows of a model that suppresses overlapping boxes itself
MAX_ROWS = 1000
#: channels of CenterFace's points: five of two numbers
FACE_POINTS = 10
#: a vector of features probably has a multiple of so many numbers; one of fewer than half is not recognised
FEATURES = 64
#: the only task in Ultralytics' metadata whose outputs halimede reads
DETECT = "detect"
#: a note for the user
LETTERBOX = "pictures of such models keep their proportions: letterbox, not resize"


@dataclass(slots=True)
class OutputReading:
    """How the outputs of one file are read, and what its family says about the input.

    Attributes:
        family: its name in FAMILIES.
        postprocess: the field ``postprocess`` of the Model, as plain data.
        notes: what the user has to check.
        labels: names of the classes; empty: not known.
        resize: the step that gives pictures their size: resize, fit or letterbox.
        fill: the value of a letterbox's margins, 0..255; None: the step's default.
        mean: of the input's pixels as a fraction of 255; None: the family does not say.
        std: of the input's pixels as a fraction of 255; None: the family does not say.
        bgr: the model takes the channels in the order blue, green, red.

    """

    family: str
    postprocess: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    labels: tuple[str, ...] = ()
    resize: str = "resize"
    fill: int | None = None
    mean: float | None = None
    std: float | None = None
    bgr: bool = False


class Recogniser(Protocol):
    """A function that recognises one family."""

    def __call__(self, structure: FileStructure, *, chosen: bool) -> OutputReading | None:
        """Return how the outputs are read; None if the file is not of the family.

        ``chosen``: the user has named the family, so only the outputs that it reads must exist.
        """


def recognise(structure: FileStructure) -> OutputReading | None:
    """Return how the outputs are read by the first family that the structure shows; None if none does."""
    readings = (recogniser(structure, chosen=False) for recogniser in FAMILIES.values())
    return next((reading for reading in readings if reading), None)


def ctc(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise a reader of text by the alphabet in its metadata: one or two characters fewer than classes."""
    characters = lines_of(structure.metadata.texts.get(METADATA_KEY, ""))
    outputs = [output for output in structure.outputs if len(structure.shape(output)) == 2]
    if len(outputs) != 1 or not (characters or chosen):
        return None
    if characters and structure.shape(outputs[0])[1] not in {len(characters) + n for n in (1, 2)}:
        return None
    reading = OutputReading(
        "ctc", _output(structure, outputs[0], task="text"), resize="fit", bgr=True, mean=0.5, std=0.5
    )
    steps = structure.sample(outputs[0])
    if steps is not None and not is_probabilities(steps):
        reading.postprocess["activation"] = "softmax"
    # without an alphabet the model cannot be opened, and that error names the field
    alphabet = f"the alphabet of {len(characters)} characters is that of the file's metadata; " if characters else ""
    reading.notes.append(
        f"{alphabet}range and order of channels are those of PaddleOCR. Send one line of text a picture"
    )
    return reading


def rows(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise a detector that suppresses overlapping boxes itself: rows of two corners, score and class."""
    output = _only(structure)
    if output is None or len(structure.shape(output)) != 2 or structure.shape(output)[1] != BOX_COLUMNS:
        return None
    if not chosen and (structure.shape(output)[0] > MAX_ROWS or not _is_rows(structure.sample(output))):
        return None
    notes = ["rows of six are read as x1, y1, x2, y2, score and class, in pixels of the model's input", LETTERBOX]
    return OutputReading("rows", {"task": "detection"}, notes, structure.metadata.labels, resize="letterbox")


def yolo(structure: FileStructure, family: str = "yolo", *, chosen: bool) -> OutputReading | None:
    """Recognise YOLO models by the number of their boxes, which follows from the input's size.

    ``yolo``, YOLOv8 and its successors: four numbers and a score for each class, one column for each cell. ``yolov5``:
    four numbers, a score for any object and one for each class, three rows for each cell.
    """
    output, picture, labels = _only(structure), structure.picture, structure.metadata.labels
    if output is None or picture is None or len(structure.shape(output)) != 2:
        return None
    cells = len(cell_middles(YOLO_STRIDES, 1, picture.width, picture.height)) if picture.width else 0
    first, second = structure.shape(output)
    boxes, columns = (second, first) if family == "yolo" else (first, second)
    expected = cells if family == "yolo" else cells * YOLOV5_ANCHORS
    detects = structure.metadata.texts.get("task", DETECT) == DETECT
    class_count = columns - LEADING_COLUMNS[family]
    if not chosen and (boxes != expected or not detects or class_count <= 0):
        return None
    if labels and class_count != len(labels) and not chosen:
        return None
    postprocess = {"task": "detection", "boxes": {"decode": family}, "nms": {}}
    title = "YOLOv8" if family == "yolo" else "YOLOv5"
    notes = [f"the output has the structure of {title}: {boxes} boxes and {class_count} classes", LETTERBOX]
    return OutputReading(family, postprocess, notes, labels, resize="letterbox")


def ssd_anchors(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise BlazeFace and its relatives by their columns and the number of their anchors for the input's size."""
    pair, picture = _pair(structure), structure.picture
    if pair is None or picture is None:
        return None
    boxes, scores = pair
    count, columns = structure.shape(boxes)
    grids = [grid for grid in SSD_GRIDS if _is_grid(grid, structure, count)]
    if not grids or (columns not in SSD_COLUMNS and not chosen):
        return None
    strides, per_cell = grids[0]
    anchors = {"strides": list(strides), "perCell": per_cell}
    postprocess = _output(structure, scores, task="detection")
    postprocess["boxes"] = {"decode": "ssd-anchors", "output": boxes.name, "anchors": anchors}
    sample = structure.sample(scores)
    if sample is None or not _is_within(sample, 0, 1):
        postprocess["activation"] = "sigmoid"
    postprocess["nms"] = {"score": 0.5, "iou": 0.3}
    reading = OutputReading("ssd-anchors", postprocess, resize="letterbox", fill=0)
    if SSD_COLUMNS.get(columns):
        reading.mean = reading.std = 0.5
    (classes_count,) = structure.shape(scores)[1:] or (1,)
    reading.labels = structure.metadata.labels if len(structure.metadata.labels) == classes_count else ()
    reading.notes = [f"the {count} boxes are those of a grid with strides {list(strides)}, as in MediaPipe's detectors"]
    return reading


def pair(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise one output of corners and one of scores by their values in the trial run."""
    outputs = _pair(structure)
    if outputs is None or structure.shape(outputs[0])[1] != 4:
        return None
    corners, scores = (structure.sample(output) for output in outputs)
    if not chosen and (corners is None or scores is None or not _is_corners(corners) or not _is_within(scores, 0, 1)):
        return None
    boxes: dict[str, Any] = {"output": outputs[0].name}
    if corners is not None and _is_within(corners, 0, 1):
        boxes["normalized"] = True
    postprocess = _output(structure, outputs[1], task="detection") | {"boxes": boxes, "nms": {}}
    note = "boxes are read as two corners: set boxes.form if that is not so, and remove nms if the model suppresses"
    return OutputReading("pair", postprocess, [f"{note} overlapping boxes itself"], structure.metadata.labels)


def centerface(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise CenterFace: maps of scores, sizes, offsets and five points at a quarter of the input's size."""
    maps = _maps(structure)
    channels = [structure.shape(output)[0] for output in maps]
    if channels != [1, 2, 2, FACE_POINTS] and not (chosen and channels[:3] == [1, 2, 2]):
        return None
    reading = _center("centerface", structure, maps)
    if len(maps) > 3:
        reading.postprocess["boxes"]["landmarks"] = maps[3].name
    reading.labels, reading.mean, reading.std = ("face",), 0.0, 1 / 255
    reading.notes.append("sizes are read before offsets, and pictures are 0 to 255 in RGB, as CenterFace is trained")
    return reading


def centernet(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise CenterNet: maps of scores, sizes and offsets at a quarter of the input's size."""
    maps = _maps(structure)
    if [structure.shape(output)[0] for output in maps[1:]] != [2, 2] or (len(structure.outputs) != 3 and not chosen):
        return None
    reading = _center("centernet", structure, maps)
    reading.labels = structure.metadata.labels
    reading.notes.append("sizes are read before offsets: exchange boxes.output and boxes.offsets if that is not so")
    return reading


def _center(family: str, structure: FileStructure, maps: Sequence[Declared]) -> OutputReading:
    """Return how maps of scores, sizes and offsets are read, in this order."""
    postprocess = _output(structure, maps[0], task="detection")
    postprocess["boxes"] = {"decode": family, "output": maps[1].name, "offsets": maps[2].name}
    scores = structure.sample(maps[0])
    if scores is not None and not _is_within(scores, 0, 1):
        postprocess["activation"] = "sigmoid"
    postprocess["nms"] = {"score": 0.5, "iou": 0.3}
    return OutputReading(family, postprocess, resize="fit")


def embedding(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise the only output as a vector of features, by ``_is_features`` in the trial run."""
    output = _only_vector(structure)
    if output is None:
        return None
    vector = structure.sample(output)
    if not chosen and (vector is None or not _is_features(vector.reshape(-1))):
        return None
    return OutputReading("embedding", _output(structure, output, task="embedding"))


def classes(structure: FileStructure, *, chosen: bool) -> OutputReading | None:
    """Recognise scores of classes: probabilities, as many as names in the metadata, or the only row of numbers."""
    rows_of_classes = [output for output in structure.outputs if _is_vector(structure.shape(output))]
    certain = [output for output in rows_of_classes if _is_classes(structure, output)]
    output = certain[0] if len(certain) == 1 else _only_vector(structure)
    if output is None or (not chosen and output not in certain and not _may_be_classes(structure, output)):
        return None
    count = int(np.prod(structure.shape(output)))
    reading = OutputReading("classes", _output(structure, output, task="classification"))
    scores = structure.sample(output)
    if scores is None:
        reading.notes.append("the model did not answer random values, so it is not known whether it gives logits")
    elif not _is_within(scores, 0, 1):
        reading.postprocess["activation"] = "softmax"
        reading.notes.append("the scores are logits: softmax is for one class a picture, sigmoid for several at a time")
    elif count > 1 and not is_probabilities(scores):
        reading.notes.append("the scores do not sum to 1, as if several classes may be true at a time")
    if len(structure.metadata.labels) == count:
        reading.labels = structure.metadata.labels
    return reading


#: the recogniser of each family, by the name that users give as a preset, in the order in which they are tried
FAMILIES: dict[str, Recogniser] = {
    "ctc": ctc,
    "rows": rows,
    "yolo": yolo,
    "yolov5": partial(yolo, family="yolov5"),
    "ssd-anchors": ssd_anchors,
    "pair": pair,
    "centerface": centerface,
    "centernet": centernet,
    "embedding": embedding,
    "classes": classes,
}


def _output(structure: FileStructure, output: Declared, *, task: str) -> dict[str, Any]:
    """Return the post-processing for a task; it names the output if the file has several outputs of floats."""
    return {"task": task, "output": output.name} if len(structure.outputs) > 1 else {"task": task}


def _only(structure: FileStructure) -> Declared | None:
    """Return the only output of floats; None unless there is exactly one."""
    return structure.outputs[0] if len(structure.outputs) == 1 else None


def _only_vector(structure: FileStructure) -> Declared | None:
    """Return the only output of floats if it is a vector."""
    output = _only(structure)
    return output if output is not None and _is_vector(structure.shape(output)) else None


def _pair(structure: FileStructure) -> tuple[Declared, Declared] | None:
    """Return the outputs of boxes and of scores; None unless there are two outputs with as many rows.

    The one with four columns has the boxes, or else the one with more columns.
    """
    shapes = [structure.shape(output) for output in structure.outputs]
    if len(shapes) != 2 or any(len(shape) not in {1, 2} for shape in shapes) or shapes[0][0] != shapes[1][0]:
        return None
    columns = [shape[1] if len(shape) == 2 else 1 for shape in shapes]
    if columns[0] == columns[1] or max(columns) < 4:
        return None
    first, second = structure.outputs
    boxes = [at for at in (0, 1) if columns[at] == 4]
    if len(boxes) == 1:
        return (first, second) if boxes == [0] else (second, first)
    return (first, second) if columns[0] > columns[1] else (second, first)


def _maps(structure: FileStructure) -> list[Declared]:
    """Return the outputs if there are three or more and all are maps of a quarter of the input's sides; else none."""
    shapes = [structure.shape(output) for output in structure.outputs]
    picture = structure.picture
    if picture is None or len(shapes) < 3 or any(len(shape) != 3 for shape in shapes):
        return []
    size = picture.height // STRIDE, picture.width // STRIDE
    return list(structure.outputs) if all(shape[1:] == size for shape in shapes) else []


def _is_grid(grid: tuple[Sequence[int], int], structure: FileStructure, count: int) -> bool:
    """Whether the input has a fixed size that the grid's cells divide without remainder, and ``count`` anchors."""
    strides, per_cell = grid
    if structure.picture is None or structure.open_sides:
        return False
    width, height = structure.picture.width, structure.picture.height
    if any(side % stride for side in (width, height) for stride in strides):
        return False
    return len(cell_middles(strides, per_cell, width, height)) == count


def _is_vector(shape: Sequence[int]) -> bool:
    """Whether all axes but the first have the length 1, and the length of the first is known."""
    return len(shape) > 0 and all(size == 1 for size in shape[1:]) and shape[0] > 0


def _is_within(values: Array, low: float, high: float) -> bool:
    """Whether there are values, and all are within ``low`` and ``high``, with a tolerance of SLACK."""
    return bool(values.size and values.min() >= low - SLACK and values.max() <= high + SLACK)


def is_probabilities(values: Array | None) -> bool:
    """Whether the last axis has several numbers of 0 to 1 that sum to 1."""
    if values is None or values.ndim == 0 or values.shape[-1] < 2 or not _is_within(values, 0, 1):
        return False
    return bool(np.abs(values.sum(axis=-1) - 1).max() <= SLACK)


def _is_rows(values: Array | None) -> bool:
    """Whether rows of six have corners in order, scores of 0 to 1 and whole class numbers; also if there are none."""
    if values is None:
        return False
    if not len(values):
        return True
    scores, kinds = values[:, 4], values[:, 5]
    return (
        _is_corners(values[:, :4]) and _is_within(scores, 0, 1) and bool((kinds >= 0).all() and (kinds % 1 == 0).all())
    )


def _is_corners(boxes: Array) -> bool:
    """Whether rows of four numbers are corners: in each, the second point is not left of or above the first."""
    return bool(len(boxes) and (boxes[:, 2] >= boxes[:, 0]).all() and (boxes[:, 3] >= boxes[:, 1]).all())


def _is_features(vector: Array) -> bool:
    """Whether a vector has the (Euclidean) length 1 and at least FEATURES / 2 numbers, which are no probabilities."""
    unit = abs(float(np.linalg.norm(vector)) - 1) <= SLACK
    return unit and vector.size >= FEATURES // 2 and not is_probabilities(vector)


def _is_classes(structure: FileStructure, output: Declared) -> bool:
    """Whether an output has probabilities, or is the only one and has as many numbers as the metadata has names."""
    sample = structure.sample(output)
    if sample is not None and is_probabilities(sample.reshape(-1)):
        return True
    count = int(np.prod(structure.shape(output)))
    return len(structure.outputs) == 1 and count > 1 and len(structure.metadata.labels) == count


def _may_be_classes(structure: FileStructure, output: Declared) -> bool:
    """Whether a vector may be scores of classes: its numbers are 0 to 1, or its length is no multiple of FEATURES.

    A single number has to be 0 to 1.
    """
    count = structure.shape(output)[0]
    scores = structure.sample(output)
    if len(structure.shape(output)) != 1:
        return False
    if count == 1:
        return scores is not None and _is_within(scores, 0, 1)
    return count % FEATURES != 0 or (scores is not None and _is_within(scores, 0, 1))
