"""``python -m halimede.multiedge.fusion.calibration FILE``: finds parameters of fusion from labelled findings.

The parameters are a temperature and a weight for each camera, fitted on all instants. The output can be pasted under
``spec.application.parameters``. The accuracies in it are measured on held-out data, with other parameters: those that
are fitted on every other instant are measured on the other half.

A temperature calibrates a camera's probabilities (least negative log likelihood; convex in 1/T). A weight is for one
rule. Weights of the product have the least negative log likelihood too (convex); their sum is below 1 if cameras err
together. Weights of a vote are the logarithm of the odds that a camera is right (Nitzan and Paroush, "Optimal decision
rules in uncertain dichotomous choice situations", International Economic Review 1982, for two classes).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede import codec, topics
from halimede.calibration.temperature import Truth, calibrate, calibration_error, temperature
from halimede.errors import DecodeError, HalimedeError
from halimede.multiedge.fusion.class_distribution import RULES, Vector, read

#: the least number of instants for ``measure``: with fewer its result means little
LEAST = 20
#: regularization of the product's weights towards 1, so that few findings change them little
PULL = 1e-3
#: limits: bytes of a file, and numbers in it
MAX_FILE, MAX_NUMBERS = 1 << 30, 1 << 28
#: columns of a CSV file, before those of the classes
COLUMNS = ("instant", "camera", "truth")


def measure(data: Labelled, rule: str) -> dict[str, Any]:
    """Return the parameters for a rule, fitted on all instants, and accuracies (0..1).

    Accuracies are measured on every other instant, with parameters that were fitted on the instants between. ``rule``:
    a key of RULES. The result is what ``--json`` prints: ``calibrationError`` is the error without temperatures,
    ``calibrated`` the error with them. Raises LabelledError for fewer than LEAST instants.
    """
    if len(data.truth) < LEAST:
        raise LabelledError(f"{len(data.truth)} instants are too few: give at least {LEAST}")
    is_even = np.arange(len(data.truth)) % 2 == 0
    training, test = data.subset(is_even), data.subset(~is_even)
    fitted = fit(training, rule)
    cameras = {}
    for i, camera in enumerate(data.cameras):
        rows, truth = test.of(i)
        cameras[camera] = {
            "accuracy": accuracy(rows.argmax(axis=1), truth),
            "calibrationError": calibration_error(rows, truth),
            "calibrated": calibration_error(calibrate(rows, np.full(len(rows), fitted.temperatures[i])), truth),
        }
    final = fit(data, rule)
    return {
        "rule": rule,
        "instants": len(data.truth),
        "heldOut": len(test.truth),
        "cameras": cameras,
        "fused": {
            "asItIs": {name: accuracy(fuse(test, name, None), test.truth) for name in RULES},
            "calibrated": {name: accuracy(fuse(test, name, fit(training, name)), test.truth) for name in RULES},
        },
        "parameters": {
            "rule": rule,
            **{f"temperature.{c}": f"{t:g}" for c, t in zip(data.cameras, final.temperatures, strict=True)},
            **{f"weight.{c}": f"{w:g}" for c, w in zip(data.cameras, final.weights, strict=True)},
        },
    }


def text(measured: dict[str, Any]) -> str:
    """Return the result of ``measure`` as text: the parameters as YAML, the accuracies as comments."""
    out = [f"# {measured['instants']} instants; measured on {measured['heldOut']} that nothing was fitted on"]
    out.append(f"# {'camera':<24} {'accuracy':>8}  calibration error before -> after")
    for camera, row in measured["cameras"].items():
        out.append(f"# {camera:<24} {row['accuracy']:>8.3f}  {row['calibrationError']:.3f} -> {row['calibrated']:.3f}")
    out.append(f"# {'fused by':<24} {'accuracy':>8}  as it is -> with fitted parameters")
    before, after = measured["fused"]["asItIs"], measured["fused"]["calibrated"]
    out += [f"# {rule:<24} {'':>8}  {before[rule]:.3f} -> {after[rule]:.3f}" for rule in before]
    out.append("parameters:")
    out += [f"  - {{key: {json.dumps(k)}, value: {json.dumps(v)}}}" for k, v in measured["parameters"].items()]
    return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Find and print the parameters; return the exit code: 0, or 1 for a file that cannot be used.

    ``arguments``: those of the command line; None: the process's own.
    """
    description = "Find temperatures and weights for the application fusion."
    parser = argparse.ArgumentParser(prog="python -m halimede.multiedge.fusion.calibration", description=description)
    add = parser.add_argument
    add("file", type=Path, help="labelled findings: .npz, .csv, or results (with --truth)")
    add("--truth", type=Path, help="CSV of camera, sequence, truth: file then holds results, JSON lines")
    add("--rule", choices=list(RULES), default="product", help="what the weights are for")
    add("--json", action="store_true", help="write JSON")
    chosen = parser.parse_args(arguments)
    try:
        measured = measure(load(chosen.file, chosen.truth), chosen.rule)
    except LabelledError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(measured, indent=2) if chosen.json else text(measured))
    return 0


