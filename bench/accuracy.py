"""Joint inference on digits: accuracy, fusion, budget, risk and audits against their targets.

    python -m bench.accuracy              20 seeds, 200 re-splits
    python -m bench.accuracy --seeds 3    the same in short

Each seed parts the 1,797 digits in two halves. On the first everything is fitted and calibrated, by cross-validation:
what calibration sees of a model is what a model of the other folds said. The second half, the test, is never seen
before it is measured. Everything that decides is the shipped code: ``halimede.calibration``, ``halimede.mining``, and
the budget and the audits of ``halimede.pipeline.upload_policy``. Ends with 1 when a figure misses its target.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from bench import results
from bench.accuracy_digits import Array, Digits, Half, big, digits, predictions, small, trained
from bench.accuracy_report import RATIOS, RISK, TARGET, show, summed_up
from halimede.calibration.calibrate import CalibrationResult, Goal, Samples, fit, gains_and_losses
from halimede.calibration.deferral import hardness_by
from halimede.evaluation import curves
from halimede.evaluation.quality import right
from halimede.inference.postprocess import pack, unit
from halimede.messages import Prediction
from halimede.mining import create, hardness_of
from halimede.mining.miner import Verdict
from halimede.mining.mixture import mix
from halimede.pipeline.upload_policy.audit import Audits, is_same_answer
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy
from halimede.stats.agreement import agreement

WRITTEN = results.FOLDER / "accuracy.json"
GRID = np.round(np.arange(0.05, 1.0, 0.05), 2)
FUSED_AT = 0.3
STREAM, WINDOW = 20_000, 2_000
#: runs of the audit for each seed, samples of each, and the share that is audited
AUDIT_RUNS, AUDIT_SAMPLES, AUDIT_SHARE = 5, 5_000, 0.01
#: folds for models that take their time
SLOW_FOLDS = 5


def calibrated(data: Digits, edge: Half, cloud: Half, **options: Any) -> CalibrationResult:
    """Fit all on the first half; that its test is the second half needs no part held out of the first."""
    options.setdefault("goal", Goal(target_upload=TARGET))
    labels = [str(i) for i in range(10)]
    return fit(edge.fitting, cloud.fitting, data.fitting, held_out=0, seed=data.seed, labels=labels, **options)


def at_ratios(data: Digits, hardness: Array, edge: Half, up: Sequence[Prediction], ratios: Any) -> Array:
    """Return the accuracy on the test half when so many of the hardest go up."""
    truths = data.testing.truths or []
    points = curves.curve(hardness, right(truths, edge.testing), right(truths, up))
    return np.array([curves.accuracy_at(points, float(ratio)) for ratio in ratios])


def one_seed(seed: int) -> dict[str, Any]:
    """Everything of one seed but risk: accuracies, fusion, audits and, of the first, the budget."""
    data = digits(seed)
    edge, cloud = trained(data, small()), trained(data, big())
    found: dict[str, Any] = {}
    truths = data.testing.truths or []
    found["edge_only"] = right(truths, edge.testing).mean()
    found["cloud_only"] = right(truths, cloud.testing).mean()
    deferral = calibrated(data, edge, cloud, fusion=False)
    assert deferral.artefact.learned
    hardness = {
        "margin": hardness_of(create("Margin", {}), edge.testing),
        "learned": hardness_by(deferral.artefact.learned, edge.testing),
        "learned_with_features": with_features(data, edge, cloud),
        "oracle": right(truths, cloud.testing) - right(truths, edge.testing),
    }
    for rule, values in hardness.items():
        found[rule] = at_ratios(data, values, edge, cloud.testing, RATIOS) / found["cloud_only"]
        found[f"{rule}_grid"] = at_ratios(data, values, edge, cloud.testing, GRID) / found["cloud_only"]
    found["fusion"] = fusion(data, edge, cloud)
    found["audits"] = [audit(data, edge, cloud, deferral, run) for run in range(AUDIT_RUNS)]
    found["budget"] = [budget(data, edge, deferral, drift) for drift in DRIFTS.values()]
    return found


def with_features(data: Digits, edge: Half, cloud: Half) -> Array:
    """Return the hardness where the edge exports its penultimate features: of a linear model, what it is given."""

    def featured(answers: list[Prediction], x: Array) -> list[Prediction]:
        return [
            Prediction(label=a.label, score=a.score, probabilities=a.probabilities, embeddings=pack(unit(row)))
            for a, row in zip(answers, x, strict=True)
        ]

    own = Half(edge.model, featured(edge.fitting, data.x), featured(edge.testing, data.test_x))
    learned = calibrated(data, own, cloud, fusion=False).artefact.learned
    assert learned
    return np.asarray(hardness_by(learned, own.testing))


def fusion(data: Digits, edge: Half, cloud: Half) -> dict[str, tuple[float, float]]:
    """Return joint - cloud-only at 30 %, and what of it the mixture brings, of each pair."""
    forest = trained(data, RandomForestClassifier(200, random_state=data.seed), SLOW_FOLDS)
    pairs = {
        "mlp16_forest": (
            trained(data, MLPClassifier((16,), max_iter=1000, random_state=data.seed), SLOW_FOLDS),
            forest,
        ),
        "logistic1_forest": (trained(data, LogisticRegression(C=1, max_iter=1000)), forest),
        "main": (edge, cloud),
    }
    return {name: fused(data, *pair) for name, pair in pairs.items()}


def fused(data: Digits, edge: Half, cloud: Half) -> tuple[float, float]:
    accuracies = []
    for on in (True, False):
        artefact = calibrated(data, edge, cloud, fusion=on).artefact
        assert artefact.learned
        up = [mix(artefact, low, high) for low, high in zip(edge.testing, cloud.testing, strict=True)]
        accuracies.append(at_ratios(data, hardness_by(artefact.learned, edge.testing), edge, up, [FUSED_AT])[0])
    alone = right(data.testing.truths or [], cloud.testing).mean()
    return accuracies[0] - alone, accuracies[0] - accuracies[1]


def audit(data: Digits, edge: Half, cloud: Half, deferral: CalibrationResult, run: int) -> bool:
    """Answer a stream as a worker does, and see whether the truth is within the estimate's own interval.

    The truth is the share of all answers that are the big model's, which an edge cannot know.
    """
    assert deferral.artefact.learned
    chance = random.Random(1000 * data.seed + run)
    rows = np.random.default_rng([data.seed, run]).integers(0, len(edge.testing), AUDIT_SAMPLES)
    hardness = hardness_by(deferral.artefact.learned, edge.testing)
    cut = deferral.artefact.learned.cut
    policy = UploadPolicy(budget=Budget(TARGET, cut), audits=Audits(AUDIT_SHARE, chance.random))
    same = [is_same_answer(low, high) for low, high in zip(edge.testing, cloud.testing, strict=True)]
    easy = audited = agreed = uploaded = kept_same = 0
    for i, row in enumerate(rows.tolist()):
        verdict = Verdict(bool(hardness[row] >= cut), None, float(hardness[row]), cut)
        decision = policy.decide(verdict, edge.testing[row], 64, 1.0, float(i))
        if decision.trip:
            policy.ended(decision, 0.01, float(i), sent=True, answered=True)
        if decision.up:
            uploaded += 1
            continue
        easy += 1
        kept_same += same[row]
        audited += decision.audit
        agreed += decision.audit and same[row]
    estimate = agreement(easy=easy, audited=audited, agreed=agreed, uploaded=uploaded)
    return estimate is not None and estimate.low <= (uploaded + kept_same) / len(rows) <= estimate.high


def _seasons(at: Array) -> Array:
    return 0.5 - 0.5 * np.cos(2 * np.pi * 3 * at)


def _steps(at: Array) -> Array:
    return np.array([0.0, 1.0, 0.2, 0.8])[np.minimum((at * 4).astype(int), 3)]


#: how noisy pictures become on the way, 0 to 1
DRIFTS: dict[str, Callable[[Array], Array]] = {"seasons": _seasons, "steps": _steps, "ramp": lambda at: at}


def budget(
    data: Digits, edge: Half, deferral: CalibrationResult, drift: Callable[[Array], Array]
) -> tuple[float, float]:
    """Return the error of the upload ratio in the long run, and the worst of any window."""
    assert deferral.artefact.learned
    chance = np.random.default_rng(data.seed)
    rows = chance.integers(0, len(data.test_x), STREAM)
    noise = chance.normal(0, 0.35, (STREAM, 64)) * drift(np.arange(STREAM) / STREAM)[:, None]
    answers = predictions(edge.model.predict_proba(np.clip(data.test_x[rows] + noise, 0, 1)))
    cut = deferral.artefact.learned.cut
    held = Budget(TARGET, cut)
    hardness = hardness_by(deferral.artefact.learned, answers).tolist()
    went = np.array([held.admits(Verdict(value >= cut, None, value, cut))[0] for value in hardness], float)
    sums = np.concatenate([[0.0], np.cumsum(went)])
    windows = (sums[WINDOW:] - sums[:-WINDOW]) / WINDOW
    return abs(float(went.mean()) - TARGET), float(np.abs(windows - TARGET).max())


def one_split(seed: int) -> tuple[float, float]:
    """Return risk and upload ratio on the test half, of a cut for a risk at most RISK."""
    data = digits(10_000 + seed)
    edge, cloud = trained(data, small()), trained(data, big())
    learned = calibrated(data, edge, cloud, fusion=False, goal=Goal(max_risk=RISK)).artefact.learned
    assert learned
    stays = hardness_by(learned, edge.testing) < learned.cut
    mends, _ = gains_and_losses(Samples(data.testing, edge.testing, cloud.testing))
    return float((mends & stays).mean()), float(1 - stays.mean())


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.accuracy", description="Measure joint inference on digits.")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--resplits", type=int, help="of the risk (default 10 a seed)")
    chosen = parser.parse_args()
    if chosen.seeds < 2:
        parser.error("--seeds: give 2 or more: an interval needs them")
    began = time.monotonic()
    resplits = chosen.resplits or 10 * chosen.seeds
    # a process a core: threads below them would only wait for each other
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        seeds = [*progress("seeds", pool.map(one_seed, range(chosen.seeds)), chosen.seeds)]
        splits = [*progress("re-splits", pool.map(one_split, range(resplits), chunksize=2), resplits)]
    report, targets = summed_up(seeds, splits)
    report["seconds"] = round(time.monotonic() - began, 1)
    results.write(WRITTEN, report)
    show(report, targets)
    return 0 if all(met for *_, met in targets) else 1


def progress(what: str, results: Any, total: int) -> Any:
    for i, result in enumerate(results):
        print(f"\r{what}: {i + 1} of {total}", end="" if i + 1 < total else "\n", file=sys.stderr, flush=True)
        yield result


if __name__ == "__main__":
    sys.exit(main())
