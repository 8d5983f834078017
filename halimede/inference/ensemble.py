"""A committee: two or three small classifiers that answer each sample together, by majority.

The answer's label is the one with the most votes, and of equally many the one with the higher sum of scores. Its score
is the sum of the scores of these votes, divided by the number of members. Its probabilities are the mean of all
members'. Its ``value`` has all votes and their scores, from which the mining rule ``Agreement`` judges the sample
("Agreement-based cascading for efficient inference", arXiv 2407.02348).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.messages import Frame, Prediction

#: least and most members of a committee
LEAST_MEMBERS, MOST_MEMBERS = 2, 3
#: part of the error about another number of members
COUNT_FIX = f"a committee has {LEAST_MEMBERS} or {MOST_MEMBERS} models"


class EnsembleModel(Model):
    """A ``Model`` of two or three classifiers. Raises ModelError for another number, or for different labels.

    Each member prepares a sample itself. A prepared sample is an array without axes that has one field for each member
    (a structured dtype), named by the member's number.

    Attributes:
        labels: names of the classes, in the order of the first member.
        ours: True: all members are models without user code.
        decoding: that of all members if it is the same; else None, so frames are decoded whole.

    """

    labels: tuple[str, ...] = ()

    def __init__(self, members: Sequence[Model]) -> None:
        if not LEAST_MEMBERS <= len(members) <= MOST_MEMBERS:
            raise ModelError(f"{len(members)} models: {COUNT_FIX}")
        if len({frozenset(member.labels) for member in members}) > 1:
            names = "; ".join(", ".join(member.labels) or "no labels" for member in members)
            raise ModelError(f"the models of a committee have different labels ({names}): give all the same ones")
        self.ours = all(member.ours for member in members)
        scales = [member.decoding for member in members]
        self.decoding = scales[0] if all(scale == scales[0] for scale in scales) else None
        self.labels = members[0].labels
        self._members = members
        #: for each member, the position of each class of the first one
        self._orders = [[member.labels.index(label) for label in self.labels] for member in members]

    def prepare(self, image: Array) -> Array:
        """Return the samples that the members prepare, as one array. Raises SampleError."""
        return _pack([member.prepare(image) for member in self._members])

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Return the samples that the members prepare with the frame's metadata, as one array. Raises SampleError."""
        return _pack([member.prepare_frame(frame, image) for member in self._members])

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Return the majority's answer to each sample. Raises SampleError, also if a member is no classifier."""
        # ``batching.group`` compares only the bytes of structured samples: members' inputs may differ in shape
        if len({sample.dtype for sample in batch}) > 1:
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
        """Return the majority's answer from the members' answers to one sample, in the order of the members."""
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
        return Prediction(
            label=label,
            score=math.fsum(scores[label]) / len(answers),
            probabilities=np.mean(rows, axis=0).tolist(),
            value={"votes": [answer.label for answer in answers], "scores": [answer.score for answer in answers]},
        )


def _pack(inputs: Sequence[Array]) -> Array:
    """Return one array without axes that has the inputs of all members as its fields ``0``, ``1`` and so on."""
    fields = [(str(number), array.dtype, array.shape) for number, array in enumerate(inputs)]
    sample = np.empty((), np.dtype(fields))
    for number, array in enumerate(inputs):
        sample[str(number)] = array
    return sample
