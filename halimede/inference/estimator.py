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

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError, describe_exception
from halimede.inference import preprocess
from halimede.inference.decoding import decoding_of
from halimede.inference.model import Array, Model, ModelError, SampleError
from halimede.inference.user_answers import as_prediction
from halimede.messages import Prediction

FIELD = "ESTIMATOR"
LOAD_NAMES = ("model_url", "model_path")


class EstimatorModel(Model):
    """A loaded estimator."""

    def __init__(self, estimator: Any, spec: ModelSpec) -> None:
        self._estimator = estimator
        self._steps = spec.preprocess
        self.decoding = decoding_of(spec.decode, spec.preprocess)
        self._labels = tuple(spec.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order."""
        return self._labels

    def prepare(self, image: Array) -> Array:
        """Apply the declared steps; without any the estimator receives the frame itself, which may be read-only."""
        if self._steps:
            return preprocess.apply(self._steps, image)
        preprocess.check_finite(image)
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Call ``predict_batch`` if it exists and there are several samples, else ``predict`` for each."""
        together = getattr(self._estimator, "predict_batch", None)
        try:
            if callable(together) and len(batch) > 1:
                answers = list(together(list(batch)))
            else:
                answers = [self._estimator.predict(sample) for sample in batch]
        except (Exception, SystemExit) as error:
            raise SampleError(f"the estimator failed: {describe_exception(error)}") from error
        if len(answers) != len(batch):
            raise SampleError(f"predict_batch gave {len(answers)} answers to {len(batch)} samples: give one each")
        return [as_prediction(answer, self._labels) for answer in answers]

    def close(self) -> None:
        """Call the estimator's own ``close``, if it has one."""
        close = getattr(self._estimator, "close", None)
        if callable(close):
            close()


def load_estimator(text: str, field: str = FIELD, method: str = "predict") -> Any:
    """Import ``module:Class``, whose class has a method, from ``sys.path``.

    Raises InvalidFieldError with this field if that fails.
    """
    module_name, colon, attribute = text.strip().partition(":")
    if not (colon and attribute and all(part.isidentifier() for part in module_name.split("."))):
        raise InvalidFieldError(field, text, "write module:Class, such as helmet.detector:Detector")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        fix = (
            f"mend {module_name} or put its folder on PYTHONPATH: importing it failed with {describe_exception(error)}"
        )
        raise InvalidFieldError(field, text, fix) from error
    estimator = getattr(module, attribute, None)
    if not callable(getattr(estimator, method, None)):
        there = [name for name, value in vars(module).items() if callable(getattr(value, method, None))]
        fix = f"use one of {', '.join(there)}" if there else f"none of its classes has a method {method}"
        raise InvalidFieldError(field, text, f"{module_name} has no {attribute} with a method {method}: {fix}")
    return estimator


def loaded(estimator: object, path: Path | str) -> Any:
    """Return the user's object, instantiated (if it is a class) and loaded. Raises ModelError when either fails."""
    if not callable(getattr(estimator, "predict", None)):
        raise ModelError(f"the estimator {_name(estimator)} has no method predict(data): add one")
    try:
        instance: Any = estimator() if isinstance(estimator, type) else estimator
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"the estimator {_name(estimator)} cannot be made without arguments: {describe_exception(error)}"
        ) from error
    load = getattr(instance, "load", None)
    if callable(load):
        try:
            _call_load(load, str(path))
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"the estimator {_name(estimator)} cannot load {path}: {describe_exception(error)}"
            ) from error
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
