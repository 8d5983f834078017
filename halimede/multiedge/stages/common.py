"""What several stages need: the worker's models, and boxes as whole pixels of a picture. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from halimede.errors import InvalidFieldError
from halimede.inference import Array, Model, SampleError, group
from halimede.messages import Box, Prediction
from halimede.multiedge.stage import Parameters, Tools

#: prepared samples that a model is given at once
BATCH = 32
#: what ``maxBoxes`` may be: so many vectors of usual length fit into a message
MAX_BOXES = 256
#: pixels beyond which it does not matter how far away a corner is: models write any numbers
FAR = 1e6


def model_of(tools: Tools, *names: str) -> Model:
    """Return the first of those models that the worker has. Raises InvalidFieldError."""
    for name in names:
        if name in tools.models:
            return tools.models[name]
    raise InvalidFieldError(f"spec.edgeWorkers[].{names[0]}", None, f"name a {names[0]} for worker {tools.worker}")


def max_boxes(parameters: Parameters) -> int:
    """Return how many boxes of one picture are looked at: parameter ``maxBoxes``."""
    return int(parameters.number("maxBoxes", 32, least=1, most=MAX_BOXES))


def best(boxes: Iterable[Box], limit: int) -> list[Box]:
    """Return the boxes of the best scores, in the order that they came in."""
    kept = list(boxes)
    if len(kept) <= limit:
        return kept
    order = sorted(range(len(kept)), key=lambda i: -kept[i].score)[:limit]
    return [kept[i] for i in sorted(order)]


def pixels(box: Box, picture: Array, margin: float = 0.0) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of a box in whole pixels of a picture; None where it holds none of them.

    ``margin`` is a share of the box's own width and height, on each side.
    """
    height, width = picture.shape[:2]
    x1, y1, x2, y2 = (min(max(value, -FAR), FAR) for value in (box.x1, box.y1, box.x2, box.y2))
    (x1, x2), (y1, y2) = sorted((x1, x2)), sorted((y1, y2))
    across, down = margin * (x2 - x1), margin * (y2 - y1)
    left, right = _between(x1 - across, width), _between(x2 + across, width, up=True)
    top, bottom = _between(y1 - down, height), _between(y2 + down, height, up=True)
    return (left, top, right, bottom) if left < right and top < bottom else None


def answers(model: Model, pictures: Sequence[Array]) -> list[Prediction]:
    """Ask a model about pictures of any sizes, in batches of what fits together. Raises SampleError."""
    samples = [model.prepare(picture) for picture in pictures]
    found: dict[int, Prediction] = {}
    for batch in group(range(len(samples)), BATCH, samples.__getitem__):
        predictions = model.predict([samples[i] for i in batch])
        if len(predictions) != len(batch):
            raise SampleError(f"the model gave {len(predictions)} answers to {len(batch)} samples")
        found.update(zip(batch, predictions, strict=True))
    return [found[i] for i in range(len(samples))]


def _between(value: float, most: int, *, up: bool = False) -> int:
    """Round a place to a whole one that is in the picture."""
    inside = min(max(value, 0.0), float(most))
    return math.ceil(inside) if up else math.floor(inside)
