"""A model's answer as one short cell of text, for tables, pages and drawings: bounded, whatever a model answers."""

from __future__ import annotations

from collections.abc import Sequence

from halimede.messages import Box, OccupancyEvent, Prediction

#: most boxes or lines that are shown; most characters of a box's label or a line, and of a class or a value
MOST_SHOWN, LABEL_CHARACTERS, TEXT_CHARACTERS = 3, 24, 40
#: absolute value from which on a score has an exponent
LARGE_SCORE = 1000.0


def describe_answer(answer: Prediction) -> str:
    """Return what a model answered, such as ``cat 0.93`` or ``2 lines: EXIT 0.90, 12 0.41``.

    It is the first of these that the answer has: class and score, boxes, lines of text, the start of the value. It is
    ``-`` for an answer that has none of them.
    """
    if answer.label is not None:
        label = answer.label[:TEXT_CHARACTERS]
        return label if answer.score is None else f"{label} {score_text(answer.score)}"
    if answer.boxes is not None:
        return describe_boxes(answer.boxes)
    if answer.lines is not None:
        lines = [(line.text, line.score) for line in answer.lines[:MOST_SHOWN]]
        return _summarize("line", "lines", len(answer.lines), lines)
    return "-" if answer.value is None else str(answer.value)[:TEXT_CHARACTERS]


def describe_boxes(boxes: Sequence[Box]) -> str:
    """Return the number of boxes, and label and score of the surest ones: ``1 box: face 0.93``."""
    surest = sorted(boxes, key=lambda box: -box.score)[:MOST_SHOWN]
    return _summarize("box", "boxes", len(boxes), [(str(box.label), box.score) for box in surest])


def describe_occupancy(event: OccupancyEvent) -> str:
    """Return label, camera, zone and numbers of objects of an event: ``person in yard/door: 2, before 1``."""
    where = f"{event.camera}/{event.zone}" if event.zone else event.camera
    return f"{event.label[:TEXT_CHARACTERS]} in {where}: {event.count}, before {event.before}"


def _summarize(singular: str, plural: str, total: int, shown: Sequence[tuple[str, float | None]]) -> str:
    """Return the number of things with their noun, then text and score of each that is ``shown``, then ``..`` for more.

    ``total``: the number of all things.
    """
    texts = [text[:LABEL_CHARACTERS] + (f" {score_text(score)}" if score is not None else "") for text, score in shown]
    count = count_text(total, singular, plural)
    ellipsis = [".."] if total > len(shown) else []
    return f"{count}: {', '.join([*texts, *ellipsis])}" if total else count


def count_text(total: int, singular: str, plural: str) -> str:
    """Return a number with its noun: ``1 box``, ``2 boxes``."""
    return f"1 {singular}" if total == 1 else f"{total} {plural}"


def score_text(score: float) -> str:
    """Return a score with two decimals: ``0.93``; a large one with an exponent: ``1.2e+04``."""
    return f"{score:.2f}" if abs(score) < LARGE_SCORE else f"{score:.1e}"
