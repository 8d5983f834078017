"""Measures the quality of boxes: average precision and object recall of any combination of two models' answers.

Matching is COCO's (Lin et al., ECCV 2014, arXiv 1405.0312; its cocoeval). In each picture and class, the boxes take
turns by descending score, at most 100. A box matches the unmatched object that it overlaps most, if the intersection
over union is at least the threshold. A box without a match is false.

Average precision (AP) is of one class: its boxes of all pictures are sorted by descending score, and p[n] and r[n] are
precision and recall after the n-th box. AP = sum over n of (r[n] - r[n-1]) * max(p[m] for m >= n) (Everingham et al.,
"The PASCAL Visual Object Classes Challenge: A Retrospective", IJCV 2015, all-point interpolation; COCO's own tool reads
101 points of the same curve). mAP@0.5 is the mean over the classes with objects, at threshold 0.5; mAP@0.5:0.95 is the
mean over ten thresholds. Object recall is the share of objects that a box of their class overlaps by 0.5 or more, at
any score.

Matching in one picture does not depend on other pictures. So each model's boxes are matched once, and a combination of
both models only counts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from halimede.evaluation.curves import Point, steps
from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Prediction

#: intersection over union from which a box matches an object, 0.5 to 0.95
THRESHOLDS = np.linspace(0.5, 0.95, 10)
#: most boxes of a class in one picture, by score
MAX_BOXES = 100
#: most points of a curve: each counts all boxes again
POINTS = 40
#: number of random orders in the mean of ``chance``
ORDERS = 5


class DetectionPoint(Point):
    """A ``Point`` of a detector's curve: ``accuracy`` is mAP@0.5, ``map_50_95`` is mAP@0.5:0.95, all 0 to 1."""

    map_50_95: float
    #: object recall
    recall: float


@dataclass(frozen=True, slots=True)
class MatchedBoxes:
    """One model's boxes in all pictures, matched with the objects there.

    Attributes:
        scores: of each box, ``(boxes,)``.
        classes: index of each box's class, ``(boxes,) int``; -1: a class without objects.
        pictures: index of each box's picture, ``(boxes,) int``.
        hits: whether each box matches an object at each threshold, ``(boxes, 10) bool``.
        objects_found: number of objects in each picture that a box matches at 0.5, ``(pictures,)``.
        false_boxes: number of boxes in each picture without a match at 0.5, ``(pictures,)``.

    """

    scores: Array
    classes: Array
    pictures: Array
    hits: Array
    objects_found: Array
    false_boxes: Array


