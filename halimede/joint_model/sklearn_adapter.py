"""A fitted scikit-learn classifier as an estimator: it wants rows, and says classes and probabilities its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from halimede.errors import InvalidFieldError
from halimede.inference import Array


def fitted(model: object, at: str) -> bool:
    """Whether it is a fitted classifier in scikit-learn's form. Raises InvalidFieldError for one that is not fitted."""
    if isinstance(model, type) or not callable(getattr(model, "get_params", None)):
        return False
    if getattr(model, "classes_", None) is None:
        raise InvalidFieldError(at, model, "it has no classes_: fit it first; it has to be a classifier")
    return True


class Classifier:
    """Answers samples, each flattened to a row. Without ``predict_proba`` there is a label and no score."""

    def __init__(self, model: Any) -> None:
        self.labels = [str(each) for each in model.classes_]
        self._model = model

    def predict(self, sample: Array) -> Any:
        """Answer one sample."""
        return self.predict_batch([sample])[0]

    def predict_batch(self, samples: Sequence[Array]) -> list[Any]:
        """Answer samples of equal size: probabilities in the order of the classes, else the label."""
        rows = np.stack([np.ravel(sample) for sample in samples])
        if hasattr(self._model, "predict_proba"):
            return list(self._model.predict_proba(rows))
        return [str(label) for label in self._model.predict(rows)]
