"""Costs of deferral: two thresholds, one threshold and risk control, and the regret of adapted thresholds.

    python -m bench.deferral_costs costs       # total cost and coverage of the bound, 20 splits of three data sets
    python -m bench.deferral_costs regret      # regret of adapted thresholds against the best fixed pair of each part

Costs: each split trains both models on 40 % of the samples, calibrates on 30 % and measures on 30 %. The bound is
checked against a mean that is known: calibration samples are drawn with replacement from the 60 %, whose mean cost is
then the expected cost. Regret: a simulated stream of parts in which the small model is wrong in another way.
"""

from __future__ import annotations

import argparse
import random
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from halimede.api.deferral import Costs
from halimede.calibration.calibrate import Calibrated, Goal, fit
from halimede.calibration.candidates import Candidate
from halimede.calibration.costs import TWO_THRESHOLDS, PricedSamples
from halimede.calibration.measurement import mean_interval
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.rules import hardness_of, judged
from halimede.inference import Array
from halimede.messages import Prediction
from halimede.mining import create
from halimede.mining.two_thresholds import TwoThresholds
from halimede.pipeline.upload_policy.adaptive_thresholds import BINS, LIMITS, AdaptiveThresholds

PRICES = Costs(miss=10, false_alarm=1, upload=0.2, positive="yes")
LABELS = ["no", "yes"]
SPLITS, DRAWS = 20, 10
CONFIDENCE, RISK = 0.95, 0.02
#: lengths of the streams, and runs of each
LENGTHS, RUNS = (1_000, 3_000, 10_000, 30_000, 100_000), 4
#: the small model's error in each part: P(positive) has the logit shift + slope * that of the model's probability
PARTS = ((0.0, 1.0), (2.0, 0.7), (-2.0, 0.7))


@dataclass(frozen=True, slots=True)
class Pair:
    """A data set with two classes, and the answers of a small and a big model."""

    data: LabelledPicture
    edge: Sequence[Prediction]
    cloud: Sequence[Prediction]

    def part(self, indices: Array) -> Pair:
        """Return some of the samples."""
        truths = [(self.data.truths or [])[i] for i in indices]
        return Pair(data_of(truths), [self.edge[i] for i in indices], [self.cloud[i] for i in indices])


def data_of(truths: Sequence[str]) -> LabelledPicture:
    """Return samples of which only the classes are known."""
    number = len(truths)
    names = [str(i) for i in range(number)]
    return LabelledPicture(images=[np.zeros(1)] * number, names=names, sizes=[1] * number, truths=list(truths))


def answers(rows: Array, labels: Sequence[str]) -> list[Prediction]:
    """Return the predictions of a model with these probabilities."""
    return [
        Prediction(label=labels[int(row.argmax())], score=float(row.max()), probabilities=row.tolist()) for row in rows
    ]


def data_sets() -> Iterator[tuple[str, Array, Array, slice]]:
    """Yield the name, the samples, whether they are positive, and the columns that the small model sees."""
    cancer, digits, diabetes = load_breast_cancer(), load_digits(), load_diabetes()
    yield "breast cancer: malignant", cancer.data, cancer.target == 0, slice(0, 2)
    yield "digits: is it an 8", digits.data, digits.target == 8, slice(20, 44)
    yield "diabetes: progresses faster than the median", diabetes.data, diabetes.target > 140.5, slice(0, 2)


def split(x: Array, y: Array, columns: slice, seed: int) -> tuple[Pair, Pair]:
    """Return the samples for calibration and for the test, with the answers of models that saw neither."""
    order = np.random.default_rng(seed).permutation(len(y))
    fitting, calibrating, testing = np.split(order, [int(0.4 * len(y)), int(0.7 * len(y))])
    small = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(x[fitting][:, columns], y[fitting])
    big = make_pipeline(StandardScaler(), SVC(C=10)).fit(x[fitting], y[fitting])
    truths = [LABELS[int(value)] for value in y]
    sure = np.eye(2)[big.predict(x).astype(int)]
    both = Pair(data_of(truths), answers(small.predict_proba(x[:, columns]), LABELS), answers(sure, LABELS))
    return both.part(calibrating), both.part(testing)