class Detection:
    """A ``Quality`` of detectors: pictures with known objects, and two predictions for each.

    ``truths`` are the objects of each picture, ``low`` the predictions if a picture is kept, ``up`` if it is uploaded.
    """

    #: what ``accuracy`` of a point is
    metric = "mAP@0.5"

    def __init__(self, truths: Sequence[Sequence[Box]], low: Sequence[Prediction], up: Sequence[Prediction]) -> None:
        kinds = {kind: i for i, kind in enumerate(sorted({str(box.label) for boxes in truths for box in boxes}))}
        #: number of objects, ``(pictures, classes)``
        self._objects = np.zeros((len(truths), len(kinds)), np.int64)
        for number, boxes in enumerate(truths):
            for box in boxes:
                self._objects[number, kinds[str(box.label)]] += 1
        self._low, self._up = _match(kinds, truths, low), _match(kinds, truths, up)
        scores = np.concatenate([self._low.scores, self._up.scores])
        order = np.argsort(-scores, kind="stable")
        self._classes = np.concatenate([self._low.classes, self._up.classes])[order]
        self._pictures = np.concatenate([self._low.pictures, self._up.pictures])[order]
        self._hits = np.concatenate([self._low.hits, self._up.hits])[order]
        self._is_up = (np.arange(len(scores)) >= len(self._low.scores))[order]

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self._low.objects_found)

    def measure(self, uploaded: Array, times: Array | None = None) -> tuple[float, float, float]:
        """Return mAP@0.5, mAP@0.5:0.95 and object recall if these pictures are uploaded, ``(pictures,) bool``.

        ``times``: how often each picture counts, as a bootstrap draws them, ``(pictures,) int``; None: once. Without
        objects all are 0.
        """
        times = np.ones(len(self), np.int64) if times is None else times
        chosen = uploaded[self._pictures] == self._is_up
        classes, hits, weights = self._classes[chosen], self._hits[chosen], times[self._pictures[chosen]]
        objects = times @ self._objects
        parts = [
            average_precision(hits[classes == kind], count, weights[classes == kind])
            for kind, count in enumerate(objects)
            if count
        ]
        precisions = np.mean(parts, axis=0) if parts else np.zeros(len(THRESHOLDS))
        matches = float((times * np.where(uploaded, self._up.objects_found, self._low.objects_found)).sum())
        return float(precisions[0]), float(precisions.mean()), matches / max(1, int(objects.sum()))

    def curve(self, hardness: Array, seed: int = 0) -> list[DetectionPoint]:
        """Return a rule's curve from upload ratio 0 to 1.

        Pictures of equal hardness are in the random order that ``seed`` gives.
        """
        number = len(self)
        shuffled = np.random.default_rng(seed).permutation(number)
        order = shuffled[np.argsort(-np.asarray(hardness, np.float64)[shuffled], kind="stable")]
        points = []
        for count in steps(number, POINTS):
            uploaded = np.zeros(number, bool)
            uploaded[order[:count]] = True
            points.append(self.point(uploaded))
        return points

    def chance(self) -> list[DetectionPoint]:
        """Return the mean curve of random uploads, over ``ORDERS`` random orders."""
        curves = [self.curve(np.zeros(len(self)), seed) for seed in range(ORDERS)]
        return [
            DetectionPoint(
                upload_ratio=points[0]["upload_ratio"],
                accuracy=_mean([point["accuracy"] for point in points]),
                map_50_95=_mean([point["map_50_95"] for point in points]),
                recall=_mean([point["recall"] for point in points]),
            )
            for points in zip(*curves, strict=True)
        ]

    def point(self, uploaded: Array) -> DetectionPoint:
        """Return the point of a curve at which these pictures are uploaded, ``(pictures,) bool``."""
        accuracy, strict, recall = (round(value, 6) for value in self.measure(uploaded))
        ratio = round(float(uploaded.mean()), 6)
        return DetectionPoint(upload_ratio=ratio, accuracy=accuracy, map_50_95=strict, recall=recall)

    def sample_quality(self) -> Array:
        """Return the objects found less the false boxes, ``(2, pictures)``: if kept, and if uploaded."""
        return np.stack([matched.objects_found - matched.false_boxes for matched in (self._low, self._up)])

    def gain(self) -> Array:
        """Return each picture's gain by its upload: more objects found; if these are equal, fewer false boxes.

        The curve of this order is no upper bound: average precision is no sum over pictures. An object of a rare class
        weighs more than one of a common class, and a false box weighs by the number of matches with lower scores.
        """
        fewer = self._low.false_boxes - self._up.false_boxes
        more = self._up.objects_found - self._low.objects_found
        # less than half an object, so that false boxes only decide between equal numbers of objects
        return np.asarray(more + fewer / (1 + 2 * np.abs(fewer).max(initial=0)))

    def rewards(self) -> Array:
        """Return each picture's reward: the gain in mAP@0.5 by its upload, if half of the others are uploaded.

        It is Qiu et al.'s reward per image within context (SEC 2024, arXiv 2410.18919). Instead of random contexts, it
        is the slope of the average precision by the picture's share, with all other pictures half uploaded. It is
        scaled by the number of pictures, so that its mean is near the gain by uploading all.
        """
        rewards = np.zeros(len(self))
        objects: list[int] = self._objects.sum(axis=0).tolist()
        for kind, count in enumerate(objects):
            is_of_kind = self._classes == kind
            signs = np.where(self._is_up[is_of_kind], 1, -1) / max(1, count)
            rewards += np.bincount(self._pictures[is_of_kind], signs * box_values(self._hits[is_of_kind, 0]), len(self))
        return np.asarray(rewards * len(self) / max(1, sum(map(bool, objects))))


