"""A cloud worker ten times slower than what it is asked for: the edge sheds, and no process grows.

    python -m bench.slow                      ten minutes
    python -m bench.slow --seconds 30         the same in short

A real edge worker, all of whose samples are for the cloud, a cloud worker whose model takes 0.2 s for each, Mosquitto,
and a camera of 50 pictures of 64 KB a second, ten times what the cloud can answer. Ends with 1 when a frame has not
exactly one result, when the cloud answered less than most of what it could, when the edge kept nothing back, or a
process grew.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from PIL import Image

from examples.digits import train
from services.broker import MosquittoProcess
from tests.digits import ALL_HARD, slow
from tests.integration.workers import Site, Worker, site
from tests.ports import free_port

WRITTEN = Path(__file__).parent.parent / "build" / "bench" / "slow.json"
MODEL_S, FPS, SIDE, DEADLINE_MS = 0.2, 50, 256, 1500
#: seconds until a process is warm; looks at its memory (one a second) of which the first ones' most and the last ones'
#: middle are compared; the share by which it may grow, and bytes: what an edge worker remembers of its last frames
WARM, FIRST, LAST, FLAT, LEAST = 10, 20, 15, 0.10, 16 * 1024 * 1024
KEPT_BACK = ("shed", "window-full", "too-slow")
#: share of what the cloud could answer that it has to
GOODPUT = 0.8
SETTLE_S = 30.0


def noise() -> bytes:
    """Return a picture that no compression makes smaller."""
    out = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE), np.uint8)
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


async def watch(workers: dict[str, Worker], looks: dict[str, list[int]]) -> None:
    """Look at the memory of processes every second, once they are warm."""
    await asyncio.sleep(WARM)
    while True:
        for name, worker in workers.items():
            looks[name].append(psutil.Process(worker.process.pid).memory_info().rss)
        await asyncio.sleep(1)


async def run(seconds: float, folder: Path) -> dict[str, Any]:
    """Run all of it; return the figures."""
    if not (train.FOLDER / "small.onnx").exists():
        train.main()
    async with MosquittoProcess(folder / "broker", port=free_port()) as broker, site(broker, "slow", folder) as place:
        workers = {
            "cloud": place.start_script("cloud", "slow-c", slow(MODEL_S)),
            "edge": place.start(
                "edge", "slow-e", train.FOLDER / "small.onnx", **ALL_HARD, DEADLINE_MS=str(DEADLINE_MS)
            ),
        }
        await place.running("slow-c", "slow-e")
        looks: dict[str, list[int]] = {name: [] for name in workers}
        watching = asyncio.create_task(watch(workers, looks))
        pictures, began = [noise()] * FPS, time.monotonic()
        while time.monotonic() - began < WARM + seconds:
            await place.send(pictures, fps=FPS)
        took = time.monotonic() - began
        await place.answered(SETTLE_S)
        watching.cancel()
        return report(place, looks, took)


def report(place: Site, looks: dict[str, list[int]], seconds: float) -> dict[str, Any]:
    """Return what was seen."""
    memory = {}
    for name, seen in looks.items():
        start, end = max(seen[:FIRST]), int(median(seen[-LAST:]))
        memory[name] = {"start": start, "end": end, "most": max(seen), "growth": round(end / start - 1, 4)}
    waits = sorted(result.total_ms for result in place.results.values())
    return {
        "seconds": round(seconds, 1),
        "sent": len(place.sent),
        "answered": len(place.results),
        "answeredTwice": sum(copies > 1 for copies in place.copies.values()),
        "byCloud": len(place.by("cloud")),
        "able": round(seconds / MODEL_S),
        "degraded": dict(sorted(place.reasons().items())),
        "resultMs": {"median": round(median(waits), 1), "p99": round(waits[len(waits) * 99 // 100], 1)},
        "memory": memory,
    }


def broken(found: dict[str, Any]) -> list[str]:
    """Return the promises that were broken."""
    problems = []
    if found["answered"] != found["sent"] or found["answeredTwice"]:
        problems.append("a frame has no result, or two")
    if found["byCloud"] < GOODPUT * found["able"]:
        problems.append("the cloud answered little of what it could")
    kept_back = sum(found["degraded"].get(reason, 0) for reason in KEPT_BACK)
    if kept_back <= found["degraded"].get("deadline", 0):
        problems.append("more samples ran out of time than were kept back")
    for name, memory in found["memory"].items():
        if memory["end"] - memory["start"] > max(FLAT * memory["start"], LEAST):
            problems.append(f"the {name} worker grew by {memory['growth']:.0%}")
    return problems


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.slow", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S", help="how long (default: %(default)g)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="halimede-slow-") as folder:
        found = asyncio.run(run(seconds, Path(folder)))
    found["problems"] = broken(found)
    WRITTEN.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
