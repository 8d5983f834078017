"""Several small classifiers that answer each sample together: by majority, with the votes of all.

The answer's label is that of the most votes, of equally many the one with the higher scores; its probabilities are the
mean of all members'. ``value`` has the votes and their scores, from which the mining rule ``Agreement`` judges the
sample ("Agreement-based cascading for efficient inference", arXiv 2407.02348).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.messages import Frame, Prediction

#: members of a committee
LEAST_MEMBERS, MOST_MEMBERS = 2, 3
COUNT_FIX = f"a committee has {LEAST_MEMBERS} or {MOST_MEMBERS} models"


class EnsembleModel(Model):
    """Two or three models of the same classes as one. Raises ModelError for others.

    Each member prepares a sample itself: a prepared sample is an array without dimensions, with a field a member.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        if not LEAST_MEMBERS <= len(members) <= MOST_MEMBERS:
            raise ModelError(f"{len(members)} models: {COUNT_FIX}")
        if len({frozenset(member.labels) for member in members}) > 1:
            names = "; ".join(", ".join(member.labels) or "no labels" for member in members)
            raise ModelError(f"the models of a committee have different labels ({names}): give all the same ones")
        self.ours = all(member.ours for member in members)
        scales = [member.decoding for member in members]
        self.decoding = scales[0] if all(scale == scales[0] for scale in scales) else None
        self._members = members
        #: for each member, the position of each class of the first one
        self._orders = [[member.labels.index(label) for label in members[0].labels] for member in members]

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in the order of the first member."""
        return self._members[0].labels

    def prepare(self, image: Array) -> Array:
        """Let each member prepare the picture."""
        return _pack([member.prepare(image) for member in self._members])

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Let each member prepare the picture, with its metadata."""
        return _pack([member.prepare_frame(frame, image) for member in self._members])

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Let all members answer, and count their votes. Raises SampleError."""
        if len({sample.dtype for sample in batch}) > 1:  # inputs of other shapes that have as many bytes
            return [self.predict([sample])[0] for sample in batch]
        answers = [
            member.predict([sample[str(number)] for sample in batch]) for number, member in enumerate(self._members)
        ]
        return [self._majority(votes) for votes in zip(*answers, strict=True)]

    def close(self) -> None:
        """Close all members."""
        for member in self._members:
            member.close()

    def _majority(self, answers: Sequence[Prediction]) -> Prediction:
        """Return the answer of the majority."""
        rows = []
        for answer, order in zip(answers, self._orders, strict=True):
            if answer.label is None or answer.score is None or answer.probabilities is None:
                raise SampleError("a model of the committee gives no class with probabilities: use classifiers")
            row = answer.probabilities
            rows.append([row[i] for i in order] if order and len(order) == len(row) else row)
        if len({len(row) for row in rows}) > 1:
            raise SampleError("the models of the committee give different numbers of classes")
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for answer in answers:
            scores[answer.label or ""].append(answer.score or 0.0)
        label = max(scores, key=lambda name: (len(scores[name]), math.fsum(scores[name])))
        probabilities = np.mean(rows, axis=0).tolist()
        return Prediction(
            label=label,
            score=math.fsum(scores[label]) / len(answers),
            probabilities=probabilities,
            value={"votes": [answer.label for answer in answers], "scores": [answer.score for answer in answers]},
        )


def _pack(inputs: Sequence[Array]) -> Array:
    """Return one array without dimensions that has all inputs of a sample."""
    fields = [(str(number), array.dtype, array.shape) for number, array in enumerate(inputs)]
    sample = np.empty((), np.dtype(fields))
    for number, array in enumerate(inputs):
        sample[str(number)] = array
    return sample
