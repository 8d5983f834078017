"""What a user gets for a sample: the answer, who gave it and why."""

from __future__ import annotations

from dataclasses import dataclass

from halimede.errors import HalimedeError
from halimede.messages import Box, Prediction, Result


class NoAnswerError(HalimedeError):
    """No model could answer a sample. The text has the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The final answer to one sample.

    Attributes:
        label, score: the class and its probability; None where the model says boxes or something else.
        prediction: all that the model said: probabilities, boxes, or a user's own value.
        by: whose answer it is: ``edge`` or ``cloud`` (any tier that was asked).
        tier: that tier's name; of two models the same as ``by``.
        worker, model: the worker that answered and its model's version, where they are known.
        hard: the rule said that the next tier should be asked.
        degraded: it was not asked, or did not answer: the answer is the best that there was.
        reason: why, in one word (``no-cloud``, ``deadline``, ``budget``, ...); ``detail`` the same for people.
        hardness, cut: what the rule compared, where it compares numbers; hard from the cut on.
        audit: an easy sample that is asked about all the same, to measure how good easy ones are.
        mixed: ``prediction`` is a calibrated mixture of the models' answers.
        edge: what the small model said, where it is not the answer.
        ms: milliseconds from acceptance to answer, of which ``edge_ms`` in the small model and ``offload_ms`` with
            the tiers that were asked.
        id: the sample's, 32 hexadecimal digits.

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
        """Of all classes, in the order of the model's labels."""
        return self.prediction.probabilities

    @property
    def boxes(self) -> list[Box] | None:
        """Of a detector: what it has found."""
        return self.prediction.boxes


def answer_of(result: Result, detail: str) -> Answer:
    """Return a final result as its user sees it."""
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
        reason=result.reason,
        detail=detail,
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
