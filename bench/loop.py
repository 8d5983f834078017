"""The learning loop in simulated time: what it wins back after drift, and what it refuses.

    python -m bench.loop                    20 seeds of 4 drifts on 2 data sets, and 100 bad candidates
    python -m bench.loop --seeds 2          the same in short
    python -m bench.loop --sets strokes     one of the data sets
    python -m bench.loop --resume           what an ended run has left out, if the code is the same
    python -m bench.loop --first 100        other seeds, on which settings are chosen

All that decides is the shipped code: mining, audits, drift, labels, sampling, calibration, gate, canary and the loop's
state machine. The models are ONNX files of the shipped trainer (``bench.loop_service``). Frames come at 10 a second in
simulated time; the data and the drifts are those of ``bench.loop_data``.

The accuracy is measured on test samples that nothing was fitted on, with their true labels, which the loop never sees.
``at budget``: the service's accuracy if it uploads the hardest fifth of the samples. ``won back``: (after - drifted) /
(before - drifted); ``attainable``: of a small model that was trained on true labels. Ends with 1 if a figure misses its
target.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench import results
from bench.loop_candidates import candidates
from bench.loop_data import BEFORE, DRIFTS, SETS
from bench.loop_service import BUDGET, STEP_S, Models, Service, Version
from halimede.learning_loop.states import TrainingReport

WRITTEN = results.FOLDER / "loop.json"
#: steps before the drift, after it (100 frames each), and after it went back
CALM, DRIFTED, BACK = 30, 250, 50
#: bad candidates in all, their data set, and the steps in which the loop must have decided about one
BAD, BAD_SET, DECIDED = 100, "digits", 300
WON_BACK, UPLOADS = 0.9, BUDGET + 0.03

#: a data set, a seed, and a number of bad candidates; and what was measured for it
Task = tuple[str, int, int]
Found = dict[str, Any]


def recovery(models: Models, kind: str, seed: int) -> dict[str, Any]:
    """Let one drift come, and let the loop do what it does; then let the drift go back."""
    service = Service(models, seed)
    service.run(CALM)
    calm = list(service.uploads)
    first, alarm = service.present, service.drifting
    service.kind = kind
    began, rolled_at = service.now_s, 0.0
    for _ in range(DRIFTED):
        service.run(1)
        if service.loop.rolled_out and not rolled_at:
            rolled_at = service.now_s
    record = service.loop.history[-1] if service.loop.history else None
    drifted_uploads = service.uploads[CALM : CALM + 20]
    before_back = service.loop.rolled_out
    last = service.present
    service.kind = BEFORE
    service.run(BACK)
    before, drifted, after = (
        models.measure(version, of) for version, of in ((first, BEFORE), (first, kind), (last, kind))
    )
    return {
        "kind": kind,
        "seed": seed,
        "false_alarm": alarm,
        "before": asdict(before),
        "drifted": asdict(drifted),
        "after": asdict(after),
        "attainable": asdict(models.measure(models.attainable(kind), kind)),
        "back": asdict(models.measure(service.present, BEFORE)),
        "won_back": {
            name: won(getattr(before, name), getattr(drifted, name), getattr(after, name))
            for name in ("edge", "at_budget")
        },
        "uploads": [statistics.mean(part) for part in (calm, drifted_uploads, service.uploads[DRIFTED:-BACK])],
        "seconds_to_roll_out": rolled_at - began if rolled_at else None,
        "candidates": service.loop.candidates,
        "rolled_out": service.loop.rolled_out,
        "refused": service.loop.refused,
        "rolled_out_after_back": service.loop.rolled_out - before_back,
        "last": record.reason if record else "",
        "reasons": dict(Counter(each.reason for each in service.loop.history)),
    }


def won(before: float, drifted: float, after: float) -> float | None:
    """Return the share of the lost accuracy that was won back; None if less than 0.02 was lost."""
    return (after - drifted) / (before - drifted) if before - drifted >= 0.02 else None


def refusals(models: Models, kind: str, seed: int, number: int) -> list[dict[str, Any]]:
    """Hand one bad candidate of each kind to a loop that waits for a training, and let it decide."""
    service = Service(models, seed)
    service.run(CALM)
    service.kind = kind
    while service.loop.state != "Training":
        service.run(1)
    found = []
    for bad in candidates(service, number):
        trial = service.fork()
        name = f"bad-{bad.kind}"
        if isinstance(bad.made, Version):
            bad.made.name = name
        trial.known[name] = bad.made
        trial.training = TrainingReport(round=trial.loop.round, version=name)
        served = 0.0
        for _ in range(DECIDED):
            trial.run(1)
            served = max(served, 0.2 if trial.canary else 0.0)
            if trial.loop.state in {"Withdrawn", "RolledOut"}:
                break
        last = trial.loop.history[-1] if trial.loop.history else None
        found.append(
            {
                "kind": bad.kind,
                "how": bad.how,
                "drift": kind,
                "rolled_out": trial.loop.rolled_out > 0,
                "canary": served > 0,
                "decided": last is not None,
                "reason": last.reason if last else trial.loop.state,
                "edge": models.measure(bad.made, kind).edge if isinstance(bad.made, Version) else None,
                "present": models.measure(service.present, kind).edge,
            }
        )
    return found


def one(task: Task) -> Found:
    """Run all drifts of one set and seed, and its share of the bad candidates."""
    name, seed, bad = task
    with tempfile.TemporaryDirectory() as folder:
        models = Models(SETS[name](seed), Path(folder), seed, DRIFTS)
        rows = [{"set": name, **recovery(models, kind, seed)} for kind in DRIFTS]
        turned: list[dict[str, Any]] = []
        for number in range(bad):
            turned += refusals(models, DRIFTS[(seed + number) % len(DRIFTS)], seed, seed + number)
        return {"task": task, "recoveries": rows, "bad": [{"set": name, **each} for each in turned]}


def interval(values: Sequence[float]) -> list[float]:
    """Return the median, and an interval for it of 95 % by order statistics (binomial)."""
    ordered = sorted(values)
    n = len(ordered)
    half = 0.98 * n**0.5
    low, high = max(0, round(n / 2 - half) - 1), min(n - 1, round(n / 2 + half))
    return [statistics.median(ordered), ordered[low], ordered[high]]


def won_back(rows: list[Found], what: str) -> list[float] | None:
    """Return the median share that was won back with its interval; None if no run lost enough."""
    shares = [row["won_back"][what] for row in rows if row["won_back"][what] is not None]
    return interval(shares) if shares else None


def summed(found: list[Found]) -> dict[str, Any]:
    """Return the report: medians with intervals for each set and drift, and the bad candidates."""
    rows = [row for each in found for row in each["recoveries"]]
    bad = [row for each in found for row in each["bad"]]
    report: dict[str, Any] = {"sets": {}, "won_back_edge": {}, "won_back_at_budget": {}}
    for name in SETS:
        for kind in DRIFTS:
            of = [row for row in rows if row["set"] == name and row["kind"] == kind]
            if not of:
                continue
            entry: dict[str, Any] = {"seeds": len(of)}
            for stage in ("before", "drifted", "after", "attainable", "back"):
                for what in ("edge", "at_budget", "uploads"):
                    entry[f"{what}_{stage}"] = interval([row[stage][what] for row in of])
            for what in ("edge", "at_budget"):
                entry[f"won_back_{what}"] = won_back(of, what)
            times = [row["seconds_to_roll_out"] for row in of if row["seconds_to_roll_out"]]
            entry["minutes_to_roll_out"] = interval([t / 60 for t in times]) if times else None
            for what in ("candidates", "rolled_out", "refused", "rolled_out_after_back", "false_alarm"):
                entry[what] = sum(row[what] for row in of)
            entry["without_roll_out"] = sum(not row["rolled_out"] for row in of)
            report["sets"].setdefault(name, {})[kind] = entry
    for name in report["sets"]:
        of = [row for row in rows if row["set"] == name]
        for what in ("edge", "at_budget"):
            report[f"won_back_{what}"][name] = won_back(of, what)
    report["uploads_after"] = interval([row["after"]["uploads"] for row in rows])
    report["bad"] = {
        "candidates": len(bad),
        "rolled_out": sum(each["rolled_out"] for each in bad),
        "canaries": sum(each["canary"] for each in bad),
        "undecided": sum(not each["decided"] for each in bad),
        "reasons": dict(Counter(f"{each['kind']}: {each['reason']}" for each in bad)),
    }
    return report


def written(found: list[Found], state: str) -> dict[str, Any]:
    """Write the report of what was measured so far, and return it."""
    report = summed(found)
    runs = sum(len(each["recoveries"]) for each in found)
    report["simulated_hours"] = runs * (CALM + DRIFTED + BACK) * STEP_S / 3600
    report["code"], report["tasks"] = state, found
    results.write(WRITTEN, report)
    return report


def show(report: dict[str, Any]) -> None:
    """Print the report's table."""
    print("set, drift, edge: before drifted after attainable | at budget | uploads: drifted after | won back | minutes")
    for name, kinds in report["sets"].items():
        for kind, entry in kinds.items():
            cells = [
                " ".join(f"{entry[f'{what}_{stage}'][0]:.3f}" for stage in ("before", "drifted", "after", "attainable"))
                for what in ("edge", "at_budget")
            ]
            up = " ".join(f"{entry[f'uploads_{stage}'][0]:.2f}" for stage in ("drifted", "after"))
            shares = ", ".join(
                f"{share[0]:.2f} ({share[1]:.2f} to {share[2]:.2f})" if (share := entry[f"won_back_{what}"]) else "-"
                for what in ("edge", "at_budget")
            )
            minutes = entry["minutes_to_roll_out"]
            print(f"{name:8} {kind:9} {cells[0]} | {cells[1]} | {up} | {shares} | {minutes[0] if minutes else 0:.0f}")
    for what in ("edge", "at_budget"):
        print(f"won back, {what}: {report[f'won_back_{what}']}")
    print(f"uploads after: {report['uploads_after']}; bad candidates: {report['bad']}")


