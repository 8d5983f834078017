"""Runs a user's own Python estimator as a Model, with the interface that Sedna's users know.

An estimator is a class or an instance with ``predict(data)``. Optional are ``load``, called once with the model file's
path under its parameter name ``model_url`` or ``model_path``, ``predict_batch(list)`` and ``close()``. An exception of
it only affects the present sample, because its code is not trusted.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.inference import preprocess
from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.inference.postprocess import classify, label_of
from halimede.messages import Box, Prediction

FIELD = "ESTIMATOR"
LOAD_NAMES = ("model_url", "model_path")
FIELDS = ("label", "score", "probabilities", "boxes")
BOX_LENGTHS = {5, 6}
SUM_SLACK = 0.01


class EstimatorModel(Model):
    """A loaded estimator."""

    def __init__(self, estimator: Any, spec: ModelSpec) -> None:
        self._estimator = estimator
        self._steps = spec.preprocess
        self._labels = tuple(spec.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order."""
        return self._labels

    def prepare(self, image: Array) -> Array:
        """Apply the declared steps; without any the estimator receives the frame itself, which may be read-only."""
        return preprocess.apply(self._steps, image) if self._steps else image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Call ``predict_batch`` if it exists and there are several samples, else ``predict`` for each."""
        together = getattr(self._estimator, "predict_batch", None)
        try:
            if callable(together) and len(batch) > 1:
                answers = list(together(list(batch)))
            else:
                answers = [self._estimator.predict(sample) for sample in batch]
        except (Exception, SystemExit) as error:
            raise SampleError(f"the estimator failed: {_describe(error)}") from error
        if len(answers) != len(batch):
            raise SampleError(f"predict_batch gave {len(answers)} answers to {len(batch)} samples: give one each")
        return [as_prediction(answer, self._labels) for answer in answers]

    def close(self) -> None:
        """Call the estimator's own ``close``, if it has one."""
        close = getattr(self._estimator, "close", None)
        if callable(close):
            close()


def load_estimator(text: str) -> object:
    """Import ``module:Class`` from ``sys.path``. Raises InvalidFieldError (field ESTIMATOR) if that fails."""
    module_name, colon, attribute = text.strip().partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module_name.split("."))):
        raise InvalidFieldError(FIELD, text, "write module:Class, such as helmet.detector:Detector")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        fix = f"mend {module_name} or put its folder on PYTHONPATH: importing it failed with {_describe(error)}"
        raise InvalidFieldError(FIELD, text, fix) from error
    estimator = getattr(module, attribute, None)
    if not callable(getattr(estimator, "predict", None)):
        there = [name for name, value in vars(module).items() if callable(getattr(value, "predict", None))]
        fix = f"use one of {', '.join(there)}" if there else "none of its classes has a method predict"
        raise InvalidFieldError(FIELD, text, f"{module_name} has no estimator {attribute}: {fix}")
    return estimator


def loaded(estimator: object, path: Path | str) -> Any:
    """Return the user's object, instantiated (if it is a class) and loaded. Raises ModelError when either fails."""
    if not callable(getattr(estimator, "predict", None)):
        raise ModelError(f"the estimator {_name(estimator)} has no method predict(data): add one")
    try:
        instance: Any = estimator() if isinstance(estimator, type) else estimator
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"the estimator {_name(estimator)} cannot be made without arguments: {_describe(error)}"
        ) from error
    load = getattr(instance, "load", None)
    if callable(load):
        try:
            _call_load(load, str(path))
        except (Exception, SystemExit) as error:
            raise ModelError(f"the estimator {_name(estimator)} cannot load {path}: {_describe(error)}") from error
    return instance


def _call_load(load: Callable[..., object], path: str) -> None:
    """Pass the path by the parameter name that ``load`` has, or as its first argument."""
    parameters = inspect.signature(load).parameters
    named = {name: path for name in LOAD_NAMES if name in parameters}
    kinds = [parameter.kind for parameter in parameters.values()]
    if named:
        load(**named)
    elif inspect.Parameter.VAR_KEYWORD in kinds:
        load(model_url=path)
    elif {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD} & set(kinds):
        load(path)
    else:
        load()