@dataclass(frozen=True, slots=True)
class Fitted:
    """The parameters of all cameras, in the order of ``Labelled.cameras``: two vectors ``(cameras,) float64``."""

    temperatures: Vector
    weights: Vector


def fit(data: Labelled, rule: str) -> Fitted:
    """Return the temperatures and the weights for a rule, to 3 decimals; weights of 1 for a rule without a method."""
    temperatures = np.array([temperature(*data.of(camera)) for camera in range(len(data.cameras))])
    makers = {"product": _product_weights, "vote": _vote_weights}
    weights = makers[rule](data, temperatures) if rule in makers else np.ones(len(data.cameras))
    return Fitted(temperatures.round(3), weights.round(3))


def fuse(data: Labelled, rule: str, fitted: Fitted | None) -> Truth:
    """Return the fused class of each instant as ``(instants,) int64``; -1 for an instant without a finding.

    ``rule``: a key of RULES. ``fitted``: the cameras' parameters; None: all weights and temperatures are 1.
    """
    ones = np.ones(len(data.cameras))
    temperatures, weights = (fitted.temperatures, fitted.weights) if fitted else (ones, ones)
    classes = np.zeros(len(data.truth), np.int64)
    for i, rows in enumerate(data.rows):
        present = ~np.isnan(rows).any(axis=1)
        own = weights[present] if weights[present].any() else ones[present]
        classes[i] = RULES[rule](calibrate(rows[present], temperatures[present]), own)[0] if present.any() else -1
    return classes


def accuracy(predicted: Truth, truth: Truth) -> float:
    """Return the share of predicted classes that are the true ones; 0 without any."""
    return float((predicted == truth).mean()) if len(truth) else 0.0


def _vote_weights(data: Labelled, temperatures: Vector) -> Vector:  # noqa: ARG001
    """Return each camera's weight for the vote, with a mean of 1."""
    classes = len(data.labels)
    samples = [data.of(camera) for camera in range(len(data.cameras))]
    # one right and one wrong finding are added, so that no camera has infinite odds
    right = np.array([((rows.argmax(axis=1) == truth).sum() + 1) / (len(truth) + 2) for rows, truth in samples])
    odds = np.log((classes - 1) * right / (1 - right)).clip(min=0.0)
    return np.asarray(odds / odds.mean()) if odds.any() else np.ones_like(odds)


def _product_weights(data: Labelled, temperatures: Vector) -> Vector:
    """Return each camera's weight, at least 0, for the product, by gradient descent; missing findings do not count."""
    logs = np.stack([_log_rows(data.rows[:, c], temperatures[c]) for c in range(len(data.cameras))])
    rows = np.arange(len(data.truth))

    def cost(weights: Vector) -> tuple[float, Vector]:
        """Return the cost of weights ``(cameras,)``, and its gradient."""
        logits = np.einsum("c,cnk->nk", weights, logs)
        logits -= logits.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        p = powers / powers.sum(axis=1, keepdims=True)
        slope = np.einsum("nk,cnk->c", p, logs) - logs[:, rows, data.truth].sum(axis=1)
        loss = -np.log(p[rows, data.truth].clip(min=1e-300)).mean() + PULL * ((weights - 1) ** 2).sum()
        return float(loss), slope / len(rows) + 2 * PULL * (weights - 1)

    weights, step = np.ones(len(data.cameras)), 1.0
    least_cost, slope = cost(weights)
    for _ in range(200):
        candidate = (weights - step * slope).clip(min=0.0)
        candidate_cost, candidate_slope = cost(candidate)
        if candidate_cost > least_cost:
            step /= 2
            continue
        settled = np.abs(candidate - weights).max() < 1e-4
        weights, least_cost, slope, step = candidate, candidate_cost, candidate_slope, step * 1.5
        if settled:
            break
    return weights


