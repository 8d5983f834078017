"""Reads and checks the numbers that algorithms judge by: a broken one is an error, never "easy" in silence."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta

from halimede.messages import Prediction
from halimede.mining.miner import MiningError

#: how far rounding may carry a score over 1, and the sum of half-precision probabilities away from 1
SCORE_SLACK = 1e-5
SUM_SLACK = 0.05

Ratio = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]

#: what a frame without any box counts as; Sedna calls it easy, and so never sends up what its small model missed
Empty = Annotated[
    str,
    Meta(
        pattern=r"^(hard|easy|sample\((0(\.\d*)?|0?\.\d+|1(\.0*)?)\))$",
        description="hard, easy or sample(p): hard with probability p from 0 to 1",
    ),
]


def box_scores(prediction: Prediction) -> list[float]:
    """Scores of the boxes; of a classification, the top score as that of the only box. Each is in 0..1."""
    if prediction.boxes is not None:
        return _checked("box score", (box.score for box in prediction.boxes))
    if prediction.score is not None:
        return _checked("score", [prediction.score])
    if prediction.probabilities is not None and len(prediction.probabilities) > 0:
        return [max(_checked("probability", prediction.probabilities))]
    raise MiningError("the prediction has neither boxes nor a score: use Random, CloudOnly or EdgeOnly")


def distribution(prediction: Prediction) -> list[float]:
    """Class probabilities, two or more, in 0..1, with a sum of about 1.

    A single probability p is that of a two-class model with one output, hence p and 1 - p.
    """
    if prediction.boxes is not None:
        raise MiningError("boxes have no class probabilities: use IBT or Threshold for detection")
    if prediction.probabilities is None or len(prediction.probabilities) == 0:
        raise MiningError("the prediction has no class probabilities: use Threshold, or a model that gives them")
    values = _checked("probability", prediction.probabilities)
    if len(values) == 1:
        return [values[0], 1 - values[0]]
    total = math.fsum(values)
    if abs(total - 1) > SUM_SLACK:
        raise MiningError(f"the class probabilities add up to {total:.4g} instead of 1: set activation softmax")
    return values


def empty_is_hard(empty: str) -> bool:
    """Whether a frame without boxes is hard, by the rule ``hard``, ``easy`` or ``sample(p)``."""
    if empty.startswith("sample("):
        return random.random() < float(empty[len("sample(") : -1])  # noqa: S311 (a sample, no secret)
    return empty == "hard"


def _checked(what: str, values: Iterable[Any]) -> list[float]:
    """Turn numbers of any kind (also NumPy's) into floats in 0..1."""
    checked = []
    for value in values:
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise MiningError(f"the {what} {value!r:.60} is no number") from error
        if not -SCORE_SLACK <= number <= 1 + SCORE_SLACK:  # NaN is in no range
            raise MiningError(f"the {what} {number} is not in 0..1")
        checked.append(min(max(number, 0.0), 1.0))
    return checked
