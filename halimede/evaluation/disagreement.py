"""Lists the samples on which two models differ most, with both answers, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from msgspec import Struct

from halimede.evaluation.detection import MAX_BOXES, by_label, match
from halimede.frames.drawing import drawn_parts
from halimede.messages import Box, Prediction

#: most samples in the list; most characters of an answer's lines that are compared
MAX_SAMPLES, MAX_CHARACTERS = 24, 500


class Disagreement(Struct, kw_only=True):
    """A sample on which the first and the last tier's models differ.

    Attributes:
        sample: its name.
        number: its index in the data.
        difference: how much the answers differ, over 0; comparable within one data set.
        edge, cloud: the parts of both answers that a drawing shows.

    """

    sample: str
    number: int
    difference: float
    edge: Prediction
    cloud: Prediction


def list_disagreements(
    names: Sequence[str], edge: Sequence[Prediction], cloud: Sequence[Prediction]
) -> list[Disagreement]:
    """Return the samples on which the answers differ most, at most ``MAX_SAMPLES``, by descending difference.

    ``names``, ``edge`` and ``cloud`` have one entry for each sample.
    """
    differences = [difference(*answers) for answers in zip(edge, cloud, strict=True)]
    order = sorted((i for i, value in enumerate(differences) if value > 0), key=lambda i: -differences[i])
    return [
        Disagreement(
            sample=names[i],
            number=i,
            difference=round(differences[i], 6),
            edge=drawn_parts(edge[i]),
            cloud=drawn_parts(cloud[i]),
        )
        for i in order[:MAX_SAMPLES]
    ]


def difference(edge: Prediction, cloud: Prediction) -> float:
    """Return how much two answers to a sample differ; 0 if they agree.

    Boxes: the sum of the scores of all boxes that only one model has. Classes: 1 and the mean of both scores if they
    differ, else the difference of the scores. Lines of text: the share of characters that differ. Values: 1 if they
    differ.
    """
    if edge.boxes is not None or cloud.boxes is not None:
        edge_boxes, cloud_boxes = by_label(edge.boxes or ()), by_label(cloud.boxes or ())
        return _unmatched_score(edge_boxes, cloud_boxes) + _unmatched_score(cloud_boxes, edge_boxes)
    scores = [0.0 if answer.score is None else min(max(answer.score, 0.0), 1.0) for answer in (edge, cloud)]
    if edge.label is not None or cloud.label is not None:
        return abs(scores[0] - scores[1]) if edge.label == cloud.label else 1 + sum(scores) / 2
    if edge.lines is not None or cloud.lines is not None:
        texts = [" ".join(line.text for line in answer.lines or ())[:MAX_CHARACTERS] for answer in (edge, cloud)]
        return 1 - SequenceMatcher(None, texts[0], texts[1], autojunk=False).ratio()
    return float(edge.value != cloud.value)


def _unmatched_score(boxes: Mapping[str, Sequence[Box]], partners: Mapping[str, Sequence[Box]]) -> float:
    """Return the sum of the scores of boxes that no partner of their label overlaps by 0.5 (IoU) or more.

    Both are by label, in descending order of score; of each label the first ``MAX_BOXES`` count.
    """
    total = 0.0
    for label, labelled in boxes.items():
        surest = labelled[:MAX_BOXES]
        hits = match(surest, partners.get(label, ())[:MAX_BOXES])[:, 0]
        total += sum(max(0.0, box.score) for box, hit in zip(surest, hits, strict=True) if not hit)
    return total