def _log_rows(rows: Vector, temperature_: float) -> Vector:
    """Return the logarithms of calibrated probabilities ``(instants, classes)``; zeros for a missing finding."""
    logs = np.zeros_like(rows)
    present = ~np.isnan(rows).any(axis=1)
    if present.any():
        logs[present] = np.log(calibrate(rows[present], np.full(present.sum(), temperature_)))
    return logs


class LabelledError(HalimedeError):
    """A file without valid labelled findings. The text names the file and the error."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """The findings of all cameras for instants whose true class is known.

    Attributes:
        rows: probabilities, ``(instants, cameras, classes) float64``, which add up to 1; NaN for a missing finding.
        truth: index of the true class, ``(instants,) int64``.
        cameras: their names.
        labels: the names of the classes.

    """

    rows: Vector
    truth: NDArray[np.int64]
    cameras: tuple[str, ...]
    labels: tuple[str, ...]

    def of(self, camera: int) -> tuple[Vector, NDArray[np.int64]]:
        """Return the probabilities ``(n, classes)`` in one camera's n findings, and the true classes ``(n,)``."""
        present = ~np.isnan(self.rows[:, camera]).any(axis=1)
        return self.rows[present, camera], self.truth[present]

    def subset(self, chosen: NDArray[np.bool_]) -> Labelled:
        """Return the findings of the instants for which ``chosen``, ``(instants,) bool``, is true."""
        return Labelled(self.rows[chosen], self.truth[chosen], self.cameras, self.labels)


@dataclass(frozen=True, slots=True)
class _LabelledFinding:
    """One camera's finding for an instant, with the true class and a probability for each class."""

    instant: str
    camera: str
    truth: str
    probabilities: Mapping[str, float]


def load(path: Path, truth: Path | None = None) -> Labelled:
    """Read the findings in a file. Raises LabelledError if it cannot be read or has none.

    The file is one of

    - CSV: a line for each finding: ``instant``, ``camera``, ``truth``, then a column for each class;
    - NPZ: the arrays ``probabilities``, ``(instants, cameras, classes)``, NaN for a missing finding; ``truth``,
      ``(instants,)``; optionally the names ``cameras`` and ``labels``;
    - the output of ``halimede results --output json``; ``truth`` is then a CSV of ``camera``, ``sequence``, ``truth``.
    """
    try:
        if path.stat().st_size > MAX_FILE:
            raise LabelledError(f"{path}: is larger than {MAX_FILE >> 20} MiB: give a part of it")
        if path.suffix == ".npz":
            return _npz(path)
        return _to_labelled(path, _read_results(path, truth) if truth else _read_csv(path))
    except (OSError, ValueError, EOFError, csv.Error, zipfile.BadZipFile, DecodeError) as error:
        raise LabelledError(f"{path}: {error}") from error


def _npz(path: Path) -> Labelled:
    """Read an NPZ file. Raises LabelledError, and for an unreadable file other errors, which ``load`` converts."""
    with np.load(path, allow_pickle=False) as file:
        missing = {"probabilities", "truth"} - set(file.files)
        if missing:
            raise LabelledError(f"{path}: has no array {', '.join(sorted(missing))}")
        rows = np.asarray(file["probabilities"], np.float64)
        truth = np.asarray(file["truth"])
        if rows.ndim != 3 or truth.shape != rows.shape[:1] or not rows.size:
            raise LabelledError(f"{path}: write probabilities as [instants, cameras, classes] and truth as [instants]")
        labels = _names(file, "labels", [str(i) for i in range(rows.shape[2])])
        cameras = _names(file, "cameras", [f"cam{i}" for i in range(rows.shape[1])])
    if len(labels) != rows.shape[2] or len(cameras) != rows.shape[1]:
        raise LabelledError(f"{path}: labels and cameras must be as many as the probabilities have")
    index = {label: i for i, label in enumerate(labels)}
    names = [str(name) for name in truth]
    unknown = sorted(set(names) - set(index))
    if unknown:
        raise LabelledError(f"{path}: truth {unknown[0]} is none of the labels")
    return _normalize(path, Labelled(rows, np.array([index[name] for name in names]), tuple(cameras), tuple(labels)))


