"""``python -m halimede.multiedge.fusion.calibration FILE``: temperatures and weights from labelled findings.

What it prints can be pasted under ``spec.application.parameters``. The accuracies beside it are honest ones: fitted on
every other instant, and measured on the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halimede.calibration.temperature import calibrate, calibration_error
from halimede.multiedge.fusion.fitting import accuracy, fit, fused
from halimede.multiedge.fusion.labelled_findings import Labelled, LabelledError, load
from halimede.multiedge.fusion.rules import RULES

#: fewer instants say nothing
LEAST = 20


def measure(data: Labelled, rule: str) -> dict[str, Any]:
    """Return the parameters, and what they are worth on instants that they were not fitted on."""
    if len(data.truth) < LEAST:
        raise LabelledError(f"{len(data.truth)} instants are too few: give at least {LEAST}")
    even = np.arange(len(data.truth)) % 2 == 0
    learn, rest = data.part(even), data.part(~even)
    learned = fit(learn, rule)
    cameras = {}
    for i, camera in enumerate(data.cameras):
        rows, truth = rest.of(i)
        cameras[camera] = {
            "accuracy": accuracy(rows.argmax(axis=1), truth),
            "calibrationError": calibration_error(rows, truth),
            "calibrated": calibration_error(calibrate(rows, np.full(len(rows), learned.temperatures[i])), truth),
        }
    final = fit(data, rule)
    return {
        "rule": rule,
        "instants": len(data.truth),
        "heldOut": len(rest.truth),
        "cameras": cameras,
        "fused": {
            "asItIs": {name: accuracy(fused(rest, name, None), rest.truth) for name in RULES},
            "calibrated": {name: accuracy(fused(rest, name, fit(learn, name)), rest.truth) for name in RULES},
        },
        "parameters": {
            "rule": rule,
            **{f"temperature.{c}": f"{t:g}" for c, t in zip(data.cameras, final.temperatures, strict=True)},
            **{f"weight.{c}": f"{w:g}" for c, w in zip(data.cameras, final.weights, strict=True)},
        },
    }


def text(measured: dict[str, Any]) -> str:
    """Write it down for people; the parameters as YAML, the rest as its comments."""
    out = [f"# {measured['instants']} instants; measured on {measured['heldOut']} that nothing was fitted on"]
    out.append(f"# {'camera':<24} {'accuracy':>8}  calibration error before -> after")
    for camera, of in measured["cameras"].items():
        out.append(f"# {camera:<24} {of['accuracy']:>8.3f}  {of['calibrationError']:.3f} -> {of['calibrated']:.3f}")
    out.append(f"# {'fused by':<24} {'accuracy':>8}  as it is -> with fitted parameters")
    before, after = measured["fused"]["asItIs"], measured["fused"]["calibrated"]
    out += [f"# {rule:<24} {'':>8}  {before[rule]:.3f} -> {after[rule]:.3f}" for rule in before]
    out.append("parameters:")
    out += [f"  - {{key: {json.dumps(k)}, value: {json.dumps(v)}}}" for k, v in measured["parameters"].items()]
    return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m halimede.multiedge.fusion.calibration",
        description="Find temperatures and weights for the application fusion.",
    )
    parser.add_argument("file", type=Path, help="labelled findings: .npz, .csv, or results (with --truth)")
    parser.add_argument(
        "--truth", type=Path, help="CSV of camera, sequence, truth: file then holds results, JSON lines"
    )
    parser.add_argument("--rule", choices=list(RULES), default="product", help="what the weights are for")
    parser.add_argument("--json", action="store_true", help="write JSON")
    chosen = parser.parse_args(arguments)
    try:
        measured = measure(load(chosen.file, chosen.truth), chosen.rule)
    except LabelledError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(measured, indent=2) if chosen.json else text(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
