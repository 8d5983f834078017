"""Run the model for long: `make model EXAMPLES=2000`. Prints what it did and writes it to build/model.json."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import RECORD, Machine

SAME_ORDER = {"PYTHONHASHSEED": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, help="the same examples again")
    parser.add_argument("--no-shrink", action="store_true", help="show the first failing example as it is")
    parser.add_argument("--out", type=Path, default=Path("build/model.json"))
    args = parser.parse_args()
    if "PYTHONHASHSEED" not in os.environ:  # sets in another order are another history
        os.execve(sys.executable, [sys.executable, "-m", "tests.stateful", *sys.argv[1:]], {**os.environ, **SAME_ORDER})
    phases = (Phase.generate,) if args.no_shrink else (Phase.generate, Phase.shrink)
    chosen = settings(
        max_examples=args.examples,
        stateful_step_count=args.steps,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=True,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    if args.seed is not None:
        seeded(args.seed)(Machine)
    try:
        run_state_machine_as_test(Machine, settings=chosen)  # type: ignore[no-untyped-call]
        verdict = "green"
    except BaseException:
        verdict = "failed"
        raise
    finally:
        _tell(args.out, verdict)
    return 0


def _tell(out: Path, verdict: str) -> None:
    took = time.monotonic() - RECORD.began
    told = {
        "verdict": verdict,
        "examples": RECORD.examples,
        "steps": sum(RECORD.rules.values()),
        "seconds": round(took, 1),
        "simulated_hours": round(RECORD.simulated_s / 3600, 1),
        "messages": RECORD.messages,
        "converged_after_many_faults_s": _spread(RECORD.many),
        "converged_after_one_fault_s": _spread(RECORD.one),
        "rules": dict(RECORD.rules.most_common()),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(told, indent=2) + "\n")
    print(json.dumps(told, indent=2))


def _spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        "times": len(ordered),
        "median": round(ordered[len(ordered) // 2], 1),
        "p99": round(ordered[int(len(ordered) * 0.99)], 1),
        "max": round(ordered[-1], 1),
    }


if __name__ == "__main__":
    sys.exit(main())
