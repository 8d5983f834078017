"""Says what is to be seen: in the whole picture, or in each of its boxes."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.inference import SampleError
from halimede.messages import Box, Prediction
from halimede.multiedge.stage import Item, Stage, Tools
from halimede.multiedge.stages.common import answers, model_of


class Classify(Stage):
    """Let the worker's model look at each picture: label, score, probabilities, value, and boxes where it gives any.

    With ``crops`` it looks at each crop instead (after ``Crop``), and what it says becomes label and score of that
    box: ``functools.partial(Classify, crops=True)``. Where nobody has looked for boxes the crop is the picture.
    """

    def __init__(self, tools: Tools, *, crops: bool = False) -> None:
        super().__init__(tools)
        self._model = model_of(tools, "model")
        self._crops = crops

    def run(self, items: Sequence[Item]) -> None:
        """Ask about all pictures, or all crops, at once."""
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
    """Add what a model says to what is found already, which stays where the model says nothing of it."""
    for name in Prediction.__struct_fields__:
        value = getattr(said, name)
        if value is not None:
            setattr(prediction, name, value)