def _names(file: Any, array: str, default: list[str]) -> list[str]:
    """Return the names in an array of an NPZ file; ``default`` without the array."""
    return [str(name) for name in file[array]] if array in file.files else default


def _read_csv(path: Path) -> Iterator[_LabelledFinding]:
    """Yield the findings in a CSV file. Raises LabelledError for another first line, ValueError for a wrong number."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        classes = [name for name in reader.fieldnames or [] if name not in COLUMNS]
        if not classes or not set(COLUMNS) <= set(reader.fieldnames or []):
            raise LabelledError(f"{path}: its first line must be {','.join(COLUMNS)} and the names of the classes")
        for record in reader:
            values = {name: float(record[name] or "nan") for name in classes}
            yield _LabelledFinding(record["instant"], record["camera"], record["truth"], values)


def _read_results(path: Path, truth: Path) -> Iterator[_LabelledFinding]:
    """Yield the cameras' own predictions in recorded results, with the true classes of a CSV file.

    Results of one instant have the same ``instant`` in their value. Results without a known truth, or without
    probabilities of all classes, are left out.
    """
    with truth.open(newline="", encoding="utf-8") as file:
        records = _truth_reader(truth, file)
        truths = {(record["camera"], int(record["sequence"] or "")): record["truth"] for record in records}
    with path.open("rb") as results:
        for line in results:
            result = codec.decode(topics.MULTI_RESULT, line)
            opinion = read(result.edge) if result.edge else None
            value, name = result.prediction.value, truths.get((result.camera, result.sequence))
            if opinion is None or opinion.remainder or name is None or not isinstance(value, dict):
                continue
            probabilities = dict(zip(opinion.names, opinion.probabilities.tolist(), strict=True))
            yield _LabelledFinding(str(value.get("instant")), result.camera, name, probabilities)


def _truth_reader(path: Path, lines: Iterable[str]) -> csv.DictReader[str]:
    """Return a reader of a CSV file with true classes. Raises LabelledError if a column is missing."""
    reader = csv.DictReader(lines)
    missing = {"camera", "sequence", "truth"} - set(reader.fieldnames or [])
    if missing:
        raise LabelledError(f"{path}: its first line must have {', '.join(sorted(missing))}")
    return reader


def _to_labelled(path: Path, stream: Iterator[_LabelledFinding]) -> Labelled:
    """Return findings as arrays. Raises LabelledError if their truth is no class or contradicts itself."""
    findings = list(stream)
    cameras = tuple(sorted({finding.camera for finding in findings}))
    labels = tuple(dict.fromkeys(name for finding in findings for name in finding.probabilities))
    truths = {finding.instant: finding.truth for finding in findings}
    if len(truths) * len(cameras) * len(labels) > MAX_NUMBERS:
        raise LabelledError(f"{path}: holds more than {MAX_NUMBERS} numbers: give a part of it")
    instants = {instant: i for i, instant in enumerate(truths)}
    classes = {label: i for i, label in enumerate(labels)}
    rows = np.full((len(instants), len(cameras), len(labels)), np.nan)
    for finding in findings:
        if finding.truth not in classes or truths[finding.instant] != finding.truth:
            problem = f"instant {finding.instant} has truth {finding.truth}, no class or not the only truth"
            raise LabelledError(f"{path}: {problem}")
        row = [finding.probabilities.get(label, 0.0) for label in labels]
        rows[instants[finding.instant], cameras.index(finding.camera)] = row
    return _normalize(path, Labelled(rows, np.array([classes[name] for name in truths.values()], int), cameras, labels))


def _normalize(path: Path, labelled: Labelled) -> Labelled:
    """Return findings whose probabilities add up to 1. Raises LabelledError if that is not possible."""
    sums = labelled.rows.sum(axis=2, keepdims=True)
    if np.isnan(sums).all() or np.isinf(sums).any() or (labelled.rows < 0).any() or (sums == 0).any():
        raise LabelledError(f"{path}: holds no findings, or probabilities that are negative, infinite or all 0")
    return Labelled(labelled.rows / sums, labelled.truth, labelled.cameras, labelled.labels)


if __name__ == "__main__":
    sys.exit(main())
