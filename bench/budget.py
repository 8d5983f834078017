"""Holds an upload budget over 20,000 samples whose difficulty drifts: the table and the figure of docs/uploads.md.

    python -m bench.budget

Prints the table; ends with 1 where the long-run error is over 0.01, or that of any window of 2,000 samples over 0.05.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from halimede.pipeline.upload_policy.budget import ThresholdController

SAMPLES, WINDOW, TARGET = 20_000, 2_000, 0.2
LONG_RUN, ANY_WINDOW = 0.01, 0.05

DRIFTS: dict[str, Callable[[random.Random, int], float]] = {
    "slowly harder": lambda chance, i: chance.gauss(0.3 + 0.3 * i / SAMPLES, 0.15),
    "changes at once, each 5,000": lambda chance, i: (
        chance.betavariate(2, 8) if i // 5000 % 2 else chance.betavariate(8, 2)
    ),
    "waves of 9,400": lambda chance, i: chance.gauss(math.sin(i / 1500), 0.3),
    "two values only": lambda chance, i: float(chance.random() < 0.1 + 0.5 * i / SAMPLES),
    "each harder than the last": lambda _, i: float(i),
}


def held(hardnesses: Sequence[float]) -> list[int]:
    """Return how many samples have gone up after each, under the online rule."""
    steering = ThresholdController(TARGET, cut=sorted(hardnesses[:1000])[-200])
    return list(accumulate((steering.steer(hardness) for hardness in hardnesses), initial=0))


def fixed(hardnesses: Sequence[float]) -> list[int]:
    """Likewise with the threshold that was right for the first 1,000 samples."""
    cut = sorted(hardnesses[:1000])[-200]
    return list(accumulate((hardness >= cut for hardness in hardnesses), initial=0))


def windows(sent: Sequence[int]) -> list[float]:
    """Return the upload ratio of each window."""
    return [(sent[i + WINDOW] - sent[i]) / WINDOW for i in range(len(sent) - WINDOW)]


def errors(sent: Sequence[int]) -> tuple[float, float]:
    """Return the long-run error and that of the worst window."""
    return abs(sent[-1] / SAMPLES - TARGET), max(abs(ratio - TARGET) for ratio in windows(sent))


def draw(path: Path, sent: Sequence[int], without: Sequence[int]) -> None:
    """Draw the ratio of each window, with the rule and without."""
    import matplotlib as mpl  # noqa: PLC0415  # only where something is drawn

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 3), dpi=120)
    axes.axhspan(TARGET - ANY_WINDOW, TARGET + ANY_WINDOW, color="0.92")
    axes.plot(windows(without), color="0.6", label="fixed threshold")
    axes.plot(windows(sent), label="targetUploadRatio: 0.2")
    axes.set(xlabel="sample", ylabel=f"upload ratio of {WINDOW:,} samples", ylim=(0, 1))
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", type=Path, help="where the figure goes (such as docs/budget.png); none: nowhere")
    options = parser.parse_args()
    print("| difficulty | long-run error | worst window | fixed threshold: long-run error | worst window |")
    print("|---|---|---|---|---|")
    fails = False
    for name, drift in DRIFTS.items():
        chance = random.Random(1)
        hardnesses = [drift(chance, i) for i in range(SAMPLES)]
        sent, without = held(hardnesses), fixed(hardnesses)
        (long, worst), (long_, worst_) = errors(sent), errors(without)
        print(f"| {name} | {long:.4f} | {worst:.4f} | {long_:.3f} | {worst_:.3f} |")
        fails |= long > LONG_RUN or worst > ANY_WINDOW
        if options.figure and name.startswith("waves"):
            draw(options.figure, sent, without)
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
