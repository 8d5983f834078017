"""Runs a user's own Python estimator as a ``Model``, with the interface that Sedna's users know.

An estimator is a class or an instance with ``predict(data)``. Optional methods are ``load``, which is called once with
the path of the model's file if it has a parameter for it (``_call_load``), ``predict_batch(list)`` and ``close()``. If
a method raises an exception for a sample, only that sample fails.
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

#: the environment variable that names a worker's estimator
FIELD = "ESTIMATOR"
#: parameters of ``load`` that get the path
LOAD_NAMES = ("model_url", "model_path")


class EstimatorModel(Model):
    """A ``Model`` that calls an estimator: an instance that is loaded already (``load_instance``).

    Attributes:
        labels: names of the classes in order, by the spec.
        decoding: decides at which smaller scale JPEG frames are decoded, by the declared steps; None: they are decoded
            whole.

    """

    labels: tuple[str, ...] = ()

    def __init__(self, estimator: Any, spec: ModelSpec) -> None:
        self._estimator = estimator
        self._steps = spec.preprocess
        self.decoding = decoding_of(spec.decode, spec.preprocess)
        self.labels = tuple(spec.labels)

    def prepare(self, image: Array) -> Array:
        """Return what the declared steps make of a frame; without any, the frame itself, which may be read-only.

        Raises SampleError for NaN or infinity, and for a frame that does not fit a step.
        """
        if self._steps:
            return preprocess.apply(self._steps, image)
        preprocess.check_finite(image)
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Return the answers of ``predict_batch`` if it exists and there are several samples, else of ``predict``.

        Raises SampleError if the estimator raises anything, or if its answer cannot be a Prediction.
        """
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
        return [as_prediction(answer, self.labels) for answer in answers]

    def close(self) -> None:
        """Call the estimator's own ``close``, if it has one. Raises what that raises."""
        close = getattr(self._estimator, "close", None)
        if callable(close):
            close()


def load_estimator(text: str, field: str = FIELD, method: str = "predict") -> Any:
    """Return the class (or instance) that ``text``, ``module:Class``, names, imported from ``sys.path``.

    Raises InvalidFieldError, about ``field``, if the import fails or the class has no method ``method``.
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
        candidates = [name for name, value in vars(module).items() if callable(getattr(value, method, None))]
        fix = f"use one of {', '.join(candidates)}" if candidates else f"none of its classes has a method {method}"
        raise InvalidFieldError(field, text, f"{module_name} has no {attribute} with a method {method}: {fix}")
    return estimator


def load_instance(estimator: object, path: Path | str) -> Any:
    """Return an instance of the user's estimator (a class, or an instance already) that has loaded the file ``path``.

    Raises ModelError if there is no method ``predict``, or if the constructor or ``load`` raises anything.
    """
    title = f"the estimator {(estimator if isinstance(estimator, type) else type(estimator)).__qualname__}"
    if not callable(getattr(estimator, "predict", None)):
        raise ModelError(f"{title} has no method predict(data): add one")
    try:
        instance: Any = estimator() if isinstance(estimator, type) else estimator
    except (Exception, SystemExit) as error:
        raise ModelError(f"{title} cannot be made without arguments: {describe_exception(error)}") from error
    load = getattr(instance, "load", None)
    if callable(load):
        try:
            _call_load(load, str(path))
        except (Exception, SystemExit) as error:
            raise ModelError(f"{title} cannot load {path}: {describe_exception(error)}") from error
    return instance


def _call_load(load: Callable[..., object], path: str) -> None:
    """Call ``load`` with the path, or without it if ``load`` has no parameter. Raises what ``load`` raises.

    The path goes to the parameters with a name of LOAD_NAMES; else to ``model_url`` if ``load`` takes any keyword; else
    to its first parameter.
    """
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
