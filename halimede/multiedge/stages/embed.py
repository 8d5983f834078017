"""Makes features of crops: vectors of length 1, near to one another where the crops look alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halimede.inference import SampleError, pack, unit, unpack
from halimede.messages import Prediction
from halimede.multiedge.stage import Item, Stage, Tools
from halimede.multiedge.stages.common import answers, model_of

#: bytes of features that fit into a message (messages.samples)
MAX_BYTES = 1_048_576


class Embed(Stage):
    """Let the worker's model describe each crop (put ``Crop`` before it) in a vector of numbers.

    The model's spec has ``postprocess.task: embedding``; a user's estimator returns a list of numbers. The vectors
    are made of length 1 and leave in ``prediction.embeddings``, in the order of the boxes. A box of which the model
    says nothing, zeros alone, goes.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "model")

    def run(self, items: Sequence[Item]) -> None:
        """Describe all crops of all items at once."""
        said = iter(answers(self._model, [crop for item in items for crop in item.crops]))
        for item in items:
            _describe(item, [vector_of(next(said)) for _ in item.crops])


def vectors(prediction: Prediction) -> NDArray[np.float32]:
    """Read the features of a finding as ``[count, length]``, one row a box; without boxes there is one or none.

    Raises SampleError where they are not as many as boxes.
    """
    data = prediction.embeddings or b""
    count = int(bool(data)) if prediction.boxes is None else len(prediction.boxes)
    return unpack(data, count)


def vector_of(said: Prediction) -> NDArray[np.float32]:
    """Read one crop's vector off a model's answer. Raises SampleError."""
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
