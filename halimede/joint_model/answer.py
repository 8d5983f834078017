"""The answer to a sample: the prediction, its origin and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.errors import HalimedeError
from halimede.messages import Box, Prediction, Result

#: reasons of answers for which only the mining rule decided
EASY, HARD = "easy", "hard"
#: these reasons for people, by ``hard``
DETAILS = {False: "the mining rule found it easy: the small model's answer", True: "the mining rule found it hard"}


class NoAnswerError(HalimedeError):
    """No model could answer a sample. The message has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The final answer to one sample.

    Attributes:
        label, score: the class and its probability, 0 to 1; None if the model returns boxes or other values.
        prediction: the model's whole output: probabilities, boxes, or a user's own value.
        by: who gave the answer: ``edge``, or ``cloud`` for any further tier.
        tier: that tier's name; with two models the same as ``by``.
        worker, model: the worker that answered, and the version of its model; empty: unknown.
        hard: the mining rule selected the sample for the next tier.
        degraded: a hard sample that the next tier did not answer: this is the best available answer.
        reason: why this model answered, in one word: ``easy`` or ``hard`` by the mining rule, else what kept the
            next tier from answering (``no-cloud``, ``deadline``, ``budget``, ...).
        detail: the reason as a sentence for people; empty: there is none.
        hardness, cut: the numbers that the rule compared; hard from the cut on. None: the rule compares no numbers.
        audit: an easy sample that was sent to the next tier as well, to measure the accuracy of easy ones.
        mixed: ``prediction`` is a calibrated mixture of the models' answers.
        edge: the small model's prediction, if another model gave the answer; else None.
        ms, edge_ms, offload_ms: milliseconds from acceptance to answer; of these in the small model, and waiting for
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
        """Probabilities of all classes, in the order of the model's labels; None if the model gives none."""
        return self.prediction.probabilities

    @property
    def boxes(self) -> list[Box] | None:
        """The boxes of a detector, in pixels of the sample; None if the model is no detector."""
        return self.prediction.boxes


def answer_of(result: Result, detail: str) -> Answer:
    """Return the user's form of a final result.

    ``detail``: why the next tier did not answer a hard sample; empty: it did, or the sample was easy.
    """
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