def code() -> str:
    """Return a digest of the code that the figures depend on."""
    root = Path(__file__).parent.parent
    files = sorted([*root.glob("halimede/**/*.py"), *root.glob("bench/loop*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def measured_before(tasks: list[Task]) -> list[Found]:
    """Return the results of a run that was ended, of the same tasks on the same code."""
    if not WRITTEN.exists():
        return []
    report = json.loads(WRITTEN.read_text())
    if report["code"] != code():
        sys.exit(f"{WRITTEN} was measured on other code. Measure anew, without --resume.")
    return [each for each in report["tasks"] if tuple(each["task"]) in tasks]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sets", choices=[*SETS], nargs="+", default=[*SETS], help="data sets")
    parser.add_argument("--bad", type=int, default=BAD, help="bad candidates in all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--resume", action="store_true", help="measure only what the report does not have")
    options = parser.parse_args()
    began, state = time.perf_counter(), code()
    # one of each of four kinds at a time
    each = options.bad // 4
    tasks: list[Task] = [
        (name, options.first + n, each // options.seeds + (n < each % options.seeds) if name == BAD_SET else 0)
        for n in range(options.seeds)
        for name in options.sets
    ]
    found = measured_before(tasks) if options.resume else []
    left = [task for task in tasks if task not in {tuple(each["task"]) for each in found}]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for number, ended in enumerate(as_completed([pool.submit(one, task) for task in left]), 1):
            found.append(ended.result())
            print(f"{number} of {len(left)} after {time.perf_counter() - began:.0f} s", file=sys.stderr)
            written(found, state)  # what there is, if somebody ends it
    report = written(found, state)
    show(report)
    met = (
        all(share and share[0] >= WON_BACK for share in report["won_back_at_budget"].values())
        and report["uploads_after"][0] <= UPLOADS
        and not report["bad"]["rolled_out"]
    )
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
