"""Measures of quality for each kind of data, with one interface: right classes, read texts, or found objects.

``quality`` chooses the measure. A measure has two answers to each sample: the answer if it is kept at the edge, and if
it is uploaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.evaluation import curves
from halimede.evaluation.curves import Point
from halimede.evaluation.data import FIELD, LabelledSamples
from halimede.evaluation.detection import Detection
from halimede.inference import Array
from halimede.messages import Box, Prediction

#: least score of the big model's boxes that count as objects in data without labels
OBJECT_SCORE = 0.5


class Quality(Protocol):
    """The measure of samples with two answers each. Arrays have one entry for each sample."""

    #: what ``accuracy`` of a point is
    metric: str

    def curve(self, hardness: Array) -> Sequence[Point]:
        """Return the curve of a rule that uploads the samples with the highest hardness first."""

    def chance(self) -> Sequence[Point]:
        """Return the mean curve of random uploads."""

    def point(self, uploaded: Array) -> Point:
        """Return the point of a curve at which these samples are uploaded, ``(samples,) bool``."""

    def sample_quality(self) -> Array:
        """Return how good both answers to each sample are, ``(2, samples)``: if kept, and if uploaded."""

    def gain(self) -> Array:
        """Return each sample's gain by its upload: in right answers, or in objects found."""

    def rewards(self) -> Array:
        """Return what each sample's upload adds to the accuracy of all, times the number of samples.

        It is what the rule Learned learns to estimate.
        """


class Classification:
    """A ``Quality`` of classes: ``low`` and ``up`` are whether the answers are right, ``(samples,)``, 1.0 or 0.0."""

    metric = "accuracy"

    def __init__(self, truths: Sequence[str], low: Sequence[Prediction], up: Sequence[Prediction]) -> None:
        self.low = right(truths, low)
        self.up = right(truths, up)

    def curve(self, hardness: Array) -> Sequence[Point]:
        """Return the curve, with the mean of all orders of samples with equal hardness."""
        return curves.curve(hardness, self.low, self.up)

    def chance(self) -> Sequence[Point]:
        """Return the mean curve of random uploads: the straight line between the ends."""
        return curves.chance(self.low, self.up)

    def point(self, uploaded: Array) -> Point:
        """Return the point with the share of right answers."""
        accuracy = float(np.where(uploaded, self.up, self.low).mean())
        return Point(upload_ratio=round(float(uploaded.mean()), 6), accuracy=round(accuracy, 6))

    def sample_quality(self) -> Array:
        """Return which answers are right, ``(2, samples)``: if kept, and if uploaded."""
        return np.stack([self.low, self.up])

    def gain(self) -> Array:
        """Return 1 if only the answer to the upload is right, -1 if only the other one is, else 0."""
        return np.asarray(self.up - self.low)

    def rewards(self) -> Array:
        """Return the gain, because accuracy is a mean over samples."""
        return self.gain()


class TextPoint(Point):
    """A ``Point`` of read texts: ``accuracy`` is the share of texts that are right to the last character.

    ``character_error_rate``: characters to insert, remove or replace, over all characters of the true texts.
    """

    character_error_rate: float


class Reading(Classification):
    """A ``Quality`` of read texts: whether each is exactly the true one, and how many characters are wrong."""

    metric = "exact match"

    def __init__(self, truths: Sequence[str], low: Sequence[Prediction], up: Sequence[Prediction]) -> None:
        super().__init__(truths, low, up)
        self._errors = [
            np.array([edits(answer.label or "", truth) for answer, truth in zip(answers, truths, strict=True)])
            for answers in (low, up)
        ]
        self._characters = max(1, sum(map(len, truths)))

    def point(self, uploaded: Array) -> TextPoint:
        """Return the point with the share of exact texts and the character error rate."""
        low, up = self._errors
        errors = float(np.where(uploaded, up, low).sum())
        return TextPoint(**super().point(uploaded), character_error_rate=round(errors / self._characters, 6))


