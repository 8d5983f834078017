"""What wrong answers cost: misses and false alarms, by a service's ``costs``. Pure.

A sample costs at most ``most_cost``, which a bound on the mean needs. So a picture with several objects costs one miss
at most, and one false alarm: what is counted is whether it calls for an action that does not come, or the other way
round.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from halimede.api.deferral import Costs
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.detection import by_label, match
from halimede.evaluation.quality import SURE
from halimede.inference import Array
from halimede.messages import Box, Prediction


def error_costs(data: LabelledPicture, answers: Sequence[Prediction], costs: Costs) -> Array:
    """Return the cost of the error in each answer, 0 without one; boxes count from a score of 0.5 on."""
    if data.boxes is not None:
        pairs = zip(data.boxes, answers, strict=True)
        return np.array([_cost_of_boxes(objects, answer.boxes or (), costs) for objects, answer in pairs], float)
    truths = np.array(data.truths or [], object)
    labels = np.array([answer.label for answer in answers], object)
    if not costs.positive:
        return np.asarray(np.where(truths == labels, 0.0, costs.miss))
    is_positive, is_reported = truths == costs.positive, labels == costs.positive
    return np.asarray(costs.miss * (is_positive & ~is_reported) + costs.alarm * (is_reported & ~is_positive))


def most_cost(data: LabelledPicture, costs: Costs) -> float:
    """Return the most that one sample can cost, with its upload."""
    if data.boxes is not None:
        return costs.miss + costs.alarm + costs.upload
    return (max(costs.miss, costs.alarm) if costs.positive else costs.miss) + costs.upload


def check_positive(field: str, costs: Costs, data: LabelledPicture, labels: Sequence[str]) -> None:
    """Refuse a class to find that neither model nor data have, and a cost without a meaning. Raises InvalidFieldError.

    ``labels`` are those of the model, empty if they are not known.
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
    """Return what the boxes of one picture cost: an object is missed, a box is false, both or none."""
    sure = by_label([box for box in boxes if box.score >= SURE])
    true = by_label(objects)
    labels = {costs.positive} if costs.positive else sure.keys() | true.keys()
    missed = false = False
    for label in labels:
        hits = match(sure.get(label, ()), true.get(label, ()))[:, 0]
        missed |= bool(hits.sum() < len(true.get(label, ())))
        false |= bool(hits.sum() < len(hits))
    return costs.miss * missed + costs.alarm * false


def costs_text(costs: Costs) -> str:
    """Return costs as the option of a command has them."""
    pairs: dict[str, float | str | bool] = msgspec.to_builtins(costs)
    texts = {key: f"{value:g}" if isinstance(value, float) else str(value).lower() for key, value in pairs.items()}
    return ",".join(f"{key}={costs.positive if key == 'positive' else text}" for key, text in texts.items())
