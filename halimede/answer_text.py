"""A model's answer as one short cell of text, for tables, pages and drawings: bounded, whatever a model answers."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Box, Prediction

#: boxes that are listed, and most characters of the label of one, and of a class or a value
LISTED_BOXES, LABEL_CHARACTERS, TEXT_CHARACTERS = 3, 24, 40
#: scores from here on have an exponent
LARGE_SCORE = 1000.0


def describe_answer(answer: Prediction) -> str:
    """Return the class with its score, or the boxes, or the start of the value; ``-`` for an empty answer."""
    if answer.label is not None:
        label = answer.label[:TEXT_CHARACTERS]
        return label if answer.score is None else f"{label} {score_text(answer.score)}"
    if answer.boxes is not None:
        return describe_boxes(answer.boxes)
    return "-" if answer.value is None else str(answer.value)[:TEXT_CHARACTERS]


def describe_boxes(boxes: Sequence[Box]) -> str:
    """Return the number of boxes, and label and score of the surest ones: ``1 box: face 0.93``."""
    surest = sorted(boxes, key=lambda box: -box.score)[:LISTED_BOXES]
    listed = [f"{str(box.label)[:LABEL_CHARACTERS]} {score_text(box.score)}" for box in surest]
    count = "1 box" if len(boxes) == 1 else f"{len(boxes)} boxes"
    more = [".."] if len(boxes) > LISTED_BOXES else []
    return f"{count}: {', '.join([*listed, *more])}" if boxes else count


def score_text(score: float) -> str:
    """Return a score with two decimals."""
    return f"{score:.2f}" if abs(score) < LARGE_SCORE else f"{score:.1e}"