def calibrated(samples: Pair, goal: Goal, rule: str = "") -> Calibrated:
    """Calibrate as `halimede calibrate` does, without a mixture."""
    settings = {"labels": LABELS, "cloud_labels": LABELS, "fusion": False}
    return fit(samples.edge, samples.cloud, samples.data, goal=goal, rule=rule, **settings)  # type: ignore[arg-type]


def cost_of(calibration: Calibrated, samples: Pair) -> float:
    """Return the mean cost of a calibrated service on these samples."""
    artefact = calibration.artefact
    candidate = Candidate(artefact.rule, artefact.parameters)
    miner = create(artefact.rule, artefact.parameters)
    hardness = hardness_of(judged(miner, "inference-then-mining", samples.data, samples.edge))
    assert hardness is not None
    priced = PricedSamples(samples.data, samples.edge, samples.cloud, PRICES)
    return float(priced.cost(candidate, hardness, miner.cut).mean())  # type: ignore[attr-defined]


def costs() -> None:
    """Print the mean cost of each way to decide, and how often the bound holds."""
    print(f"{SPLITS} splits; {PRICES.miss:g} a miss, {PRICES.alarm:g} a false alarm, {PRICES.upload:g} an upload")
    for name, x, y, columns in data_sets():
        rows: dict[str, list[float]] = {}
        bounds = []
        for seed in range(SPLITS):
            calibrating, testing = split(x, y, columns, seed)
            priced = PricedSamples(testing.data, testing.edge, testing.cloud, PRICES)
            edge = Candidate("Margin")
            goal = Goal(costs=PRICES, confidence=CONFIDENCE)
            two = calibrated(calibrating, goal, TWO_THRESHOLDS)
            results = {
                "edge alone": float(priced.kept_costs(edge).mean()),
                "cloud alone": float(priced.uploaded.mean()),
                "one threshold (Margin)": cost_of(calibrated(calibrating, goal, "Margin"), testing),
                f"risk {RISK:.0%} (Margin)": risk_cost(calibrating, testing),
                "two thresholds": cost_of(two, testing),
            }
            for method, value in results.items():
                rows.setdefault(method, []).append(value)
            bounds += coverage(calibrating, testing, seed)
        print(f"\n{name}: {len(y)} samples")
        best = np.array(rows["one threshold (Margin)"])
        for method, values in rows.items():
            mean, low, high = mean_interval(np.array(values))
            less, *ends = mean_interval(best - np.array(values))
            saved = (
                f"   less than one threshold: {less:.3f} ({ends[0]:.3f} to {ends[1]:.3f})" if "two" in method else ""
            )
            print(f"  {method:24} {mean:.3f} ({low:.3f} to {high:.3f}){saved}")
        holds = np.array([true <= bound for true, bound in bounds])
        medians = np.median(bounds, axis=0)
        print(
            f"  the bound at {CONFIDENCE:.0%} holds in {holds.mean():.1%} of {len(holds)}: median {medians[1]:.3f}",
            end="",
        )
        print(f", of the cost {medians[0]:.3f}")


def risk_cost(calibrating: Pair, testing: Pair) -> float:
    """Return the cost with risk control; where the samples cannot prove the risk, everything goes up."""
    try:
        return cost_of(calibrated(calibrating, Goal(max_risk=RISK, confidence=CONFIDENCE), "Margin"), testing)
    except InvalidFieldError:
        return float(PricedSamples(testing.data, testing.edge, testing.cloud, PRICES).uploaded.mean())


