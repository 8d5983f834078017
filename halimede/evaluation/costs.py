"""Computes what wrong answers cost: misses and false alarms, by the ``costs`` of a service. Pure.

A picture with several objects costs at most one miss and one false alarm, because it calls for an action or does not.
So the cost of a sample is bounded (``most_cost``), which a bound on the mean cost needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from halimede.api.deferral import Costs
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.detection import by_label, match
from halimede.evaluation.quality import OBJECT_SCORE
from halimede.inference import Array
from halimede.messages import Box, Prediction


def error_costs(data: LabelledSamples, answers: Sequence[Prediction], costs: Costs) -> Array:
    """Return the cost of the error in each answer, ``(samples,) float64``; 0 for a right one.

    Boxes count from a score of 0.5 on. The data must have labels.
    """
    if data.boxes is not None:
        pairs = zip(data.boxes, answers, strict=True)
        return np.array([_cost_of_boxes(objects, answer.boxes or (), costs) for objects, answer in pairs], float)
    truths = np.array(data.truths or [], object)
    labels = np.array([answer.label for answer in answers], object)
    if not costs.positive:
        return np.asarray(np.where(truths == labels, 0.0, costs.miss))
    is_positive, is_reported = truths == costs.positive, labels == costs.positive
    return np.asarray(costs.miss * (is_positive & ~is_reported) + costs.alarm * (is_reported & ~is_positive))


def most_cost(data: LabelledSamples, costs: Costs) -> float:
    """Return the most that one sample of this data can cost, with its upload."""
    if data.boxes is not None:
        return costs.miss + costs.alarm + costs.upload
    return (max(costs.miss, costs.alarm) if costs.positive else costs.miss) + costs.upload


def check_positive(field: str, costs: Costs, data: LabelledSamples, labels: Sequence[str]) -> None:
    """Raise InvalidFieldError, below ``field``, for a class that does not exist or a cost without a meaning.

    The class to find (``positive``) must be one of the model's ``labels`` or of the data. Without it, a wrong class is
    a miss and never a false alarm, so that ``alarm`` must be the cost of a miss; boxes may be false alarms.
    """
    if costs.positive:
        classes = set(labels) | set(data.truths or ()) | {str(box.label) for boxes in data.boxes or () for box in boxes}
        if costs.positive not in classes:
            listed = ", ".join(sorted(classes)[:5])
            raise InvalidFieldError(f"{field}.positive", costs.positive, f"use one of the classes, such as {listed}")
    elif data.boxes is None and costs.alarm != costs.miss:
        fix = "name the class to find in positive: without it each wrong class is a miss, and none a false alarm"
        raise InvalidFieldError(f"{field}.falseAlarm", costs.alarm, fix)


def _cost_of_boxes(objects: Sequence[Box], boxes: Sequence[Box], costs: Costs) -> float:
    """Return what the boxes of one picture cost: a miss if an object is missed, a false alarm if a box is false.

    With ``costs.positive`` only the objects and boxes of this class count.
    """
    sure = by_label([box for box in boxes if box.score >= OBJECT_SCORE])
    true = by_label(objects)
    labels = {costs.positive} if costs.positive else sure.keys() | true.keys()
    missed = false = False
    for label in labels:
        hits = match(sure.get(label, ()), true.get(label, ()))[:, 0]
        missed |= bool(hits.sum() < len(true.get(label, ())))
        false |= bool(hits.sum() < len(hits))
    return costs.miss * missed + costs.alarm * false


def costs_text(costs: Costs) -> str:
    """Return costs as the option ``--costs`` has them, such as ``miss=10,falseAlarm=1,upload=0.2``."""
    pairs: dict[str, float | str | bool] = msgspec.to_builtins(costs)
    texts = {key: f"{value:g}" if isinstance(value, float) else str(value).lower() for key, value in pairs.items()}
    return ",".join(f"{key}={costs.positive if key == 'positive' else text}" for key, text in texts.items())
