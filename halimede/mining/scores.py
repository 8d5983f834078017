"""Reads and checks the numbers that algorithms judge by: an invalid one is an error, never silently "easy"."""

from __future__ import annotations

import math
import random
import reprlib
from collections.abc import Iterable
from typing import Any

from halimede.messages import Prediction
from halimede.mining.miner import MiningError

#: tolerance for rounding: of a score above 1, and of the sum of half-precision probabilities
SCORE_SLACK = 1e-5
SUM_SLACK = 0.05

#: hardness of a frame without boxes: beyond that of every frame with boxes, but finite for quantiles
HARDEST, EASIEST = 1e6, -1e6

DETECTORS = "IBT, Threshold or UncertainBoxes"


def box_scores(prediction: Prediction) -> list[float]:
    """Scores of the boxes; a classification counts as one box with its top score. Each is in 0..1."""
    if prediction.boxes is not None:
        return checked("box score", [box.score for box in prediction.boxes])
    return [top_score(prediction)]


def own_scores(prediction: Prediction) -> list[float]:
    """Scores of the boxes of a detection, each in 0..1. Raises MiningError without boxes."""
    if prediction.boxes is None:
        raise MiningError("the prediction has no boxes: use Margin, or another algorithm for classes")
    return checked("box score", [box.score for box in prediction.boxes])


def top_score(prediction: Prediction) -> float:
    """Score of a classification's best class, in 0..1."""
    if prediction.boxes is not None:
        raise MiningError(f"boxes have no class probabilities: use {DETECTORS} for detection")
    if prediction.score is not None:
        return checked("score", [prediction.score])[0]
    if prediction.probabilities is not None and len(prediction.probabilities) > 0:
        return max(checked("probability", prediction.probabilities))
    raise MiningError("the prediction has neither boxes nor a score: use Random, CloudOnly or EdgeOnly")


def distribution(prediction: Prediction) -> list[float]:
    """Class probabilities, two or more, in 0..1, with a sum of about 1.

    A single probability p is the output of a two-class model, hence p and 1 - p.
    """
    values = checked("probability", _classes(prediction))
    if len(values) == 1:
        return [values[0], 1 - values[0]]
    total = math.fsum(values)
    if abs(total - 1) > SUM_SLACK:
        raise MiningError(f"the class probabilities add up to {total:.4g} instead of 1: set activation softmax")
    return values


def raw_scores(prediction: Prediction) -> list[float]:
    """Raw class scores of the model (activation none), two or more, each any finite number."""
    values = _numbers("score", _classes(prediction))
    if len(values) < 2:
        raise MiningError("the prediction has a single score: leave logits at false")
    if not all(map(math.isfinite, values)):
        raise MiningError("a class score is NaN or infinite")
    return values


def entropy(probabilities: list[float]) -> float:
    """-sum(p ln p) / ln K: from 0 for a certain answer to 1 for equal probabilities. 0 ln 0 is 0, its limit."""
    return -math.fsum([p * math.log(p) for p in probabilities if p > 0]) / math.log(len(probabilities))


def ratio(number: float) -> str:
    """Return the parameter text of the nearest Ratio."""
    return repr(min(max(number, 0.0), 1.0))


def empty_hardness(empty: str) -> float:
    """Return the hardness of a frame without boxes, by the rule ``hard``, ``easy`` or ``sample(p)``."""
    if empty in {"hard", "easy"}:
        return HARDEST if empty == "hard" else EASIEST
    share = float(empty[len("sample(") : -1])
    return HARDEST if random.random() < share else EASIEST  # noqa: S311 (not a secret)


def checked(what: str, values: Iterable[Any]) -> list[float]:
    """Convert numbers of any kind (also NumPy's) to floats in 0..1. Raises MiningError."""
    numbers = _numbers(what, values)
    # the sum shows NaN, which min and max hide; all of this runs at C speed, because it runs for each sample
    if numbers and min(numbers) >= 0 and max(numbers) <= 1 and not math.isnan(sum(numbers)):
        return numbers
    for number in numbers:
        if not -SCORE_SLACK <= number <= 1 + SCORE_SLACK:  # NaN is in no range
            raise MiningError(f"the {what} {number} is not in 0..1")
    return [min(max(number, 0.0), 1.0) for number in numbers]


def _classes(prediction: Prediction) -> Any:
    if prediction.boxes is not None:
        raise MiningError(f"boxes have no class probabilities: use {DETECTORS} for detection")
    if prediction.probabilities is None or len(prediction.probabilities) == 0:
        raise MiningError("the prediction has no class probabilities: use Threshold, or a model that gives them")
    return prediction.probabilities


def _numbers(what: str, values: Any) -> list[float]:
    if hasattr(values, "tolist"):  # NumPy arrays are slow to iterate
        values = values.tolist()
    try:
        return list(map(float, values))
    except (TypeError, ValueError, OverflowError) as error:
        raise MiningError(f"not every {what} is a number: {reprlib.repr(values)}") from error
