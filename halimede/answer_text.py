"""A model's answer as one short cell of text, for tables, pages and drawings: bounded, whatever a model answers."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Box, Prediction

#: boxes or lines that are listed, and most characters of the label of one, and of a class or a value
LISTED, LABEL_CHARACTERS, TEXT_CHARACTERS = 3, 24, 40
#: scores from here on have an exponent
LARGE_SCORE = 1000.0


def describe_answer(answer: Prediction) -> str:
    """Return the class with its score, boxes, lines of text, or the start of the value; ``-`` for an empty answer."""
    if answer.label is not None:
        label = answer.label[:TEXT_CHARACTERS]
        return label if answer.score is None else f"{label} {score_text(answer.score)}"
    if answer.boxes is not None:
        return describe_boxes(answer.boxes)
    if answer.lines is not None:
        return _listed("line", "lines", len(answer.lines), [(line.text, line.score) for line in answer.lines[:LISTED]])
    return "-" if answer.value is None else str(answer.value)[:TEXT_CHARACTERS]


def describe_boxes(boxes: Sequence[Box]) -> str:
    """Return the number of boxes, and label and score of the surest ones: ``1 box: face 0.93``."""
    surest = sorted(boxes, key=lambda box: -box.score)[:LISTED]
    return _listed("box", "boxes", len(boxes), [(str(box.label), box.score) for box in surest])


def _listed(one: str, many: str, total: int, items: Sequence[tuple[str, float | None]]) -> str:
    cells = [text[:LABEL_CHARACTERS] + (f" {score_text(score)}" if score is not None else "") for text, score in items]
    count = count_text(total, one, many)
    more = [".."] if total > len(items) else []
    return f"{count}: {', '.join([*cells, *more])}" if total else count


def count_text(total: int, one: str, many: str) -> str:
    """Return a number with its noun: ``1 box``, ``2 boxes``."""
    return f"1 {one}" if total == 1 else f"{total} {many}"


def score_text(score: float) -> str:
    """Return a score with two decimals."""
    return f"{score:.2f}" if abs(score) < LARGE_SCORE else f"{score:.1e}"
