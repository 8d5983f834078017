"""Ten million lines of txt and csv: time and memory of a count, compared with other readers.

    python -m bench.datasets                     10 million lines of txt, of csv with 5 and with 10 classes
    python -m bench.datasets --lines 1000000     the same in short

Each count is what a node runs: the whole of ``python -m halimede.datasets`` from its start, its memory the peak of it
and of the processes that it starts, less what a Python that does nothing has. Beside txt stands a count of newlines
block by block in Python, beside csv pyarrow's ``read_csv`` on all processors and its ``open_csv``, which like ours
holds little; neither of them is charged with its start. All take turns, and the best turn of each counts. Ends with 1
when a figure misses its target.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench import results

WRITTEN = results.FOLDER / "datasets.json"
CLASSES = ("helmet", "bare", "vest", "none", "person")
ROWS = 100_000
#: times of the other reader, and bytes beside a bare Python
MOST = {"txt": 8.0, "csv": 2.0}
MEMORY = 50 * 1024 * 1024
BLOCK = 1024 * 1024


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.datasets", description="Measure counts of large datasets.")
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halimede-bench-") as name:
        report = measure(Path(name), chosen.lines, chosen.turns)
    results.write(WRITTEN, report)
    missed = [f"{name}: {what}" for name, row in report["datasets"].items() for what in row["missed"]]
    for name, row in report["datasets"].items():
        others = ", ".join(f"{other} {seconds:.2f} s" for other, seconds in row["others"].items())
        memory = row["extra_memory_bytes"] / 2**20
        print(f"{name:12} {row['seconds']:.2f} s, {row['ratio']:.1f} x ({others}), {memory:.0f} MiB extra")
    print("every target is met" if not missed else f"missed: {'; '.join(missed)}")
    return 1 if missed else 0


def measure(folder: Path, lines: int, turns: int) -> dict[str, Any]:
    random.seed(5)
    words, digits = CLASSES, tuple("0123456789")
    cases: list[tuple[str, str, Path, dict[str, Callable[[Path], int]]]] = [
        ("txt", "txt", text(folder / "a.txt", lines), {"newlines": newlines}),
        ("csv", "csv", table(folder / "a.csv", lines, words), {"read_csv": read_csv, "open_csv": open_csv}),
        ("csv digits", "csv", table(folder / "b.csv", lines, digits), {"read_csv": read_csv, "open_csv": open_csv}),
    ]
    bare = peak([sys.executable, "-c", "import time; time.sleep(0.3)"])[1]
    rows: dict[str, Any] = {}
    for name, form, path, others in cases:
        ours: list[float] = []
        memory: list[int] = []
        times: dict[str, list[float]] = {other: [] for other in others}
        for _ in range(turns):
            for other, read in others.items():
                began = time.perf_counter()
                assert read(path) == lines, f"{other} has not read {lines} lines"
                times[other].append(time.perf_counter() - began)
            seconds, _, said = peak(command(path, form), watch=False)
            ours.append(seconds)
            assert said["facts"]["numberOfSamples"] == lines
            memory.append(peak(command(path, form))[1] - bare)
        best = {other: min(found) for other, found in times.items()}
        ratio, extra = min(ours) / min(best.values()), max(memory)
        missed = [f"{ratio:.2f} x, at most {MOST[form]:g} is asked"] * (ratio > MOST[form])
        missed += [f"{extra} bytes extra, at most {MEMORY} are asked"] * (extra > MEMORY)
        rows[name] = {
            "lines": lines, "bytes": path.stat().st_size, "seconds": min(ours), "others": best, "ratio": ratio,
            "most": MOST[form], "extra_memory_bytes": extra, "missed": missed,
        }  # fmt: skip
    return {"cpus": len(os.sched_getaffinity(0)), "turns": turns, "datasets": rows}


def command(path: Path, form: str) -> list[str]:
    return [sys.executable, "-m", "halimede.datasets", "--format", form, "--", str(path)]


def peak(argv: list[str], *, watch: bool = True) -> tuple[float, int, Any]:
    """Run a command; return its seconds, the peak of its memory and of what it starts, and its last word.

    Pages that are shared count once: what a process has to itself (USS) is looked at again and again.
    """
    began, most = time.perf_counter(), 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        whole = psutil.Process(process.pid)
        while process.poll() is None and watch:
            most = max(most, _own(whole))
            time.sleep(0.01)
        assert process.stdout
        said = process.stdout.read().decode().splitlines()
    return time.perf_counter() - began, most, json.loads(said[-1]) if said else None


def _own(process: psutil.Process) -> int:
    found = 0
    for each in [process, *_children(process)]:
        try:
            found += each.memory_full_info().uss
        except psutil.Error:
            continue
    return found


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def newlines(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))


def read_csv(path: Path) -> int:
    from pyarrow import csv  # noqa: PLC0415

    return csv.read_csv(path).num_rows


def open_csv(path: Path) -> int:
    from pyarrow import csv  # noqa: PLC0415

    return sum(batch.num_rows for batch in csv.open_csv(path))


def text(path: Path, lines: int) -> Path:
    with path.open("w") as file:
        for begun in range(0, lines, ROWS):
            number = min(ROWS, lines - begun)
            file.write("".join(f"images/train/{random.randrange(10**7):08d}.jpg {begun % 10}\n" for _ in range(number)))
    return path


def table(path: Path, lines: int, classes: tuple[str, ...]) -> Path:
    with path.open("w") as file:
        file.write("id,x,y,label\n")
        for begun in range(0, lines, ROWS):
            number = min(ROWS, lines - begun)
            file.write("".join(
                f"{random.randrange(10**7)},{random.random():.4f},{random.random():.4f},{random.choice(classes)}\n"
                for _ in range(number)
            ))  # fmt: skip
    return path


if __name__ == "__main__":
    sys.exit(main())
