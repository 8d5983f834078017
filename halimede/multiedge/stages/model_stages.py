"""Stages that use a model, or cut boxes for one: Detect, Crop, Classify and Embed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.api.jointinference import MAX_BOXES
from halimede.errors import InvalidFieldError
from halimede.inference import Array, Model, SampleError, group, pack, unit, unpack
from halimede.inference.crops import best, pixels
from halimede.messages import Box, Prediction
from halimede.multiedge.stage import Item, Parameters, Stage, Tools

#: prepared pictures in one call of a model
BATCH = 32
#: most bytes of features in a message
MAX_BYTES = 1_048_576


def model_of(tools: Tools, *names: str) -> Model:
    """Return the first of these models that the worker has. Raises InvalidFieldError if it has none of them."""
    for name in names:
        if name in tools.models:
            return tools.models[name]
    raise InvalidFieldError(f"spec.edgeWorkers[].{names[0]}", None, f"name a {names[0]} for worker {tools.worker}")


def max_boxes(parameters: Parameters) -> int:
    """Return how many boxes of one picture are processed: the parameter ``maxBoxes``. Raises InvalidFieldError."""
    return int(parameters.number("maxBoxes", 32, least=1, most=MAX_BOXES))


def answers(model: Model, pictures: Sequence[Array]) -> list[Prediction]:
    """Run a model on pictures of any sizes, in batches of equal prepared shape; return its prediction for each picture.

    Raises SampleError if the model returns another number of predictions, and what the model raises.
    """
    samples = [model.prepare(picture) for picture in pictures]
    predictions: dict[int, Prediction] = {}
    for batch in group(range(len(samples)), BATCH, samples.__getitem__):
        outputs = model.predict([samples[i] for i in batch])
        if len(outputs) != len(batch):
            raise SampleError(f"the model gave {len(outputs)} answers to {len(batch)} samples")
        predictions.update(zip(batch, outputs, strict=True))
    return [predictions[i] for i in range(len(samples))]


class Detect(Stage):
    """Let the worker's detector (without one its model) find boxes; those outside of the picture are left out.

    A ``Stage`` with the parameters ``minScore`` (0.25): boxes below are removed; ``maxBoxes`` (32): the most boxes,
    those with the highest scores.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "detector", "model")
        self._least = tools.parameters.number("minScore", 0.25, least=0, most=1)
        self._limit = max_boxes(tools.parameters)

    def run(self, items: Sequence[Item]) -> None:
        """Set the boxes of each prediction; an empty list without any. Raises SampleError if the model gives none."""
        predictions = answers(self._model, [item.image for item in items])
        for item, prediction in zip(items, predictions, strict=True):
            if prediction.boxes is None:
                raise SampleError("the detector gives no boxes: set spec.postprocess.task of its Model to detection")
            boxes = (box for box in prediction.boxes if box.score >= self._least and pixels(box, item.image))
            item.prediction.boxes = best(boxes, self._limit)