def coverage(calibrating: Pair, testing: Pair, seed: int) -> list[tuple[float, float]]:
    """Return the expected cost and its bound, for calibration samples that are drawn from all of these."""
    truths = [*(calibrating.data.truths or []), *(testing.data.truths or [])]
    every = Pair(data_of(truths), [*calibrating.edge, *testing.edge], [*calibrating.cloud, *testing.cloud])
    chance = np.random.default_rng(seed)
    pairs = []
    for _ in range(DRAWS):
        drawn = every.part(chance.integers(0, len(truths), max(len(calibrating.edge), 100)))
        calibration = calibrated(drawn, Goal(costs=PRICES, confidence=CONFIDENCE), TWO_THRESHOLDS)
        pairs.append((cost_of(calibration, every), calibration.artefact.figures["cost_bound"]))
    return pairs


def regret() -> None:
    """Print the regret of adapted thresholds by the length of the stream, and the exponent that fits it."""
    print(f"streams of two parts; {RUNS} runs; regret against the best fixed pair of each part, audits included")
    for prices in (PRICES, Costs(miss=1, false_alarm=0.3, upload=0.1), Costs(miss=1, false_alarm=1, upload=0.3)):
        means = [float(np.mean([regret_of(length, prices, seed) for seed in range(RUNS)])) for length in LENGTHS]
        exponent = float(np.polyfit(np.log(LENGTHS), np.log(means), 1)[0])
        shown = ", ".join(f"{mean:.0f} of {length:,}" for mean, length in zip(means, LENGTHS, strict=True))
        print(
            f"miss {prices.miss:g}, alarm {prices.alarm:g}, upload {prices.upload:g}: {shown}; exponent {exponent:.2f}"
        )


def regret_of(length: int, prices: Costs, seed: int) -> float:
    """Return the regret of one run: its expected costs less those of the best fixed pair of each part."""
    chance, draws = np.random.default_rng(seed), random.Random(seed)
    rule = TwoThresholds("yes", "no", low=0.3, high=0.7)
    thresholds = AdaptiveThresholds(rule, prices, draws.random)
    total = 0.0
    for number in range(2):
        shift, slope = PARTS[(seed + number) % len(PARTS)]
        p = chance.beta(0.6, 0.6, length // 2).clip(1e-6, 1 - 1e-6)
        positive = 1 / (1 + np.exp(-(shift + slope * np.log(p / (1 - p)))))
        total += cost_of_part(thresholds, p, positive, prices, draws.random) - least_cost(p, positive, prices)
    return total


def cost_of_part(
    thresholds: AdaptiveThresholds, p: Array, positive: Array, prices: Costs, chance: Callable[[], float]
) -> float:
    """Return the expected costs of a part of a stream, with those of audits."""
    total = 0.0
    for probability, chance_of_positive in zip(p.tolist(), positive.tolist(), strict=True):
        share = thresholds.audit_share
        label, score = ("yes", probability) if probability >= 0.5 else ("no", 1 - probability)
        draw = thresholds.draw(Prediction(label=label, score=score), share)
        assert draw is not None
        is_sent = draw.is_up or chance() < share
        if not draw.is_up:
            is_reported = draw.prediction.label == "yes"
            total += (1 - chance_of_positive) * prices.alarm if is_reported else chance_of_positive * prices.miss
        total += prices.upload * is_sent
        if is_sent:
            thresholds.learn(draw, "yes" if chance() < chance_of_positive else "no")
    return total


def least_cost(p: Array, positive: Array, prices: Costs) -> float:
    """Return the expected costs of the best fixed pair of all on the grid."""
    bins = [bisect_right(LIMITS, value) for value in p]
    negative = np.bincount(bins, positive * prices.miss - prices.upload, BINS)
    reported = np.bincount(bins, (1 - positive) * prices.alarm - prices.upload, BINS)
    below = np.concatenate([[0.0], np.cumsum(negative)])
    above = np.concatenate([np.cumsum(reported[::-1])[::-1], [0.0]])
    return float((np.minimum.accumulate(below) + above).min()) + prices.upload * len(p)


def main() -> None:
    """Run one of the measurements."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["costs", "regret"])
    {"costs": costs, "regret": regret}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