def box_values(hits: Array) -> Array:
    """Return what each box adds to the sum of precisions at matches: the slope of this sum by the box's weight.

    ``hits`` is whether each box matches an object, by descending score, ``(boxes,) bool``. A match adds its own
    precision and raises that of all matches with lower scores; a false box lowers them.
    """
    ranks = np.arange(1, len(hits) + 1)
    precision = np.cumsum(hits) / ranks
    below = hits / ranks
    return np.asarray(hits * (precision + _sums_from(below)) - _sums_from(below * precision))


def _sums_from(values: Array) -> Array:
    """Return for each position the sum of the values from there on."""
    return np.asarray(np.cumsum(values[::-1])[::-1])


def average_precision(hits: Array, objects: int, times: Array | None = None) -> Array:
    """Return the average precision of the boxes of one class at each threshold, ``(10,)``.

    ``hits``: whether each box, by descending score, matches an object at each threshold, ``(boxes, 10) bool``.
    ``objects``: number of objects, 1 or more. ``times``: how often each box counts; None: once.
    """
    counts = np.ones(len(hits), np.int64) if times is None else times
    weighted = hits * counts[:, np.newaxis]
    precision = np.cumsum(weighted, axis=0) / np.maximum(1, np.cumsum(counts))[:, np.newaxis]
    best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    return np.asarray((best * weighted).sum(axis=0) / objects)


def _match(kinds: dict[str, int], truths: Sequence[Sequence[Box]], answers: Sequence[Prediction]) -> MatchedBoxes:
    """Match one model's boxes in all pictures. ``kinds``: index of each class with objects."""
    scores: list[float] = []
    classes: list[int] = []
    pictures: list[int] = []
    hits: list[Array] = []
    objects_found, false_boxes = np.zeros(len(truths)), np.zeros(len(truths))
    for number, (objects, answer) in enumerate(zip(truths, answers, strict=True)):
        objects_of = by_label(objects)
        for label, boxes in by_label(answer.boxes or ()).items():
            surest = boxes[:MAX_BOXES]
            hit = match(surest, objects_of.get(label, ()))
            scores += [box.score for box in surest]
            classes += [kinds.get(label, -1)] * len(surest)
            pictures += [number] * len(surest)
            hits.append(hit)
            objects_found[number] += hit[:, 0].sum()
            false_boxes[number] += (~hit[:, 0]).sum()
    rows = np.concatenate([np.zeros((0, len(THRESHOLDS)), bool), *hits])
    columns = np.array(scores), np.array(classes, int), np.array(pictures, int)
    return MatchedBoxes(*columns, rows, objects_found, false_boxes)


def by_label(boxes: Sequence[Box]) -> dict[str, list[Box]]:
    """Return the boxes of each label, by descending score; the labels are text."""
    labels: dict[str, list[Box]] = {}
    for box in sorted(boxes, key=lambda box: -box.score):
        labels.setdefault(str(box.label), []).append(box)
    return labels


def match(boxes: Sequence[Box], objects: Sequence[Box]) -> Array:
    """Return whether each box matches an object at each threshold, ``(boxes, 10) bool``.

    ``boxes`` are by descending score, and of the same class as ``objects``. Each object matches one box at most.
    """
    hits = np.zeros((len(boxes), len(THRESHOLDS)), bool)
    if not objects:
        return hits
    corners = np.array([_corners(box) for box in objects], np.float64)
    free = np.ones((len(THRESHOLDS), len(objects)), bool)
    for i, box in enumerate(boxes):
        iou = overlaps(np.array(_corners(box), np.float64), corners)
        fits = np.where(free & (iou >= THRESHOLDS[:, np.newaxis]), iou, -1)
        best = fits.argmax(axis=1)
        hits[i] = fits.max(axis=1) >= 0
        free[hits[i], best[hits[i]]] = False
    return hits


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 6)


def _corners(box: Box) -> tuple[float, float, float, float]:
    return box.x1, box.y1, box.x2, box.y2
