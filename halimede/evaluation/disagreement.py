"""The samples on which two models differ most, with both answers: what a person looks at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from msgspec import Struct

from halimede.evaluation.detection import MAX_BOXES, by_label, match
from halimede.frames.drawing import drawn_parts
from halimede.messages import Box, Prediction

#: most samples; characters of an answer's lines that are compared
MAX_SAMPLES, MAX_CHARACTERS = 24, 500


class Disagreement(Struct, kw_only=True):
    """A sample, its number in the data, and the answers of the first and the last tier's model.

    ``difference``: the higher, the more they differ; comparable within one data set.
    """

    sample: str
    number: int
    difference: float
    edge: Prediction
    cloud: Prediction


def most_different(names: Sequence[str], low: Sequence[Prediction], up: Sequence[Prediction]) -> list[Disagreement]:
    """Return the samples on which the answers differ most, the first of them first; none on which they agree."""
    differences = [difference(edge, cloud) for edge, cloud in zip(low, up, strict=True)]
    order = sorted((i for i, value in enumerate(differences) if value > 0), key=lambda i: -differences[i])
    return [
        Disagreement(
            sample=names[i],
            number=i,
            difference=round(differences[i], 6),
            edge=drawn_parts(low[i]),
            cloud=drawn_parts(up[i]),
        )
        for i in order[:MAX_SAMPLES]
    ]


def difference(low: Prediction, up: Prediction) -> float:
    """Return how much two answers differ; 0 if they agree.

    Boxes: the sum of the scores of all boxes that only one model has. Classes: 1 and the mean of both scores if they
    differ, else the difference of the scores. Lines of text: the share of characters that differ.
    """
    if low.boxes is not None or up.boxes is not None:
        edge_boxes, cloud_boxes = by_label(low.boxes or ()), by_label(up.boxes or ())
        return _unmatched(edge_boxes, cloud_boxes) + _unmatched(cloud_boxes, edge_boxes)
    scores = [0.0 if answer.score is None else min(max(answer.score, 0.0), 1.0) for answer in (low, up)]
    if low.label is not None or up.label is not None:
        return abs(scores[0] - scores[1]) if low.label == up.label else 1 + sum(scores) / 2
    if low.lines is not None or up.lines is not None:
        edge, cloud = (" ".join(line.text for line in answer.lines or ())[:MAX_CHARACTERS] for answer in (low, up))
        return 1 - SequenceMatcher(None, edge, cloud, autojunk=False).ratio()
    return float(low.value != up.value)


def _unmatched(boxes: Mapping[str, Sequence[Box]], partners: Mapping[str, Sequence[Box]]) -> float:
    """Return the sum of the scores of the boxes that no box of their label overlaps by half; 100 boxes of a label."""
    total = 0.0
    for label, labelled in boxes.items():
        surest = labelled[:MAX_BOXES]
        hits = match(surest, partners.get(label, ())[:MAX_BOXES])[:, 0]
        total += sum(max(0.0, box.score) for box, hit in zip(surest, hits, strict=True) if not hit)
    return total
