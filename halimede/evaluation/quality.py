"""Measures of quality: right classes, read texts, or found objects. They have one interface, which curves use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.evaluation import curves
from halimede.evaluation.curves import Point
from halimede.evaluation.data import FIELD, LabelledPicture
from halimede.evaluation.detection import Detection
from halimede.inference import Array
from halimede.messages import Box, Prediction

#: least score of the big model's boxes that count as objects in data without labels
SURE = 0.5


class Quality(Protocol):
    """Samples with two answers each: one if kept, one if uploaded. ``metric`` names what ``accuracy`` of a point is."""

    metric: str

    def curve(self, hardness: Array) -> Sequence[Point]:
        """Return the curve of a rule that uploads the hardest first."""

    def chance(self) -> Sequence[Point]:
        """Return the mean curve of random uploads."""

    def point(self, uploaded: Array) -> Point:
        """Return the point of a curve for these uploads (a boolean each)."""

    def sample_quality(self) -> Array:
        """Return how good both answers to each sample are, ``[2, samples]``: if kept, and if uploaded."""

    def gain(self) -> Array:
        """Return each sample's gain by an upload: in right answers, or in objects found."""

    def rewards(self) -> Array:
        """Return what each sample's upload adds to the accuracy of all, times their number: what a rule may learn."""


class Classification:
    """Whether answers are right, 0 or 1, for kept and for uploaded samples."""

    metric = "accuracy"

    def __init__(self, truths: Sequence[str], low: Sequence[Prediction], up: Sequence[Prediction]) -> None:
        self.low = right(truths, low)
        self.up = right(truths, up)

    def curve(self, hardness: Array) -> Sequence[Point]:
        """Return a rule's curve."""
        return curves.curve(hardness, self.low, self.up)

    def chance(self) -> Sequence[Point]:
        """Return the straight line between the ends."""
        return curves.chance(self.low, self.up)

    def point(self, uploaded: Array) -> Point:
        """Return the point of a curve for these uploads."""
        accuracy = float(np.where(uploaded, self.up, self.low).mean())
        return Point(upload_ratio=round(float(uploaded.mean()), 6), accuracy=round(accuracy, 6))

    def sample_quality(self) -> Array:
        """Return which answers are right."""
        return np.stack([self.low, self.up])

    def gain(self) -> Array:
        """Return 1 if only the upload is right, -1 if only keeping is, else 0."""
        gained: Array = self.up - self.low
        return gained

    def rewards(self) -> Array:
        """Return the gain: accuracy is a mean over samples."""
        return self.gain()


class TextPoint(Point):
    """A point of a reader's curve: ``accuracy`` is the share of texts that are right to the last character.

    ``character_error_rate``: characters to insert, remove or replace, over all characters of the true texts.
    """

    character_error_rate: float


class Reading(Classification):
    """Whether read texts are exactly the true ones, and how many of their characters are wrong."""

    metric = "exact match"

    def __init__(self, truths: Sequence[str], low: Sequence[Prediction], up: Sequence[Prediction]) -> None:
        super().__init__(truths, low, up)
        self._errors = [
            np.array([edits(answer.label or "", truth) for answer, truth in zip(answers, truths, strict=True)])
            for answers in (low, up)
        ]
        self._characters = max(1, sum(map(len, truths)))

    def point(self, uploaded: Array) -> TextPoint:
        """Return the point of a curve for these uploads."""
        low, up = self._errors
        errors = float(np.where(uploaded, up, low).sum())
        return TextPoint(**super().point(uploaded), character_error_rate=round(errors / self._characters, 6))


def edits(text: str, truth: str) -> int:
    """Return the fewest characters to insert, remove or replace to make one text from the other (Levenshtein 1966)."""
    if text == truth:
        return 0
    letters = np.array([ord(letter) for letter in truth], np.int64)
    offsets = np.arange(len(truth) + 1)
    costs = offsets
    for count, letter in enumerate(text, 1):
        # replacing or removing; an insertion costs 1 for each place to the right of the cheapest one
        cheapest = np.minimum(costs[:-1] + (letters != ord(letter)), costs[1:] + 1)
        costs = np.minimum.accumulate(np.concatenate([[count], cheapest]) - offsets) + offsets
    return int(costs[-1])


def right(truths: Sequence[str], answers: Sequence[Prediction]) -> Array:
    """Return 1.0 for each right answer, 0.0 for the others."""
    return np.array([answer.label == truth for answer, truth in zip(answers, truths, strict=True)], np.float64)


def referenced(data: LabelledPicture, cloud: Sequence[Prediction], *, is_text: bool = False) -> LabelledPicture:
    """Return the data with their truth: the labels, else the answers of the last tier's model.

    ``is_text``: these answers are texts (``reads_text``).
    Raises InvalidFieldError if labels and answers are of different kinds.
    """
    boxes = all(answer.boxes is not None for answer in cloud)
    if data.boxes is not None and not boxes:
        raise InvalidFieldError(FIELD, "annotations.json", "the model answers no boxes: give samples with classes")
    if data.truths is not None and boxes:
        raise InvalidFieldError(FIELD, data.truths[0], "the model answers boxes: give pictures and annotations.json")
    if data.truths is not None or data.boxes is not None:
        _check_common(data, cloud)
        return data
    if boxes:
        objects = [[_certain(box) for box in answer.boxes or () if box.score >= SURE] for answer in cloud]
        return LabelledPicture(images=data.images, names=data.names, sizes=data.sizes, boxes=objects)
    if not all(answer.label is not None for answer in cloud):
        raise InvalidFieldError(
            FIELD, data.names[0], "the model answers neither classes nor boxes: there is no measure"
        )
    truths = [answer.label or "" for answer in cloud]
    return LabelledPicture(images=data.images, names=data.names, sizes=data.sizes, truths=truths, is_text=is_text)


def _check_common(data: LabelledPicture, cloud: Sequence[Prediction]) -> None:
    """Refuse answers whose names differ from those of the data: a model without labels answers indices."""
    if data.is_text:
        return
    there = set(data.truths or ()) | {str(box.label) for boxes in data.boxes or () for box in boxes}
    said = {answer.label for answer in cloud if answer.boxes is None}
    said |= {str(box.label) for answer in cloud for box in answer.boxes or ()}
    if there and said and not there & said:
        listed = ", ".join(sorted(map(str, said))[:5])
        fix = f"the last tier's model answers none of its classes, but {listed}: set the Model's spec.labels to them"
        raise InvalidFieldError(FIELD, ", ".join(sorted(there)[:5]), fix)


def quality(data: LabelledPicture, low: Sequence[Prediction], up: Sequence[Prediction]) -> Quality:
    """Return the measure for data with known truths or boxes."""
    if data.boxes is not None:
        return Detection(data.boxes, low, up)
    return (Reading if data.is_text else Classification)(data.truths or [], low, up)


def reads_text(spec: ModelSpec, answers: Sequence[Prediction]) -> bool:
    """Whether a model's labels are texts: by its task, or by its answers if it has no list of classes.

    These are neither numbers of classes, nor probabilities, nor boxes.
    """
    if spec.postprocess and spec.postprocess.task == "text":
        return True
    return not spec.labels and all(
        answer.boxes is None and answer.probabilities is None and not (answer.label or "").isdigit()
        for answer in answers
    )


def _certain(box: Box) -> Box:
    return Box(box.x1, box.y1, box.x2, box.y2, 1.0, box.label)