class Crop(Stage):
    """Make a crop of each box. If no stage has detected boxes, the whole picture is the only crop.

    A ``Stage``. Crops are views of the picture, not copies. Boxes without a pixel of the picture are removed, so that
    boxes and crops correspond. Parameters: ``margin`` (0.0): share of a box's width and height that is added on each
    side; ``maxBoxes`` (32): the most boxes, those with the highest scores.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._margin = tools.parameters.number("margin", 0.0, least=0, most=2)
        self._limit = max_boxes(tools.parameters)

    def run(self, items: Sequence[Item]) -> None:
        """Set the crops of each item, and keep only the boxes that have one."""
        for item in items:
            detected = item.prediction.boxes
            if detected is None:
                item.crops = [item.image]
                continue
            boxes = best((box for box in detected if pixels(box, item.image)), self._limit)
            item.prediction.boxes = boxes
            rectangles = [pixels(box, item.image, self._margin) for box in boxes]
            item.crops = [item.image[y1:y2, x1:x2] for x1, y1, x2, y2 in filter(None, rectangles)]


class Classify(Stage):
    """Let the worker's model answer each picture, and add what it returns to the prediction.

    A ``Stage``. A field of the model's answer replaces that of the prediction, unless it is None. With ``crops`` it
    runs the model on each crop instead (after ``Crop``), and sets label and score of the crop's box:
    ``functools.partial(Classify, crops=True)``. If no stage has set boxes, the only crop is the picture, and its answer
    is that of the picture.
    """

    def __init__(self, tools: Tools, *, crops: bool = False) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "model")
        self._crops = crops

    def run(self, items: Sequence[Item]) -> None:
        """Run the model on the pictures, or the crops, of all items together.

        Raises SampleError if boxes and crops do not correspond, or if the model gives no label for a crop.
        """
        pictures = [item.crops if self._crops else [item.image] for item in items]
        predictions = iter(answers(self._model, [picture for of_item in pictures for picture in of_item]))
        for item, crops in zip(items, pictures, strict=True):
            boxes = item.prediction.boxes if self._crops else None
            count = 1 if boxes is None else len(boxes)
            if len(crops) != count:
                raise SampleError(f"there are {count} boxes and {len(crops)} crops: put the stage Crop before this")
            if boxes is None:
                _merge(item.prediction, next(predictions))
            else:
                item.prediction.boxes = [_label_box(box, next(predictions)) for box in boxes]


def _label_box(box: Box, answer: Prediction) -> Box:
    """Return a box with the label and score of its crop. Raises SampleError without a label."""
    if answer.label is None:
        raise SampleError("the model gives no label for a box: set spec.postprocess.task to classification")
    return Box(box.x1, box.y1, box.x2, box.y2, box.score if answer.score is None else answer.score, answer.label)


def _merge(prediction: Prediction, newer: Prediction) -> None:
    """Copy the fields of ``newer`` that are not None to ``prediction``."""
    for name in Prediction.__struct_fields__:
        value = getattr(newer, name)
        if value is not None:
            setattr(prediction, name, value)


class Embed(Stage):
    """Let the worker's model describe each crop (put ``Crop`` before it) in a vector of numbers.

    A ``Stage``. The model's spec has ``postprocess.task: embedding``; a user's estimator returns a list of numbers. The
    vectors are normalized to length 1 and stored in ``prediction.embeddings`` as float16, in the order of the boxes. A
    vector of zeros is left out, and so is its box.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "model")

    def run(self, items: Sequence[Item]) -> None:
        """Run the model on all crops of all items at once. Raises SampleError if its vectors cannot be used."""
        predictions = iter(answers(self._model, [crop for item in items for crop in item.crops]))
        for item in items:
            _describe(item, [vector_of(next(predictions)) for _ in item.crops])


def vectors(prediction: Prediction) -> NDArray[np.float32]:
    """Return the vectors in a prediction as ``(n, length) float32``: one for each box; without boxes one or none.

    Raises SampleError if their bytes do not make as many vectors as there are boxes.
    """
    data = prediction.embeddings or b""
    count = int(bool(data)) if prediction.boxes is None else len(prediction.boxes)
    return unpack(data, count)


def vector_of(prediction: Prediction) -> NDArray[np.float32]:
    """Return the vector ``(length,)`` in a model's result for one crop, scaled to length 1; zeros stay zeros.

    The vector is in ``embeddings``, else in ``value``, else in ``probabilities``. Raises SampleError if there is none.
    """
    if prediction.embeddings is not None:
        return unit(unpack(prediction.embeddings, 1)[0])
    value = prediction.value if prediction.value is not None else prediction.probabilities
    if not isinstance(value, list) or not all(isinstance(number, int | float) for number in value):
        raise SampleError("the model gives no features: set spec.postprocess.task of its Model to embedding")
    return unit(np.asarray(value, np.float64))


def _describe(item: Item, rows: list[NDArray[np.float32]]) -> None:
    """Store the vectors of an item's crops in its prediction; leave out vectors of zeros, with their boxes and crops.

    ``rows``: a vector of length 1 or 0 for each crop. Raises SampleError if there are not as many as boxes, if they
    have different numbers of elements, or if they have more than MAX_BYTES.
    """
    boxes = item.prediction.boxes
    if boxes is not None and len(boxes) != len(rows):
        raise SampleError(f"there are {len(boxes)} boxes and {len(rows)} crops: put the stage Crop before Embed")
    indexes = [i for i, vector in enumerate(rows) if vector.any()]
    if len({rows[i].size for i in indexes}) > 1:
        raise SampleError("the model gives vectors of different lengths")
    if boxes is not None:
        item.prediction.boxes = [boxes[i] for i in indexes]
        item.crops = [item.crops[i] for i in indexes]
    data = b"".join(pack(rows[i]) for i in indexes)
    if len(data) > MAX_BYTES:
        raise SampleError(f"{len(indexes)} boxes have {len(data)} bytes of features: set the parameter maxBoxes lower")
    item.prediction.embeddings = data
