"""Cuts boxes out of the picture, for stages that look at one object at a time."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.multiedge.stage import Item, Stage, Tools
from halimede.multiedge.stages.common import best, max_boxes, pixels


class Crop(Stage):
    """Make a crop of each box; where nobody has looked for boxes, the whole picture is the one crop.

    Crops are views of the picture, not copies. Boxes without a pixel of the picture go, so that boxes and crops
    correspond. Parameters: ``margin`` (0.0): share of a box's width and height that is added on each side;
    ``maxBoxes`` (32): so many of the best stay.
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
