"""Reads the outputs of detection models in their common export formats as boxes in pixels of the frame.

The main thing is ``BoxReader``. ``decode`` of the spec's ``postprocess.boxes`` names the format:

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

from halimede.api.processing import DB, MAPS, Boxes, Postprocess
from halimede.inference.boxes import Form, corners, suppress
from halimede.inference.decoders.anchors import AnchorBoxes
from halimede.inference.decoders.centers import read_maps
from halimede.inference.decoders.probability_map import THRESHOLD, UNCLIP, read_probabilities
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, SampleError
from halimede.inference.postprocess import SCORE_SLACK, activate, label_of
from halimede.messages import Box, PicturePoint, Prediction

#: numbers of a box in the format rows
BOX_COLUMNS = 6
#: most boxes of a message (messages.samples). Of more candidates nms and topK use the best; without them it is an error
MAX_BOXES = 10_000
#: the highest class index that is accepted
MAX_CLASS = 2**31 - 1
#: columns before the scores of classes, by format
LEADING_COLUMNS = {"yolo": 4, "yolov5": 5}


class Candidates(NamedTuple):
    """The boxes that a model gives for one sample, before overlaps are suppressed.

    Attributes:
        boxes: ``[n, 4]`` float64 in the form of ``BoxReader``'s spec, in the model's units.
        scores: ``[n]`` float64, above 0; at most 1 after ``BoxReader`` has checked them.
        classes: ``[n]`` float64, class indices.
        points: landmarks ``[n, points, 2]`` in pixels of the model's input; None if the model gives none.

    """

    boxes: Array
    scores: Array
    classes: Array
    points: Array | None = None


class BoxReader:
    """A ``Reader`` (file_model) of a detection model's outputs: ``split`` them by samples, then ``read`` each.

    ``names``: the outputs to read: that of scores or of whole boxes first, then separate ones of boxes, classes,
    offsets and landmarks. ``postprocess``: that of the spec. ``labels``: the names of the classes; empty: boxes get
    class indices. ``anchors``: those of the model's input size; None: the format needs none.
    """

    def __init__(
        self, names: Sequence[str], postprocess: Postprocess, labels: Sequence[str], anchors: AnchorBoxes | None = None
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
        """Return for each of ``count`` samples its part of the outputs, in order. Raises SampleError for other shapes.

        Models that suppress overlaps themselves often answer one sample without a batch axis.
        """
        if self._is_map:
            return self._split_maps(outputs)
        boxes = outputs[-1 if len(outputs) == 1 else 1]  # scores are first where boxes have their own output
        if boxes.ndim == 4 and boxes.shape[2] == 1:  # [samples, boxes, 1, 4]: with an axis of one class
            boxes = boxes[:, :, 0]
        whole = (outputs[0], boxes, *outputs[2:]) if len(outputs) > 1 else (boxes,)
        if boxes.ndim == 2 and count == 1:
            return [whole]
        if boxes.ndim != 3 or not all(output.ndim and len(output) == len(boxes) for output in outputs):
            raise SampleError(f"the model gives {list(boxes.shape)}, which is no [samples, boxes, {self._columns()}]")
        return list(zip(*whole, strict=True))

    def _split_maps(self, outputs: Sequence[Array]) -> list[tuple[Array, ...]]:
        """Return each sample's maps, ``[channels, h, w]`` each. Raises SampleError."""
        if any(output.ndim != 4 or len(output) != len(outputs[0]) for output in outputs):
            shapes = ", ".join(str(list(output.shape)) for output in outputs)
            raise SampleError(f"the model gives {shapes}, which are no maps [samples, channels, height, width]")
        return list(zip(*outputs, strict=True))

    def read(self, outputs: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:
        """Return the boxes in one sample's part of the outputs, in pixels of the frame.

        ``geometry``: the mapping of the frame to the model's input; None: boxes stay in pixels of the input.
        Raises SampleError for NaN, infinity, scores above 1, too many boxes, and shapes that do not fit the format.
        """
        if self._is_map:
            self._check_maps(outputs)
        elif not all(np.isfinite(array).all() for array in outputs):
            raise SampleError("the model gives boxes with NaN or infinity for this sample")
        is_text = self._boxes.decode == DB
        candidates = self._check(self._read_regions(outputs[0], geometry) if is_text else self._decode(outputs))
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

    def _check_maps(self, outputs: tuple[Array, ...]) -> None:
        """Refuse maps with NaN or infinity. Raises SampleError."""
        for name, values in zip(self.names, outputs, strict=True):
            wrong = np.argwhere(~np.isfinite(values))
            if len(wrong):
                first = wrong[0].tolist()
                raise SampleError(
                    f"the model's output {name} has {values[tuple(first)]} at {first}, one of {len(wrong)} such values "
                    "for this sample: check the range of spec.preprocess, or export the model in float32"
                )

    def _decode(self, values: Sequence[Array]) -> Candidates:
        """Return the candidates in one sample's part of the outputs, by the format. Raises SampleError."""
        if self._boxes.decode in MAPS:
            scores, *maps = values
            face = self._boxes.decode == "centerface"
            return self._candidates(*read_maps(self._activate(scores), *maps, face=face, least=self._least_score))
        if self._anchors:
            scores, numbers = values
            boxes, points = self._anchors.decode(numbers), self._anchors.points(numbers)
            if scores.shape[:1] != boxes.shape[:1]:
                shapes = f"scores {list(scores.shape)} for {len(boxes)} boxes"
                raise SampleError(f"the model gives {shapes} of one sample: check spec.postprocess.output")
            return self._best(boxes, scores, points=points)
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
            return self._candidates(boxes, self._activate(scores), classes[0])
        return self._best(boxes, scores)

    def _read_regions(self, values: Array, geometry: Geometry | None) -> Candidates:
        """Return the lines of text in a map of probabilities. Raises SampleError."""
        options = self._boxes
        boxes, scores = read_probabilities(
            self._activate(values),
            geometry,
            threshold=THRESHOLD if options.threshold is None else options.threshold,
            unclip=UNCLIP if options.unclip is None else options.unclip,
        )
        return self._candidates(boxes, scores, np.zeros(len(boxes)))

    def _decode_yolo(self, values: Array) -> Candidates:
        """Return the candidates in the formats yolo and yolov5, either way round. Raises SampleError."""
        leading = LEADING_COLUMNS[self._boxes.decode]
        if values.ndim != 2:
            raise self._misfit(values)
        if self._labels:
            columns = leading + len(self._labels)
            if columns not in values.shape:
                raise self._misfit(values)
            # both sides may be equal: then yolo has a column for each box, and yolov5 a row
            is_transposed = values.shape[0] == columns and (values.shape[1] != columns or leading == 4)
        else:
            is_transposed = values.shape[0] < values.shape[1]  # there are more boxes than classes
        rows = values.T if is_transposed else values
        if rows.shape[1] <= leading:
            raise self._misfit(values)
        return self._best(rows[:, :4], rows[:, leading:], self._activate(rows[:, 4]) if leading == 5 else None)

    def _best(
        self, boxes: Array, scores: Array, objectness: Array | None = None, points: Array | None = None
    ) -> Candidates:
        """Return each box with its best class; ``scores``: ``[n, classes]``, or ``[n]`` of one class.

        With softmax and one class more than labels, the last class is the background. ``objectness``: ``[n]``, what
        scores are multiplied by; None: nothing.
        """
        if scores.ndim == 1:
            scores = scores[:, np.newaxis]
        if scores.ndim != 2 or not scores.shape[1]:
            raise SampleError(f"the model gives scores {list(scores.shape)}, which are no [boxes, classes]")
        if self._activation == "softmax" and len(scores):
            scores = activate(scores.astype(np.float64), "softmax")
            if scores.shape[1] == len(self._labels) + 1 > 1:
                scores = scores[:, :-1]
        best = self._activate(scores.max(axis=1))  # the sigmoid is monotonic, so it is applied only to the best
        return self._candidates(boxes, best if objectness is None else best * objectness, scores, points)

    def _activate(self, scores: Array) -> Array:
        """Return scores after the sigmoid if the spec has it; softmax is applied elsewhere, across classes."""
        return activate(scores.astype(np.float64), "sigmoid" if self._activation == "sigmoid" else "none")

    def _candidates(self, boxes: Array, scores: Array, classes: Array, points: Array | None = None) -> Candidates:
        """Return the candidates without low scores; scores of 0 or less are the padding of a fixed output size.

        ``classes``: class indices ``[n]``, or the scores of each class ``[n, classes]``.
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
        """Return candidates with scores of at most 1. Raises SampleError for values that no message can hold."""
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
        """Return the indices of the candidates that remain after suppression of overlaps and the limit of their number.

        ``boxes``: ``[n, 4]`` corners.
        """
        if not self._nms:
            return np.argsort(-table.scores, kind="stable")[: self._top] if self._top else np.arange(len(boxes))
        best = np.argsort(-table.scores, kind="stable")[:MAX_BOXES]
        limit = min(self._nms.max, self._top or self._nms.max)
        with np.errstate(over="ignore", invalid="ignore"):  # the distance of finite corners may overflow
            chosen = suppress(boxes[best], table.scores[best], table.classes[best], iou=self._nms.iou, limit=limit)
        return np.asarray(best[chosen])

    def _label(self, index: int) -> str | int:
        """Return the name of a class, or its index if there are no labels."""
        return label_of(index, self._labels) if self._labels else index

    def _columns(self) -> str:
        """Return the number of columns that the format expects, as text for errors."""
        leading = LEADING_COLUMNS.get(self._boxes.decode)
        if leading is None:
            return "4" if self._boxes.output else "6"
        return f"{leading} + {len(self._labels) or 'classes'}"

    def _misfit(self, values: Array) -> SampleError:
        """Return the error that an output does not have the format's shape."""
        return SampleError(
            f"the model gives {list(values.shape)} for one sample, which are no [boxes, {self._columns()}] "
            f"of {self._boxes.decode}, either way round: check spec.labels and spec.postprocess.boxes.decode"
        )


def _landmarks(points: Array, geometry: Geometry | None) -> list[list[PicturePoint]]:
    """Return the points of each box in pixels of the frame, of ``[n, points, 2]`` in pixels of the model's input."""
    if not np.isfinite(points).all():
        raise SampleError("the model gives landmarks beyond all measure for this sample")
    if geometry:
        points = geometry.back(points.reshape(-1, 2)).reshape(points.shape)
    return [[PicturePoint(x, y) for x, y in rows] for rows in points.tolist()]
