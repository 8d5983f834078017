"""An answer as one cell: what it has is listed, and its length is bounded."""

from __future__ import annotations

import pytest

from halimede.answer_text import describe_answer
from halimede.messages import Box, Prediction, TextLine


def face(score: float, label: str | int = "face") -> Box:
    return Box(1, 2, 3, 4, score, label)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Prediction(boxes=[face(0.931)]), "1 box: face 0.93"),
        (Prediction(boxes=[]), "0 boxes"),
        (Prediction(boxes=[face(0.2), face(0.9, 7)]), "2 boxes: 7 0.90, face 0.20"),
        (Prediction(boxes=[face(n / 10) for n in range(9)]), "9 boxes: face 0.80, face 0.70, face 0.60, .."),
        (Prediction(label="cat", score=0.5), "cat 0.50"),
        (Prediction(label="cat"), "cat"),
        (Prediction(lines=[TextLine(text="EXIT", score=0.9)]), "1 line: EXIT 0.90"),
        (Prediction(lines=[TextLine(text=word) for word in "abcd"]), "4 lines: a, b, c, .."),
        (Prediction(value={"a": 1}), "{'a': 1}"),
        (Prediction(), "-"),
    ],
)
def test_an_answer_is_one_cell(answer: Prediction, text: str) -> None:
    assert describe_answer(answer) == text


@pytest.mark.parametrize(
    "answer",
    [
        Prediction(boxes=[face(-1e300, "x" * 5000)] * 10_000),
        Prediction(label="x" * 1024, score=1e300),
        Prediction(value=["x" * 9999]),
        Prediction(lines=[TextLine(text="x" * 4096, score=1e300)] * 1000),
    ],
)
def test_the_cell_is_bounded(answer: Prediction) -> None:
    assert len(describe_answer(answer)) <= 130
