"""The digits of ``bench.accuracy`` in two halves, and what the small and the big model say of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict, train_test_split
from sklearn.svm import SVC

from halimede.calibration.temperature import softmax
from halimede.evaluation.data import LabelledSamples
from halimede.messages import Prediction

#: of the cross-validation that answers the first half
FOLDS = 10

Array = NDArray[Any]


@dataclass(frozen=True)
class Half:
    """What a model said of the first half out of fold, and of the second after training on the first."""

    model: Any
    fitting: list[Prediction]
    testing: list[Prediction]


@dataclass(frozen=True)
class Digits:
    """The two halves of one seed."""

    seed: int
    x: Array
    y: Array
    test_x: Array
    test_y: Array

    def labelled(self, x: Array, y: Array) -> LabelledSamples:
        return LabelledSamples(
            images=list(x), names=[str(i) for i in range(len(x))], sizes=[64] * len(x), truths=[str(t) for t in y]
        )

    @property
    def fitting(self) -> LabelledSamples:
        return self.labelled(self.x, self.y)

    @property
    def testing(self) -> LabelledSamples:
        return self.labelled(self.test_x, self.test_y)


def digits(seed: int) -> Digits:
    x, y = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(x / 16, y, test_size=0.5, random_state=seed, stratify=y)
    return Digits(seed, x, y, test_x, test_y)


def trained(data: Digits, model: Any, folds: int = FOLDS) -> Half:
    """Train, and answer the first half out of fold."""
    method = "predict_proba" if hasattr(model, "predict_proba") else "decision_function"
    parts = StratifiedKFold(folds, shuffle=True, random_state=data.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the perceptron that it could learn on
        out_of_fold = cross_val_predict(model, data.x, data.y, cv=parts, method=method)
        model.fit(data.x, data.y)
    return Half(model, predictions(out_of_fold, method), predictions(getattr(model, method)(data.test_x), method))


def predictions(rows: Array, method: str = "predict_proba") -> list[Prediction]:
    """Answer as a worker does: of decision scores, by ``activation: softmax``."""
    probabilities = rows if method == "predict_proba" else softmax(rows)
    return [
        Prediction(label=str(int(row.argmax())), score=float(row.max()), probabilities=row.tolist())
        for row in probabilities
    ]


def small() -> LogisticRegression:
    return LogisticRegression(C=0.05, max_iter=1000)


def big() -> SVC:
    return SVC(C=10)
