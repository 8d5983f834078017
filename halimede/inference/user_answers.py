"""Converts what a user's estimator or script returns for a sample to a Prediction: ``as_prediction``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from halimede.inference.detection import MAX_BOXES
from halimede.inference.model import SampleError
from halimede.inference.postprocess import classify, label_of
from halimede.messages import Box, Prediction
from halimede.messages.samples import MAX_LABEL_TEXT

#: entries of a dict that become fields of the Prediction
FIELDS = ("label", "score", "probabilities", "boxes", "landmarks", "lines")
#: numbers of entries of a box, without and with label
BOX_LENGTHS = {5, 6}
#: tolerance of a sum of probabilities
SUM_SLACK = 0.01


def as_prediction(answer: Any, labels: Sequence[str] = ()) -> Prediction:
    """Return the answer to one sample as a Prediction. ``labels``: names of the classes; empty: not declared.

    Raises SampleError for None, bytes, a row of numbers or a field with NaN or infinity, invalid boxes, and what JSON
    cannot represent. NaN and infinity elsewhere stay in the value.

    | returned | becomes |
    |---|---|
    | Prediction | itself, with NumPy's numbers as plain numbers |
    | dict with label, score, probabilities, boxes, landmarks or lines | those fields; other entries are the value |
    | text; whole number, also as ``[number]`` | the label; the class of that index |
    | row of numbers in 0..1, also as ``[1, classes]`` | class probabilities |
    | row of Box or of ``[x1, y1, x2, y2, score]``, label optional; empty list | boxes |
    | any other value that JSON can represent | the value |
    """
    if isinstance(answer, Prediction):
        return _convert(_plain(answer))
    value = _plain(answer)
    if value is None:
        raise SampleError("the user's code returned nothing: return a label, probabilities, boxes or a value")
    if isinstance(value, str):
        return _convert({"label": value})
    if isinstance(value, int) and not isinstance(value, bool):
        return Prediction(label=label_of(value, labels))
    if isinstance(value, dict):
        return _from_dict(value, labels)
    if isinstance(value, list):
        return _from_list(value, labels)
    return Prediction(value=value)


def _from_dict(value: dict[str, Any], labels: Sequence[str]) -> Prediction:
    """Return the prediction of a dict; without any of FIELDS the dict is its value. Raises SampleError.

    Its other entries are the value as a dict; if ``value`` is the only one, its content is the value.
    """
    if not any(name in value for name in FIELDS):
        return Prediction(value=value)
    fields = {name: value[name] for name in FIELDS if value.get(name) is not None}
    label = fields.get("label")
    if isinstance(label, int) and not isinstance(label, bool):
        fields["label"] = label_of(label, labels)
    if isinstance(fields.get("boxes"), list):
        fields["boxes"] = _boxes(fields["boxes"], labels)
    if isinstance(fields.get("lines"), list):
        fields["lines"] = [{"text": line} if isinstance(line, str) else line for line in fields["lines"]]
    probabilities = fields.get("probabilities")
    if isinstance(probabilities, list) and _are_numbers(probabilities):
        # the estimator's own label and score override those derived from its probabilities
        read = classify(np.asarray(probabilities), labels)
        fields = {"label": read.label, "score": read.score, **fields}
    extra = {key: item for key, item in value.items() if key not in FIELDS}
    return _convert({**fields, "value": extra["value"] if set(extra) == {"value"} else extra or None})


def _from_list(value: list[Any], labels: Sequence[str]) -> Prediction:
    """Return the prediction of a list: boxes, probabilities, or else the list as value. Raises SampleError."""
    if not value:
        return Prediction(boxes=[])
    if len(value) == 1 and isinstance(value[0], list) and _are_probabilities(value[0], may_be_box=True):
        return classify(np.asarray(value[0]), labels)
    if all(isinstance(row, list) and len(row) in BOX_LENGTHS and _are_numbers(row[:5]) for row in value):
        return Prediction(boxes=_boxes(value, labels))
    if not _are_numbers(value):
        return Prediction(value=value)
    if len(value) == 1 and isinstance(value[0], int):
        return Prediction(label=label_of(value[0], labels))  # a classifier's answer to a batch of one
    if not np.isfinite(value).all():
        raise SampleError("the user's code returned NaN or infinity")
    return classify(np.asarray(value), labels) if _are_probabilities(value) else Prediction(value=value)


def _boxes(rows: list[Any], labels: Sequence[str]) -> list[Box]:
    """Return the boxes in rows, which may be anything. Raises SampleError."""
    if len(rows) > MAX_BOXES:
        raise SampleError(f"the user's code returned {len(rows)} boxes, more than {MAX_BOXES}: return the best of them")
    return [_box(row, labels) for row in rows]


def _box(row: Any, labels: Sequence[str]) -> Box:
    """Return the box in ``[x1, y1, x2, y2, score]`` or with a label. Raises SampleError for anything else."""
    if not (isinstance(row, list) and len(row) in BOX_LENGTHS and _are_numbers(row[:5])):
        raise SampleError(f"the user's code returned {row!r:.80} as a box: return [x1, y1, x2, y2, score, label]")
    if not np.isfinite(row[:5]).all():
        raise SampleError("the user's code returned a box with NaN or infinity")
    if not 0 <= row[4] <= 1:
        raise SampleError(f"the user's code returned a box with score {row[4]:.6g}, the fifth of its row: use 0 to 1")
    label = row[5] if len(row) == 6 else 0
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # arrays have one type, so class indices arrive as floats
    if not isinstance(label, str | int):
        raise SampleError(f"the user's code returned {label!r:.80} as a box's label: use text or a class index")
    if isinstance(label, str) and len(label) > MAX_LABEL_TEXT:
        raise SampleError(
            f"the user's code returned a box's label of {len(label)} characters: use up to {MAX_LABEL_TEXT}"
        )
    if isinstance(label, int) and labels:
        label = label_of(label, labels)
    x1, y1, x2, y2, score = map(float, row[:5])
    return Box(x1, y1, x2, y2, score, label)


def _are_numbers(row: list[Any]) -> bool:
    """Whether all items are numbers, and none is a bool."""
    return all(isinstance(item, int | float) and not isinstance(item, bool) for item in row)


def _are_probabilities(row: list[Any], *, may_be_box: bool = False) -> bool:
    """Whether all items are numbers in 0..1.

    ``may_be_box``: a row that is as long as a box must also sum to 1, which distinguishes probabilities from a box.
    """
    if not _are_numbers(row) or not all(0 <= item <= 1 for item in row):
        return False
    return not may_be_box or len(row) not in BOX_LENGTHS or abs(sum(row) - 1) <= SUM_SLACK


def _plain(answer: Any) -> Any:
    """Return an answer as lists, dicts, text and numbers. Raises SampleError if it cannot be encoded as JSON."""
    if isinstance(answer, bytes | bytearray | memoryview):
        raise SampleError("the user's code returned bytes: return text, numbers, lists or dicts of them")
    try:
        plain = msgspec.to_builtins(answer, enc_hook=_from_numpy, str_keys=True)
        # encode and decode: tuples become lists; numbers above 64 bits and endless nesting are detected
        return msgspec.msgpack.decode(msgspec.msgpack.encode(plain))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise SampleError(f"the user's code returned what JSON cannot say: {error}") from error


def _from_numpy(item: Any) -> Any:
    """Return a NumPy array or number as plain Python; msgspec calls it. Raises NotImplementedError for other types."""
    if isinstance(item, np.ndarray):
        return item.tolist()
    if isinstance(item, np.generic):
        return item.item()
    raise NotImplementedError(f"a value of type {type(item).__name__}")


def _convert(fields: dict[str, Any]) -> Prediction:
    """Return the Prediction with these fields. Raises SampleError for wrong types, and for NaN and infinity."""
    try:
        return msgspec.convert(fields, Prediction)
    except msgspec.ValidationError as error:
        raise SampleError(
            f"the user's code returned no valid prediction (NaN and infinity are none): {error}"
        ) from error