def _name(estimator: object) -> str:
    return (estimator if isinstance(estimator, type) else type(estimator)).__qualname__


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def as_prediction(answer: Any, labels: Sequence[str] = ()) -> Prediction:
    """Convert one answer. Raises SampleError for NaN in a score, or for values that JSON cannot represent.

    | returned | becomes |
    |---|---|
    | Prediction | itself, with NumPy's numbers as plain numbers |
    | dict with label, score, probabilities or boxes | those fields; its other entries are the value |
    | text; whole number | the label; the class of that index |
    | row of numbers in 0..1, also as ``[1, classes]`` | class probabilities |
    | row of Box or of ``[x1, y1, x2, y2, score]``, label optional; empty list | boxes |
    | any other value that JSON can represent | the value |
    """
    if isinstance(answer, Prediction):
        return _convert(_plain(answer))
    value = _plain(answer)
    if value is None:
        raise SampleError("the estimator returned nothing: return a label, probabilities, boxes or a value")
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
    if not any(name in value for name in FIELDS):
        return Prediction(value=value)
    fields = {name: value[name] for name in FIELDS if value.get(name) is not None}
    label = fields.get("label")
    if isinstance(label, int) and not isinstance(label, bool):
        fields["label"] = label_of(label, labels)
    if isinstance(fields.get("boxes"), list):
        fields["boxes"] = [_box(row, labels) for row in fields["boxes"]]
    probabilities = fields.get("probabilities")
    if isinstance(probabilities, list) and _numbers(probabilities):
        # the estimator's own label and score override those derived from its probabilities
        read = classify(np.asarray(probabilities), labels)
        fields = {"label": read.label, "score": read.score, **fields}
    rest = {key: item for key, item in value.items() if key not in FIELDS}
    return _convert({**fields, "value": rest["value"] if set(rest) == {"value"} else rest or None})


def _from_list(value: list[Any], labels: Sequence[str]) -> Prediction:
    if not value:
        return Prediction(boxes=[])
    if len(value) == 1 and isinstance(value[0], list) and _probabilities(value[0], whole=True):
        return classify(np.asarray(value[0]), labels)
    if all(isinstance(row, list) and len(row) in BOX_LENGTHS and _numbers(row[:5]) for row in value):
        return Prediction(boxes=[_box(row, labels) for row in value])
    if not _numbers(value):
        return Prediction(value=value)
    if len(value) == 1 and isinstance(value[0], int):
        return Prediction(label=label_of(value[0], labels))  # a classifier's answer to a batch of one
    if not np.isfinite(value).all():
        raise SampleError("the estimator returned NaN or infinity")
    return classify(np.asarray(value), labels) if _probabilities(value) else Prediction(value=value)


def _box(row: Any, labels: Sequence[str]) -> Box:
    if not (isinstance(row, list) and len(row) in BOX_LENGTHS and _numbers(row[:5])):
        raise SampleError(f"the estimator returned {row!r:.80} as a box: return [x1, y1, x2, y2, score, label]")
    if not np.isfinite(row[:5]).all():
        raise SampleError("the estimator returned a box with NaN or infinity")
    if not 0 <= row[4] <= 1:
        raise SampleError(f"the estimator returned a box with score {row[4]:.6g}, the fifth of its row: use 0 to 1")
    label = row[5] if len(row) == 6 else 0
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # arrays have one type, so class indices arrive as floats
    if not isinstance(label, str | int):
        raise SampleError(f"the estimator returned {label!r:.80} as a box's label: use text or a class index")
    if isinstance(label, int) and labels:
        label = label_of(label, labels)
    x1, y1, x2, y2, score = map(float, row[:5])
    return Box(x1, y1, x2, y2, score, label)


def _numbers(row: list[Any]) -> bool:
    return all(isinstance(item, int | float) and not isinstance(item, bool) for item in row)


def _probabilities(row: list[Any], *, whole: bool = False) -> bool:
    """Whether numbers are in 0..1; ``whole``: their sum must be 1, which distinguishes one row from one box."""
    if not _numbers(row) or not all(0 <= item <= 1 for item in row):
        return False
    return not whole or len(row) not in BOX_LENGTHS or abs(sum(row) - 1) <= SUM_SLACK


def _plain(answer: Any) -> Any:
    """Convert an answer to lists, dicts, text and numbers, and check that it can be encoded."""
    if isinstance(answer, bytes | bytearray | memoryview):
        raise SampleError("the estimator returned bytes: return text, numbers, lists or dicts of them")
    try:
        plain = msgspec.to_builtins(answer, enc_hook=_from_numpy, str_keys=True)
        # encode and decode: tuples become lists; numbers above 64 bits and endless nesting are detected
        return msgspec.msgpack.decode(msgspec.msgpack.encode(plain))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise SampleError(f"the estimator returned what JSON cannot say: {error}") from error


def _from_numpy(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        return item.tolist()
    if isinstance(item, np.generic):
        return item.item()
    raise NotImplementedError(f"a value of type {type(item).__name__}")


def _convert(fields: dict[str, Any]) -> Prediction:
    """Check the types of a Prediction's fields; its numbers must be finite."""
    try:
        return msgspec.convert(fields, Prediction)
    except msgspec.ValidationError as error:
        raise SampleError(f"the estimator returned no valid prediction (NaN and infinity are none): {error}") from error
