"""Reads and checks the numbers of predictions that algorithms judge by: an invalid number raises MiningError."""

from __future__ import annotations

import math
import random
import reprlib
from collections.abc import Iterable
from typing import Any

from halimede.messages import Prediction
from halimede.mining.miner import MiningError

#: tolerance for rounding: of a score outside 0..1, and of the sum of half-precision probabilities
SCORE_SLACK = 1e-5
SUM_SLACK = 0.05

#: hardness of a frame without boxes: beyond that of every frame with boxes, but finite for quantiles
HARDEST, EASIEST = 1e6, -1e6

#: the rules to use for boxes, for the texts of errors
DETECTORS = "IBT, Threshold or UncertainBoxes"


def box_scores(prediction: Prediction) -> list[float]:
    """Return the scores of the boxes, each in 0..1; a classification counts as one box with its top score.

    Raises MiningError for invalid scores, and without any score.
    """
    if prediction.boxes is not None:
        return unit_floats("box score", [box.score for box in prediction.boxes])
    return [top_score(prediction)]


def own_scores(prediction: Prediction) -> list[float]:
    """Return the scores of a detection's boxes, each in 0..1. Raises MiningError if it is no detection."""
    if prediction.boxes is None:
        raise MiningError("the prediction has no boxes: use Margin, or another algorithm for classes")
    return unit_floats("box score", [box.score for box in prediction.boxes])


def top_score(prediction: Prediction) -> float:
    """Return the score of a classification's best class, in 0..1. Raises MiningError for boxes, or without scores."""
    if prediction.boxes is not None:
        raise MiningError(f"boxes have no class probabilities: use {DETECTORS} for detection")
    if prediction.score is not None:
        return unit_floats("score", [prediction.score])[0]
    if prediction.probabilities is not None and len(prediction.probabilities) > 0:
        return max(unit_floats("probability", prediction.probabilities))
    raise MiningError("the prediction has neither boxes nor a score: use Random, CloudOnly or EdgeOnly")


def distribution(prediction: Prediction) -> list[float]:
    """Return the class probabilities, two or more, in 0..1, with a sum of about 1; else raise MiningError.

    A single probability p is the output of a two-class model, hence p and 1 - p.
    """
    values = unit_floats("probability", _classes(prediction))
    if len(values) == 1:
        return [values[0], 1 - values[0]]
    total = math.fsum(values)
    if abs(total - 1) > SUM_SLACK:
        raise MiningError(f"the class probabilities add up to {total:.4g} instead of 1: set activation softmax")
    return values


def raw_scores(prediction: Prediction) -> list[float]:
    """Return a model's raw class scores (activation none), two or more finite numbers; else raise MiningError."""
    values = _numbers("score", _classes(prediction))
    if len(values) < 2:
        raise MiningError("the prediction has a single score: leave logits at false")
    if not all(map(math.isfinite, values)):
        raise MiningError("a class score is NaN or infinite")
    return values


def entropy(probabilities: list[float]) -> float:
    """Return -sum(p ln p) / ln K: 0 for a certain answer, 1 for equal probabilities. 0 ln 0 is 0, its limit."""
    return -math.fsum([p * math.log(p) for p in probabilities if p > 0]) / math.log(len(probabilities))


def ratio(number: float) -> str:
    """Return a number, bounded by 0 and 1, as the text of a parameter."""
    return repr(min(max(number, 0.0), 1.0))


def empty_hardness(empty: str) -> float:
    """Return the hardness of a frame without boxes: of ``hard``, ``easy``, or ``sample(p)``: hard at random.

    ``p`` is the probability of hard, 0 to 1. The hardness is ``HARDEST`` or ``EASIEST``.
    """
    if empty in {"hard", "easy"}:
        return HARDEST if empty == "hard" else EASIEST
    share = float(empty[len("sample(") : -1])
    return HARDEST if random.random() < share else EASIEST  # noqa: S311 (not a secret)


def unit_floats(name: str, values: Iterable[Any]) -> list[float]:
    """Return numbers of any kind (also NumPy's) as floats in 0..1; else raise MiningError.

    ``name`` is what a number is, for the error's text.
    """
    numbers = _numbers(name, values)
    # the sum shows NaN, which min and max hide; all of this runs at C speed, because it runs for each sample
    if numbers and min(numbers) >= 0 and max(numbers) <= 1 and not math.isnan(sum(numbers)):
        return numbers
    for number in numbers:
        if not -SCORE_SLACK <= number <= 1 + SCORE_SLACK:  # NaN is in no range
            raise MiningError(f"the {name} {number} is not in 0..1")
    return [min(max(number, 0.0), 1.0) for number in numbers]


def _classes(prediction: Prediction) -> Any:
    """Return the numbers of the classes as they are, one or more. Raises MiningError for boxes, or without them."""
    if prediction.boxes is not None:
        raise MiningError(f"boxes have no class probabilities: use {DETECTORS} for detection")
    if prediction.probabilities is None or len(prediction.probabilities) == 0:
        raise MiningError("the prediction has no class probabilities: use Threshold, or a model that gives them")
    return prediction.probabilities


def _numbers(name: str, values: Any) -> list[float]:
    """Return numbers of any kind as floats, also NaN and infinite. Raises MiningError for other values."""
    if hasattr(values, "tolist"):  # NumPy arrays are slow to iterate
        values = values.tolist()
    try:
        return list(map(float, values))
    except (TypeError, ValueError, OverflowError) as error:
        raise MiningError(f"not every {name} is a number: {reprlib.repr(values)}") from error
