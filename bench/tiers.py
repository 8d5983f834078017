"""What a tier in between brings: the example's three tiers beside its two, on many splits of the digits.

    python -m bench.tiers                 20 splits that the example never used
    python -m bench.tiers --seeds 5

Each split trains all models and chooses all margins anew on its training half (``examples/tiers/train.py``); the other
half is seen once, here. Models run in scikit-learn, so this says what is decided and not how fast; that it is the same
over the bus, tests/e2e/test_tiers.py shows. Ends with 1 when three tiers are worse, or send more to the cloud.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from examples.digits import data
from examples.tiers import train

WRITTEN = Path(__file__).parent.parent / "build" / "bench" / "tiers.json"
#: two-sided 95 % of Student's t for 19 degrees of freedom; the normal's for many more
T95 = 2.093
#: the example's own split, which its design has seen
SEEN = data.SEED


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="splits (default 20)")
    seeds = range(SEEN + 1, SEEN + 1 + parser.parse_args().seeds)
    warnings.filterwarnings("ignore")
    rows = []
    for seed in seeds:
        rows.append(one(seed))
        print(f"split {seed}: three {rows[-1]['three']:.4f}, two {rows[-1]['two']:.4f}", file=sys.stderr)
    found = {
        "seeds": list(seeds),
        "three": statistics.mean(row["three"] for row in rows),
        "two": statistics.mean(row["two"] for row in rows),
        "three_minus_two_ci": interval([row["three"] - row["two"] for row in rows]),
        "to_cloud_three": statistics.mean(row["to_cloud_three"] for row in rows),
        "to_cloud_two": statistics.mean(row["to_cloud_two"] for row in rows),
        "splits_not_worse": statistics.mean(row["three"] >= row["two"] for row in rows),
    }
    WRITTEN.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.write_text(json.dumps(found, indent=1))
    show(found)
    return int(found["three"] < found["two"] or found["to_cloud_three"] >= found["to_cloud_two"])


def one(seed: int) -> dict[str, float]:
    """Return accuracy and share of samples that reach the cloud, of three and of two tiers, on one split."""
    split = data.load(seed)
    to_gate, to_cloud, alone = train.margins(split)
    said = {name: answers(name, split) for name in train.models()}
    asks_gate, asks_cloud = said["device"][1] < to_gate, said["gate"][1] < to_cloud
    three = np.where(asks_gate, np.where(asks_cloud, said["cloud"][0], said["gate"][0]), said["device"][0])
    asks_alone = said["device"][1] < alone
    two = np.where(asks_alone, said["cloud"][0], said["device"][0])
    return {
        "three": float(np.mean(three == split.test_y)),
        "two": float(np.mean(two == split.test_y)),
        "to_cloud_three": float(np.mean(asks_gate & asks_cloud)),
        "to_cloud_two": float(np.mean(asks_alone)),
    }


def answers(name: str, split: data.Split) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a model's classes and margins on the test half."""
    model = train.models()[name].fit(train.seen_by(name, split.train_x), split.train_y)
    probabilities = model.predict_proba(train.seen_by(name, split.test_x))
    return probabilities.argmax(axis=1), train.margin(probabilities)


def interval(differences: list[float]) -> list[float]:
    """Return the 95 % interval of a mean of paired differences."""
    mean = statistics.mean(differences)
    half = T95 * statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return [round(mean - half, 5), round(mean + half, 5)]


def show(found: dict[str, object]) -> None:
    """Print the table."""
    table = Table("", "accuracy", "reach the cloud", title=f"tiers, {len(found['seeds'])} splits")  # type: ignore[arg-type]
    for name in ("three", "two"):
        table.add_row(name, f"{found[name]:.4f}", f"{found[f'to_cloud_{name}']:.1%}")
    console = Console()
    console.print(table)
    console.print(
        f"three minus two: 95 % interval {found['three_minus_two_ci']};"
        f" not worse on {found['splits_not_worse']:.0%} of the splits"
    )


if __name__ == "__main__":
    sys.exit(main())
