"""Small made-up runs of the demos of real pairs: known answers to known frames."""

from __future__ import annotations

from typing import Any

from examples.real_pairs.measures import BoxMeasure, TextMeasure
from examples.real_pairs.pairs import FACES, TEXT
from examples.real_pairs.report import Answer, Run
from halimede.messages import Box, Prediction, Result
from tests.cameras import jpeg

CALIBRATION = {"rule": "Threshold", "parameters": {"threshold": "0.5"}, "fitted": 7, "aboveChance": True}
STATUS = {"status": {"metrics": [{"key": "uploadedBytes", "value": "4000"}]}}


def box(left: float, score: float = 0.9) -> Box:
    return Box(left, 10.0, left + 10.0, 20.0, score, "face")


def boxes(*lefts: float, score: float = 0.9) -> Prediction:
    return Prediction(boxes=[box(left, score) for left in lefts])


def answer(
    number: int, edge: Prediction, cloud: Prediction, *, hardness: float | None = -0.9, up: bool = False,
    audit: bool = False, reason: str = "",
) -> Answer:  # fmt: skip
    """Return one frame: its final answer is the cloud's if it went up."""
    result = Result(
        id=f"{number:032x}", service="pair", camera="pair-folder", by="cloud" if up else "edge",
        hard=up or bool(reason), prediction=cloud if up else edge, edge=edge if up else None, worker="w", node="edge0",
        hardness=hardness, cut=-0.5, audit=audit, reason=reason,
    )  # fmt: skip
    return Answer(f"{number:04}.jpg", "pair-folder", jpeg(), result, cloud)


def run_of_faces() -> tuple[Run, list[list[Box]]]:
    """Six frames, of which two went up: in one the cloud finds the second face, in the other nobody finds any."""
    frames = [
        ([10.0], answer(0, boxes(10), boxes(10))),
        ([10.0, 40.0], answer(1, boxes(10, score=0.6), boxes(10, 40), hardness=-0.4, up=True)),
        ([30.0], answer(2, boxes(), boxes(), hardness=1e6, up=True)),
        ([], answer(3, boxes(5), boxes(), hardness=-0.45, reason="budget")),
        ([20.0], answer(4, boxes(20), boxes(20), audit=True)),
        ([], answer(5, boxes(40, score=0.4), boxes())),
    ]
    truths = [[box(left, 1.0) for left in lefts] for lefts, _ in frames]
    return finished(FACES.name, [each for _, each in frames], BoxMeasure(truths)), truths


def run_of_words() -> tuple[Run, list[str]]:
    """Four words, of which one went up, and was mended; another text stays wrong."""
    words = [
        ("AB12", "AB12", "AB12", False),
        ("<b>", "<b", "<b>", True),
        ("KLM", "KLN", "KLM", False),
        ("X", "X", "X", False),
    ]
    answers = [
        answer(i, Prediction(label=edge, score=0.9), Prediction(label=cloud, score=0.99), up=up)
        for i, (_, edge, cloud, up) in enumerate(words)
    ]
    truths = [truth for truth, *_ in words]
    return finished(TEXT.name, answers, TextMeasure(truths)), truths


def finished(name: str, answers: list[Answer], measure: Any) -> Run:
    count = len(answers)
    pair = {FACES.name: FACES, TEXT.name: TEXT}[name]
    return Run(
        name=name, answers=answers, measure=measure, shown={"pair-folder": count, "pair-rtsp": 3},
        published={"pair-folder": count, "pair-rtsp": 0}, repeated=0, unknown=0, seconds=2.0, budget=pair.budget,
        calibration=CALIBRATION, sources=pair.sources, status=STATUS,
    )  # fmt: skip