def edits(text: str, truth: str) -> int:
    """Return the fewest characters to insert, remove or replace to make one text from the other (Levenshtein 1966)."""
    if text == truth:
        return 0
    true_codes = np.array([ord(character) for character in truth], np.int64)
    offsets = np.arange(len(truth) + 1)
    costs = offsets
    for count, character in enumerate(text, 1):
        # replacing or removing; an insertion costs 1 for each position to the right of the cheapest one
        cheapest = np.minimum(costs[:-1] + (true_codes != ord(character)), costs[1:] + 1)
        costs = np.minimum.accumulate(np.concatenate([[count], cheapest]) - offsets) + offsets
    return int(costs[-1])


def right(truths: Sequence[str], answers: Sequence[Prediction]) -> Array:
    """Return 1.0 for each answer whose label is the true one, else 0.0: ``(samples,) float64``."""
    return np.array([answer.label == truth for answer, truth in zip(answers, truths, strict=True)], np.float64)


def with_truth(data: LabelledSamples, cloud: Sequence[Prediction], *, is_text: bool = False) -> LabelledSamples:
    """Return data with a truth: ``data`` itself if it has labels, else with the last tier's answers as the truth.

    ``is_text``: these answers are texts to read. Raises InvalidFieldError if labels and answers are of different kinds,
    have no name in common, or there is no measure for the answers.
    """
    has_boxes = all(answer.boxes is not None for answer in cloud)
    if data.boxes is not None and not has_boxes:
        raise InvalidFieldError(FIELD, "annotations.json", "the model answers no boxes: give samples with classes")
    if data.truths is not None and has_boxes:
        raise InvalidFieldError(FIELD, data.truths[0], "the model answers boxes: give pictures and annotations.json")
    if data.truths is not None or data.boxes is not None:
        _check_common(data, cloud)
        return data
    if has_boxes:
        objects = [[_as_object(box) for box in answer.boxes or () if box.score >= OBJECT_SCORE] for answer in cloud]
        return LabelledSamples(images=data.images, names=data.names, sizes=data.sizes, boxes=objects)
    if not all(answer.label is not None for answer in cloud):
        raise InvalidFieldError(
            FIELD, data.names[0], "the model answers neither classes nor boxes: there is no measure"
        )
    truths = [answer.label or "" for answer in cloud]
    return LabelledSamples(images=data.images, names=data.names, sizes=data.sizes, truths=truths, is_text=is_text)


def _check_common(data: LabelledSamples, cloud: Sequence[Prediction]) -> None:
    """Raise InvalidFieldError if answers and data have no class name in common: a model may answer with indices."""
    if data.is_text:
        return
    data_names = set(data.truths or ()) | {str(box.label) for boxes in data.boxes or () for box in boxes}
    answer_names = {answer.label for answer in cloud if answer.boxes is None}
    answer_names |= {str(box.label) for answer in cloud for box in answer.boxes or ()}
    if data_names and answer_names and not data_names & answer_names:
        listed = ", ".join(sorted(map(str, answer_names))[:5])
        fix = f"the last tier's model answers none of its classes, but {listed}: set the Model's spec.labels to them"
        raise InvalidFieldError(FIELD, ", ".join(sorted(data_names)[:5]), fix)


def quality(data: LabelledSamples, low: Sequence[Prediction], up: Sequence[Prediction]) -> Quality:
    """Return the measure for data with a truth; ``low`` and ``up`` are the answers if kept, and if uploaded."""
    if data.boxes is not None:
        return Detection(data.boxes, low, up)
    return (Reading if data.is_text else Classification)(data.truths or [], low, up)


def has_text_labels(spec: ModelSpec, answers: Sequence[Prediction]) -> bool:
    """Whether a model reads texts: by its task, or, if it has no list of classes, by its answers.

    Answers are texts if none has boxes or probabilities, or a number as its label.
    """
    if spec.postprocess and spec.postprocess.task == "text":
        return True
    return not spec.labels and all(
        answer.boxes is None and answer.probabilities is None and not (answer.label or "").isdigit()
        for answer in answers
    )


def _as_object(box: Box) -> Box:
    return Box(box.x1, box.y1, box.x2, box.y2, 1.0, box.label)
