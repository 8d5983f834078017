"""Reads the outputs of detection models in their common export formats; returns boxes in pixels of the frame.

| ``decode`` | one sample's output |
|---|---|
| rows | ``[boxes, 6]``: four numbers, score, class |
| yolo | ``[4 + classes, boxes]`` or ``[boxes, 4 + classes]``: four numbers, a score for each class |
| yolov5 | ``[boxes, 5 + classes]`` or transposed: four numbers, a score for any object, one for each class |
| ssd-anchors | ``[boxes, 4 + 2 * points]`` relative to anchors, and scores ``[boxes, classes]`` |
| db | a map of probabilities ``[1, h, w]``: each region is a line of text |
| centernet, centerface | maps of scores ``[classes, h, w]``, sizes and offsets ``[2, h, w]``; maps of points |
| rows with ``boxes.output`` | boxes ``[boxes, 4]`` in addition to scores ``[boxes, classes]``, or scores and classes |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from halimede.api.processing import DB, MAPS, Boxes, Nms, Postprocess
from halimede.inference.boxes import Form, corners, suppress
from halimede.inference.decoders.anchors import AnchorBoxes
from halimede.inference.decoders.centers import read_maps
from halimede.inference.decoders.probability_map import THRESHOLD, UNCLIP, read_probabilities
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, SampleError
from halimede.inference.postprocess import activate, label_of
from halimede.messages import Box, PicturePoint, Prediction

BOX_COLUMNS = 6
#: limit of a message (messages.samples); of more candidates only the best are used
MAX_BOXES = 10_000
MAX_CLASS = 2**31 - 1
#: tolerance by which rounding may raise a score above 1
SCORE_SLACK = 1e-3
#: columns before the scores of classes
AHEAD = {"yolo": 4, "yolov5": 5}


class Candidates(NamedTuple):
    """Candidates of one sample: ``[n, 4]`` numbers in the model's form, scores, class indices.

    ``points``: landmarks ``[n, points, 2]`` in pixels of the model's input, if the model gives them.
    """

    boxes: Array
    scores: Array
    classes: Array
    points: Array | None = None


class BoxReader:
    """Reads the outputs of a detection model, one sample at a time.

    ``names``: outputs of scores, and of boxes, classes and offsets. ``anchors``: for a model that needs them.
    """

    def __init__(
        self,
        names: Sequence[str],
        postprocess: Postprocess,
        labels: Sequence[str],
        anchors: AnchorBoxes | None = None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self._activation = postprocess.activation
        self._boxes = postprocess.boxes or Boxes()
        self._anchors = anchors
        self._nms = postprocess.nms
        self._least_score = postprocess.nms.score if postprocess.nms else 0.0
        self._top = postprocess.top_k
        self._labels = tuple(labels)
        self._is_map = self._boxes.decode in {DB, *MAPS}

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Divide the outputs by samples. Models with built-in suppression often return one without a batch axis."""
        if self._is_map:
            return self._split_maps(outputs)
        boxes = outputs[-1 if len(outputs) == 1 else 1]
        if boxes.ndim == 4 and boxes.shape[2] == 1:
            boxes = boxes[:, :, 0]
        if boxes.ndim == 2 and count == 1:
            return [(outputs[0], boxes, *outputs[2:]) if len(outputs) > 1 else (boxes,)]
        if boxes.ndim != 3 or not all(output.ndim and len(output) == len(boxes) for output in outputs):
            raise SampleError(f"the model gives {list(boxes.shape)}, which is no [samples, boxes, {self._columns()}]")
        whole = (outputs[0], boxes, *outputs[2:]) if len(outputs) > 1 else (boxes,)
        return list(zip(*whole, strict=True))

    def _split_maps(self, outputs: Sequence[Array]) -> list[tuple[Array, ...]]:
        """Divide maps by samples. Raises SampleError."""
        if any(output.ndim != 4 or len(output) != len(outputs[0]) for output in outputs):
            shapes = ", ".join(str(list(output.shape)) for output in outputs)
            raise SampleError(f"the model gives {shapes}, which are no maps [samples, channels, height, width]")
        return list(zip(*outputs, strict=True))

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Read one sample's part of the outputs. Raises SampleError."""
        if self._is_map:
            self._check_maps(part)
        elif not all(np.isfinite(array).all() for array in part):
            raise SampleError("the model gives boxes with NaN or infinity for this sample")
        is_text = self._boxes.decode == DB
        candidates = self._check(self._read_regions(part[0], geometry) if is_text else self._decode(part))
        form: Form = self._boxes.form or ("xyxy" if self._boxes.decode in {"rows", DB} else "cxcywh")
        # rows keep their four numbers unless a conversion is needed: a model may use its own order
        boxes = candidates.boxes if form == "xyxy" and not self._nms else corners(candidates.boxes, form)
        if geometry and self._boxes.normalized:
            boxes = geometry.pixels(boxes)
        indices = self._select(boxes, candidates)
        boxes = geometry.back(boxes[indices]) if geometry else boxes[indices]
        if not np.isfinite(boxes).all():
            raise SampleError("the model gives boxes beyond all measure for this sample")
        rows = np.column_stack([boxes, candidates.scores[indices], candidates.classes[indices]]).tolist()
        return Prediction(
            boxes=[Box(x1, y1, x2, y2, score, self._label(int(kind))) for x1, y1, x2, y2, score, kind in rows],
            landmarks=None if candidates.points is None else _landmarks(candidates.points[indices], geometry),
        )

    def _check_maps(self, part: tuple[Array, ...]) -> None:
        """Refuse maps with NaN or infinity. Raises SampleError."""
        for name, values in zip(self.names, part, strict=True):
            wrong = np.argwhere(~np.isfinite(values))
            if len(wrong):
                first = wrong[0].tolist()
                raise SampleError(
                    f"the model's output {name} has {values[tuple(first)]} at {first}, one of {len(wrong)} such values "
                    "for this sample: check the range of spec.preprocess, or export the model in float32"
                )

    def _decode(self, values: Sequence[Array]) -> Candidates:
        if self._boxes.decode in MAPS:
            scores, *maps = values
            face = self._boxes.decode == "centerface"
            return self._candidates(*read_maps(self._activated(scores), *maps, face=face, least=self._least_score))
        if self._anchors:
            scores, numbers = values
            boxes, points = self._anchors.decode(numbers), self._anchors.points(numbers)
            if scores.shape[:1] != boxes.shape[:1]:
                shapes = f"scores {list(scores.shape)} for {len(boxes)} boxes"
                raise SampleError(f"the model gives {shapes} of one sample: check spec.postprocess.output")
            return self._best(boxes, scores[:, np.newaxis] if scores.ndim == 1 else scores, points=points)
        if len(values) == 1 and self._boxes.decode == "rows":
            (rows,) = values
            if rows.ndim != 2 or rows.shape[1] != BOX_COLUMNS:
                raise SampleError(f"the model gives {list(rows.shape)} for one sample, which are no [boxes, 6]")
            return self._candidates(rows[:, :4], rows[:, 4], rows[:, 5])
        if len(values) == 1:
            return self._decode_yolo(values[0])
        scores, boxes, *classes = values
        if boxes.ndim != 2 or boxes.shape[1] != 4 or len(scores) != len(boxes):
            shapes = f"{list(boxes.shape)} and {list(scores.shape)}"
            raise SampleError(f"the model gives {shapes} for one sample, which are no boxes [boxes, 4] and scores")
        if classes:
            if scores.shape != (len(boxes),) or classes[0].shape != scores.shape:
                raise SampleError(f"the model gives scores {list(scores.shape)}, of which classes want one a box")
            return self._candidates(boxes, self._activated(scores), classes[0])
        return self._best(boxes, scores[:, np.newaxis] if scores.ndim == 1 else scores)

    def _read_regions(self, values: Array, geometry: Geometry | None) -> Candidates:
        options = self._boxes
        boxes, scores = read_probabilities(
            self._activated(values),
            geometry,
            threshold=THRESHOLD if options.threshold is None else options.threshold,
            unclip=UNCLIP if options.unclip is None else options.unclip,
        )
        return self._candidates(boxes, scores, np.zeros(len(boxes)))

    def _decode_yolo(self, values: Array) -> Candidates:
        ahead = AHEAD[self._boxes.decode]
        if values.ndim != 2:
            raise self._misfit(values)
        if self._labels:
            columns = ahead + len(self._labels)
            if columns not in values.shape:
                raise self._misfit(values)
            turned = values.shape[0] == columns and (values.shape[1] != columns or ahead == 4)
        else:
            turned = values.shape[0] < values.shape[1]  # there are more boxes than classes
        rows = values.T if turned else values
        if rows.shape[1] <= ahead:
            raise self._misfit(values)
        return self._best(rows[:, :4], rows[:, ahead:], self._activated(rows[:, 4]) if ahead == 5 else None)

    def _best(
        self, boxes: Array, scores: Array, anything: Array | None = None, points: Array | None = None
    ) -> Candidates:
        """Return the best class of each box. With one class more than labels (softmax), the last is the background."""
        if scores.ndim != 2 or not scores.shape[1]:
            raise SampleError(f"the model gives scores {list(scores.shape)}, which are no [boxes, classes]")
        if self._activation == "softmax" and len(scores):
            scores = activate(scores.astype(np.float64), "softmax")
            if scores.shape[1] == len(self._labels) + 1 > 1:
                scores = scores[:, :-1]
        best = self._activated(scores.max(axis=1))  # the sigmoid is monotonic, so it is applied only to the best
        return self._candidates(boxes, best if anything is None else best * anything, scores, points)

    def _activated(self, scores: Array) -> Array:
        """Apply the activation to each score."""
        return activate(scores.astype(np.float64), "sigmoid" if self._activation == "sigmoid" else "none")

    def _candidates(self, boxes: Array, scores: Array, classes: Array, points: Array | None = None) -> Candidates:
        """Remove low scores before any costly step: scores of 0 or less are the padding of a fixed output size.

        ``classes`` are class indices, or the scores of each class.
        """
        chosen = (scores > 0) & (scores >= self._least_score)
        classes = classes[chosen].argmax(axis=1) if classes.ndim == 2 else classes[chosen]
        return Candidates(
            np.asarray(boxes[chosen], np.float64),
            np.asarray(scores[chosen], np.float64),
            np.asarray(classes, np.float64),
            None if points is None else points[chosen],
        )

    def _check(self, table: Candidates) -> Candidates:
        """Refuse values that no message can hold, or that are invalid."""
        if len(table.scores) and table.scores.max() > 1 + SCORE_SLACK:
            raise SampleError(
                f"the model gives a box the score {table.scores.max():.6g}, which is not in 0..1: "
                "check spec.postprocess.activation"
            )
        if len(table.scores) > MAX_BOXES and not (self._nms or self._top):
            raise SampleError(
                f"the model gives {len(table.scores)} boxes, more than {MAX_BOXES}: set spec.postprocess.nms, "
                "or suppress overlaps in the model"
            )
        if np.abs(table.classes).max(initial=0) > MAX_CLASS:
            raise SampleError(f"the model gives a box the class {table.classes.max():.6g}, which is no class index")
        return table._replace(scores=np.minimum(table.scores, 1))

    def _select(self, boxes: Array, table: Candidates) -> Array:
        """Return the indices of the candidates to keep."""
        if not self._nms:
            return np.argsort(-table.scores, kind="stable")[: self._top] if self._top else np.arange(len(boxes))
        best = np.argsort(-table.scores, kind="stable")[:MAX_BOXES]
        limit = min(self._nms.max, self._top or self._nms.max)
        with np.errstate(over="ignore", invalid="ignore"):  # the distance of finite corners may overflow
            chosen = suppress(boxes[best], table.scores[best], table.classes[best], iou=self._nms.iou, limit=limit)
        return np.asarray(best[chosen])

    def _label(self, index: int) -> str | int:
        return label_of(index, self._labels) if self._labels else index

    def _columns(self) -> str:
        ahead = AHEAD.get(self._boxes.decode)
        if ahead is None:
            return "4" if self._boxes.output else "6"
        return f"{ahead} + {len(self._labels) or 'classes'}"

    def _misfit(self, values: Array) -> SampleError:
        return SampleError(
            f"the model gives {list(values.shape)} for one sample, which are no [boxes, {self._columns()}] "
            f"of {self._boxes.decode}, either way round: check spec.labels and spec.postprocess.boxes.decode"
        )


def _landmarks(points: Array, geometry: Geometry | None) -> list[list[PicturePoint]]:
    """Return the points of each box in pixels of the frame. Raises SampleError."""
    if not np.isfinite(points).all():
        raise SampleError("the model gives landmarks beyond all measure for this sample")
    if geometry:
        points = geometry.back(points.reshape(-1, 2)).reshape(points.shape)
    return [[PicturePoint(x, y) for x, y in rows] for rows in points.tolist()]


def detect(rows: Array, labels: Sequence[str] = (), nms: Nms | None = None) -> Prediction:
    """Read the boxes of one sample, shape ``[boxes, 6]``: x1, y1, x2, y2, score, class.

    Rows with a score of 0 or less are the padding of a fixed output size and are left out. Raises SampleError for
    NaN, infinity, a score above 1 and a class without a label.
    """
    return BoxReader([""], Postprocess(task="detection", nms=nms), labels).read((rows,))
