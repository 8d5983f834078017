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

#: prepared samples in one call of a model
BATCH = 32
#: bytes of features that fit into a message (messages.samples)
MAX_BYTES = 1_048_576


def model_of(tools: Tools, *names: str) -> Model:
    """Return the first of these models that the worker has. Raises InvalidFieldError."""
    for name in names:
        if name in tools.models:
            return tools.models[name]
    raise InvalidFieldError(f"spec.edgeWorkers[].{names[0]}", None, f"name a {names[0]} for worker {tools.worker}")


def max_boxes(parameters: Parameters) -> int:
    """Return how many boxes of one picture are processed: parameter ``maxBoxes``."""
    return int(parameters.number("maxBoxes", 32, least=1, most=MAX_BOXES))


def answers(model: Model, pictures: Sequence[Array]) -> list[Prediction]:
    """Run a model on pictures of any sizes, in batches of equal prepared size. Raises SampleError."""
    samples = [model.prepare(picture) for picture in pictures]
    found: dict[int, Prediction] = {}
    for batch in group(range(len(samples)), BATCH, samples.__getitem__):
        predictions = model.predict([samples[i] for i in batch])
        if len(predictions) != len(batch):
            raise SampleError(f"the model gave {len(predictions)} answers to {len(batch)} samples")
        found.update(zip(batch, predictions, strict=True))
    return [found[i] for i in range(len(samples))]


class Detect(Stage):
    """Let the worker's detector (without one its model) find boxes; those outside of the picture are left out.

    Parameters: ``minScore`` (0.25): boxes below are removed; ``maxBoxes`` (32): only so many of the best are kept.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "detector", "model")
        self._least = tools.parameters.number("minScore", 0.25, least=0, most=1)
        self._limit = max_boxes(tools.parameters)

    def run(self, items: Sequence[Item]) -> None:
        """Set the boxes of each item, an empty list where there are none."""
        said = answers(self._model, [item.image for item in items])
        for item, prediction in zip(items, said, strict=True):
            if prediction.boxes is None:
                raise SampleError("the detector gives no boxes: set spec.postprocess.task of its Model to detection")
            boxes = (box for box in prediction.boxes if box.score >= self._least and pixels(box, item.image))
            item.prediction.boxes = best(boxes, self._limit)


class Crop(Stage):
    """Make a crop of each box. If no stage has detected boxes, the whole picture is the only crop.

    Crops are views of the picture, not copies. Boxes without a pixel of the picture are removed, so that boxes and
    crops correspond. Parameters: ``margin`` (0.0): share of a box's width and height that is added on each side;
    ``maxBoxes`` (32): only so many of the best are kept.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._margin = tools.parameters.number("margin", 0.0, least=0, most=2)
        self._limit = max_boxes(tools.parameters)

    def run(self, items: Sequence[Item]) -> None:
        """Set the crops of each item."""
        for item in items:
            boxes = item.prediction.boxes
            if boxes is None:
                item.crops = [item.image]
                continue
            kept = best((box for box in boxes if pixels(box, item.image)), self._limit)
            item.prediction.boxes = kept
            places = [pixels(box, item.image, self._margin) for box in kept]
            item.crops = [item.image[top:bottom, left:right] for left, top, right, bottom in filter(None, places)]


class Classify(Stage):
    """Let the worker's model look at each picture: label, score, probabilities, value, and boxes where it gives any.

    With ``crops`` it runs the model on each crop instead (after ``Crop``), and the result becomes label and score of
    that box: ``functools.partial(Classify, crops=True)``. If no stage has set boxes, the crop is the picture.
    """

    def __init__(self, tools: Tools, *, crops: bool = False) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "model")
        self._crops = crops

    def run(self, items: Sequence[Item]) -> None:
        """Run the model on all pictures, or all crops, at once."""
        pictures = [item.crops if self._crops else [item.image] for item in items]
        said = iter(answers(self._model, [picture for of_item in pictures for picture in of_item]))
        for item, looked_at in zip(items, pictures, strict=True):
            boxes = item.prediction.boxes if self._crops else None
            count = 1 if boxes is None else len(boxes)
            if len(looked_at) != count:
                raise SampleError(f"there are {count} boxes and {len(looked_at)} crops: put the stage Crop before this")
            if boxes is None:
                _take(item.prediction, next(said))
            else:
                item.prediction.boxes = [_named(box, next(said)) for box in boxes]


def _named(box: Box, said: Prediction) -> Box:
    if said.label is None:
        raise SampleError("the model gives no label for a box: set spec.postprocess.task to classification")
    return Box(box.x1, box.y1, box.x2, box.y2, box.score if said.score is None else said.score, said.label)


def _take(prediction: Prediction, said: Prediction) -> None:
    """Copy the fields that the model has set; earlier results in other fields stay."""
    for name in Prediction.__struct_fields__:
        value = getattr(said, name)
        if value is not None:
            setattr(prediction, name, value)


class Embed(Stage):
    """Let the worker's model describe each crop (put ``Crop`` before it) in a vector of numbers.

    The model's spec has ``postprocess.task: embedding``; a user's estimator returns a list of numbers. The vectors are
    normalized to length 1 and are returned in ``prediction.embeddings``, in the order of the boxes. A box whose vector
    has only zeros is removed.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "model")

    def run(self, items: Sequence[Item]) -> None:
        """Run the model on all crops of all items at once."""
        said = iter(answers(self._model, [crop for item in items for crop in item.crops]))
        for item in items:
            _describe(item, [vector_of(next(said)) for _ in item.crops])


def vectors(prediction: Prediction) -> NDArray[np.float32]:
    """Return the features of a finding as ``[count, length]``: one row for each box; without boxes one row or none.

    Raises SampleError if their number differs from that of the boxes.
    """
    data = prediction.embeddings or b""
    count = int(bool(data)) if prediction.boxes is None else len(prediction.boxes)
    return unpack(data, count)


def vector_of(said: Prediction) -> NDArray[np.float32]:
    """Return one crop's vector from a model's result. Raises SampleError."""
    if said.embeddings is not None:
        return unit(unpack(said.embeddings, 1)[0])
    value = said.value if said.value is not None else said.probabilities
    if not isinstance(value, list) or not all(isinstance(each, int | float) for each in value):
        raise SampleError("the model gives no features: set spec.postprocess.task of its Model to embedding")
    return unit(np.asarray(value, np.float64))


def _describe(item: Item, found: list[NDArray[np.float32]]) -> None:
    boxes = item.prediction.boxes
    if boxes is not None and len(boxes) != len(found):
        raise SampleError(f"there are {len(boxes)} boxes and {len(found)} crops: put the stage Crop before Embed")
    said = [i for i, vector in enumerate(found) if vector.any()]
    if len({found[i].size for i in said}) > 1:
        raise SampleError("the model gives vectors of different lengths")
    if boxes is not None:
        item.prediction.boxes = [boxes[i] for i in said]
        item.crops = [item.crops[i] for i in said]
    data = b"".join(pack(found[i]) for i in said)
    if len(data) > MAX_BYTES:
        raise SampleError(f"{len(said)} boxes have {len(data)} bytes of features: set the parameter maxBoxes lower")
    item.prediction.embeddings = data
