"""Python calls of a hard frame, an easy frame and an applied service.

    python -m bench.hops                    prints the figures and writes build/bench/hops.json
    python -m bench.hops --list             prints also the functions of one frame and service each
    python -m bench.hops --only frames      leaves the applied service out

Edge worker and cloud worker run in this process, on one event loop and a real Mosquitto, with the same ONNX model;
camera and consumer are another process. 200 frames of each kind warm up, then the calls of single frames are counted,
from before one is published to shortly after its result has arrived. Figures are medians of the frames, without what
idle workers call in the same time. All of it is done twice, with a fast model that runs on the event loop and with a
slow one that runs in its thread; the larger figure counts. A call is counted also when a coroutine is resumed. Where a
machine is too slow for that, it is printed which frames were answered otherwise, or where their models ran.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import hops_frames, hops_service, results
from bench.hops_calls import CallRecorder, Cost, listing, median_cost, summary
from bench.hops_client import ClientError
from bench.hops_frames import KINDS, WorkersError
from halimede import log
from halimede.errors import HalimedeError

OUT = results.FOLDER / "hops.json"
FRAMES = 51
FIGURES = ("calls", "functions", "files")
#: measured with this command at the commit before the pipeline
BEFORE = "e89e372"
BASELINE: dict[str, dict[str, int]] = {
    "hard_frame": {"calls": 702, "functions": 320, "files": 73},
    "easy_frame": {"calls": 256, "functions": 187, "files": 53},
    "applied_service": {"calls": 7228, "functions": 629, "files": 103},
}
#: of a hard frame: the most that is asked, and the goal
LIMIT = {"calls": 450, "functions": 200, "files": 48}
GOAL = {"calls": 400, "functions": 170, "files": 40}
#: where the model runs
VARIANTS = {"inline": False, "threaded": True}


async def frames(recorder: CallRecorder, count: int, *, lists: bool) -> dict[str, Any]:
    """Measure both kinds of frames with both models; return the larger figures, the details, and what was otherwise."""
    found: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    notes = []
    for variant, slow in VARIANTS.items():
        measured = await hops_frames.measure(recorder, count, slow=slow)
        notes += measured.notes
        for kind, costs in measured.frames.items():
            if not costs:
                continue
            found[kind][variant] = {**summary(costs, measured.idle), "windows": details(costs, measured.idle)}
            if lists:
                print(f"{kind} frame, model {variant}: {listing(median_cost(costs))}\n", flush=True)
    return {
        "figures": {f"{kind}_frame": larger(variants.values()) for kind, variants in found.items() if variants},
        "details": {f"{kind}_frame": variants for kind, variants in found.items()},
        "notes": notes,
    }


async def service(recorder: CallRecorder, *, lists: bool) -> dict[str, Any]:
    """Measure an applied service; return the figures, and the details."""
    costs, idle = await hops_service.measure(recorder)
    if lists:
        print(f"applied service: {listing(median_cost(costs))}\n", flush=True)
    return {
        "figures": {"applied_service": summary(costs, idle)},
        "details": {"applied_service": {"windows": details(costs, idle)}},
    }


def larger(figures: Any) -> dict[str, int]:
    """Return each figure's largest value."""
    return {name: max(each[name] for each in figures) for name in FIGURES}


def details(costs: Sequence[Cost], idle: Cost) -> dict[str, Any]:
    """Return what the medians come from."""
    return {
        "calls": [cost.calls for cost in costs],
        "milliseconds": [round(cost.seconds * 1000) for cost in costs],
        "idle_calls_per_second": round(idle.calls / idle.seconds),
    }


def table(figures: Mapping[str, Mapping[str, int]]) -> str:
    """Return the figures for people."""
    lines = [f"{'':<18}{'calls':>8}{'functions':>11}{'files':>7}"]

    def add(name: str, row: Mapping[str, int]) -> None:
        lines.append(f"{name:<18}{row['calls']:>8}{row['functions']:>11}{row['files']:>7}")

    for name, row in figures.items():
        add(name.replace("_", " "), row)
        add(f"  at {BEFORE}", BASELINE[name])
        if name == "hard_frame":
            add("  at most", LIMIT)
            add("  goal", GOAL)
    return "\n".join(lines)


async def run(count: int, only: str, *, lists: bool) -> dict[str, Any]:
    """Measure what is asked for."""
    parts = []
    recorder = CallRecorder()
    with recorder.installed():
        if only in {"", "frames"}:
            parts.append(await frames(recorder, count, lists=lists))
        if only in {"", "service"}:
            parts.append(await service(recorder, lists=lists))
    figures = {name: row for part in parts for name, row in part["figures"].items()}
    notes = [note for part in parts for note in part.get("notes", ())]
    details = {name: value for part in parts for name, value in part["details"].items()}
    return {**figures, BEFORE: BASELINE, "details": details, "notes": notes}


def main() -> int:
    """Measure, print, write; return 1 where it could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.hops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--frames", type=int, default=FRAMES, metavar="N", help="frames to count (default: %(default)s)"
    )
    parser.add_argument("--only", choices=("frames", "service"), default="", help="leave the others out")
    parser.add_argument("--list", action="store_true", help="print the functions of median frames and services")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures are written")
    given = parser.parse_args()
    if given.frames < 1:
        parser.error("--frames: give at least 1")
    log.configure("WARNING")
    try:
        found = asyncio.run(run(given.frames, given.only, lists=given.list))
    except (ClientError, WorkersError, HalimedeError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    results.write(given.out, found)
    print(table({name: row for name, row in found.items() if name in BASELINE}))
    for note in found["notes"]:
        print(f"not as meant: {note}")
    print(f"\nwritten to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
