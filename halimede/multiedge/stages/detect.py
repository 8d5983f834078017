"""Finds objects with a model."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.inference import SampleError
from halimede.multiedge.stage import Item, Stage, Tools
from halimede.multiedge.stages.common import answers, best, max_boxes, model_of, pixels


class Detect(Stage):
    """Let the worker's detector (without one its model) find boxes; those outside of the picture are left out.

    Parameters: ``minScore`` (0.25): boxes below go; ``maxBoxes`` (32): so many of the best stay.
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
