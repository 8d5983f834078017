"""The answer to a sample: the prediction, its origin and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.errors import HalimedeError
from halimede.messages import Box, Prediction, Result

#: reasons of answers that went as the mining rule decided, and the same for people by ``hard``
EASY, HARD = "easy", "hard"
DETAILS = {False: "the mining rule found it easy: the small model's answer", True: "the mining rule found it hard"}


class NoAnswerError(HalimedeError):
    """No model could answer a sample. The message has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The final answer to one sample.

    Attributes:
        label, score: the class and its probability; None if the model returns boxes or other values.
        prediction: the model's whole output: probabilities, boxes, or a user's own value.
        by: origin of the answer: ``edge`` or ``cloud`` (any further tier).
        tier: that tier's name; with two models the same as ``by``.
        worker, model: the worker that answered and its model's version, if known.
        hard: the mining rule selected the sample for the next tier.
        degraded: the next tier was not requested, or did not answer: the best available answer.
        reason: why this model answered, in one word: ``easy`` or ``hard`` by the mining rule, else what kept the
            next tier from answering (``no-cloud``, ``deadline``, ``budget``, ...); ``detail`` the same for people.
        hardness, cut: the numbers that the rule compared, if it compares numbers; hard from the cut on.
        audit: an easy sample that was sent to the next tier as well, to measure the accuracy of easy ones.
        mixed: ``prediction`` is a calibrated mixture of the models' answers.
        edge: the small model's prediction, if it is not the answer.
        ms: milliseconds from acceptance to answer, ``edge_ms`` of them in the small model and ``offload_ms`` with
            further tiers.
        id: the sample's id, 32 hexadecimal digits.

    """

    label: str | None
    score: float | None
    prediction: Prediction
    by: str
    tier: str
    worker: str
    model: str
    hard: bool
    degraded: bool
    reason: str
    detail: str
    hardness: float | None
    cut: float | None
    audit: bool
    mixed: bool
    edge: Prediction | None
    ms: float
    edge_ms: float
    offload_ms: float
    id: str

    @property
    def probabilities(self) -> list[float] | None:
        """Probabilities of all classes, in the order of the model's labels."""
        return self.prediction.probabilities

    @property
    def boxes(self) -> list[Box] | None:
        """The boxes of a detector."""
        return self.prediction.boxes


def answer_of(result: Result, detail: str) -> Answer:
    """Return the user's form of a final result."""
    return Answer(
        label=result.label,
        score=result.score,
        prediction=result.prediction,
        by=result.by,
        tier=result.tier or result.by,
        worker=result.worker,
        model=result.model,
        hard=result.hard,
        degraded=result.degraded,
        reason=result.reason or (HARD if result.hard else EASY),
        detail=detail or (DETAILS[result.hard] if not result.reason else ""),
        hardness=result.hardness,
        cut=result.cut,
        audit=result.audit,
        mixed=result.mixed,
        edge=result.edge,
        ms=result.total_ms,
        edge_ms=result.edge_ms,
        offload_ms=result.offload_ms,
        id=result.id,
    )
